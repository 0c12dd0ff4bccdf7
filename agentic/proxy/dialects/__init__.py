"""API dialects: what agents speak, to and from one internal request and reply."""
