"""Grading: what the agent changed, taken to a sandbox that it never saw, and judged there by the task's own tests."""
