"""The final answer of a reply, and whether two plain answers are the same: numbers by value, the rest as text.

Goes into each problem's task as its checker (`check.py ANSWER EXPECTED FOLDER`), so it runs alone, on Python 3.8 and
newer, and imports nothing of ours. What takes algebra to compare is not plain: `answers.py` asks math-verify, outside.
"""

import re
import sys
from fractions import Fraction
from pathlib import Path
from typing import Optional

LONGEST_ANSWER = 400
"""Characters; a longer one is no answer."""
LONGEST_NUMBER = 100
LONGEST_REPLY = 100_000
"""Characters at the end of a reply that are searched for its answer."""
_BOXED = "\\boxed{"
_NUMBER = re.compile(r"(?P<sign>-?)\s*(?P<top>\d+(?:\.\d+)?|\.\d+)(?:/(?P<bottom>\d+))?")
_FRACTION = re.compile(
    r"(?P<sign>-?)\s*\\[dt]?frac\s*(?:\{(?P<top>\d+)\}\s*\{(?P<bottom>\d+)\}|(?P<short>\d)(?P<under>\d))"
)


def boxed(text: str) -> Optional[str]:  # noqa: UP045 - has to run on Python 3.8
    """What stands in the last `\\boxed{...}`; None when there is none that closes, or it is too far from the end."""
    text = text[-LONGEST_REPLY:]
    start = text.rfind(_BOXED)
    if start < 0:
        return None
    begin = start + len(_BOXED)
    depth = 1
    for end in range(begin, min(len(text), begin + LONGEST_ANSWER + 1)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[begin:end].strip()
    return None


def plain_number(answer: str) -> Optional[Fraction]:  # noqa: UP045 - has to run on Python 3.8
    """The value of a whole number, decimal or fraction, in digits or LaTeX; None for anything else."""
    text = re.sub(r"(?<=\d),(?=\d{3}(?:\D|$))", "", answer.strip().strip("$").strip().rstrip("."))
    if len(text) > LONGEST_NUMBER:
        return None
    fraction = _FRACTION.fullmatch(text)
    if fraction:
        top, bottom = fraction["top"] or fraction["short"], fraction["bottom"] or fraction["under"]
    else:
        number = _NUMBER.fullmatch(text)
        if not number:
            return None
        fraction, top, bottom = number, number["top"], number["bottom"] or "1"
    if int(bottom) == 0:
        return None
    value = Fraction(top) / int(bottom)
    return -value if fraction["sign"] else value


def is_same(answer: str, expected: str) -> bool:
    """By value when both are numbers, else as text without white space and dollar signs."""
    left, right = plain_number(answer), plain_number(expected)
    if left is not None and right is not None:
        return left == right
    return _bare(answer) == _bare(expected) != ""


def _bare(answer: str) -> str:
    return re.sub(r"\s+|\$", "", answer)


def main(answer_file: str, expected_file: str, folder: str) -> int:
    """Write the reward as Harbor reads it; 0 when the answer is right."""
    path = Path(answer_file)
    answer = boxed(path.read_text(errors="replace")) if path.is_file() else None
    right = answer is not None and is_same(answer, Path(expected_file).read_text().strip())
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, "reward.txt").write_text("1\n" if right else "0\n")
    sys.stdout.write(f"the answer is {answer!r}: {'right' if right else 'wrong'}\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
