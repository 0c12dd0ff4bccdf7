"""The rooms of the system; see docs/architecture.md for what each owns and may import."""
