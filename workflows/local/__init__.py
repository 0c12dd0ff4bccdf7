"""The local runner: interprets the compiled Workflow as processes of this machine."""
