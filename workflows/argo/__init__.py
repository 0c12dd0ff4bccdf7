"""Workflows on a cluster: creating, following, retrying and reading them, by kubectl access or by an Argo server."""
