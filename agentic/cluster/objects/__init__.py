"""The objects of the pipeline as pure functions of settings: plain manifests, made without asking any server."""
