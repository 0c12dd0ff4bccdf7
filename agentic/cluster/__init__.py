"""Kubernetes: settings, and later the objects that a run needs in a cluster."""
