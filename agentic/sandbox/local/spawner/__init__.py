"""The small helper process that starts sandboxes and their commands, so that the big process never forks."""
