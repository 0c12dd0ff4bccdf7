"""Repair tasks made by mutating small functions.

A function's docstring names, by a phrase, the code form that its body needs at one place; the task's `mod.py` has
another form of the same kind there. Every kept task holds:

1. the original passes all hidden checks;
2. the mutant and every other form of the kind at that place fail at least one of them;
3. the failing call shown in the instruction is not among the hidden checks;
4. functions also contain forms that are right (decoys), so that a blind script of substitutions breaks what it touches.
"""
