"""Settings, the workflow and its two targets: Argo and this machine. No machine learning is imported here."""
