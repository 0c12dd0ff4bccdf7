"""Plug-ins that verl and vLLM load by name on a machine without a GPU; nothing of either is edited."""
