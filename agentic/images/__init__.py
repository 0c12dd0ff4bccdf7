"""Images of a task set: which are needed, and building them on this machine."""
