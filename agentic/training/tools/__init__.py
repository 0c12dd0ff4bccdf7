"""Tools for verl's own agent loops, the sandbox that runs their code, and the loops that keep records."""
