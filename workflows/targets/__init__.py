"""Launchers beside Argo and this machine: what each is given is rendered from the same settings, purely."""
