"""Kubernetes: the way to an API server, the objects that a run needs there, and what can go wrong with them."""
