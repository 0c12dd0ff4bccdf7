"""What every client is scripted to do: look, repair, try, say so."""

LOOK = "cat calc.py"
LOOK_LONG = "seq 1 1500; cat calc.py"
"""Some 6,400 letters, by which a client's own limit on its context is passed."""
REPAIR = "sed -i 's/a - b/a + b/' calc.py"
TRY = "python3 -c 'import calc; print(calc.add(2, 3))'"
DONE = "Done: add adds."
