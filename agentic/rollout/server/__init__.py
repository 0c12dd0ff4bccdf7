"""Trials for a trainer in another place: a server that runs them beside its sandboxes, and the client that asks it."""
