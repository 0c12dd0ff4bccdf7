"""Making tasks and judging them by running them: the part of task work that needs images and sandboxes."""
