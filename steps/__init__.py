"""The steps of the workflow, one module each: an input model, an output model, `run`, and `python -m steps.NAME`."""
