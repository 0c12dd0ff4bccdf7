"""Harbor agents of ours, and the double. Imported by Harbor, by path, in the process that runs trials."""
