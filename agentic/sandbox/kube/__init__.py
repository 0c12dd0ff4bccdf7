"""Sandboxes in Kubernetes: commands and files in pods, and the providers that make the pods."""
