"""Sandboxes for untrusted code: providers, the root-folder store, and the Harbor environment over both."""
