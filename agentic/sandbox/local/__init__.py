"""Sandboxes on the machine that we run on: bubblewrap, podman or docker, or a bare process."""
