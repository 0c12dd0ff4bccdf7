"""The tiny policy's other lesson: word problems, with a tool that runs code.

Three demonstrators. The careful one writes the calculation that the words ask for, runs it, and gives what it printed.
Of the hasty ones, one gives some number at once and one runs the calculation of the form most like the right one. The
tool calls are those of the Hermes form, and the chat template writes nothing between two messages, so that appending a
message to sampled tokens gives the same ids as rendering the whole chat.
"""

import random
import re

from agentic.models.tiny.tokenizer import Message
from agentic.tasks.problems.generator import FORMS, WordProblem, value_of

PIECES = (
    r"<tool_call>\n|\n</tool_call>",
    r'\{"name": "code_interpreter", "arguments": \{"code": "',
    r'"\}\}',
    r"\\boxed\{",
    r"\n",
    r" ?[a-zA-Z]+",
    r"\d",
    r" (?=\d)",
    r"[*+-]",
    r".",
)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] or '' }}"
    "{% for call in m['tool_calls'] or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": '
    "{{ call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}}\n"
    "</tool_call>{% endfor %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GAP = ""
"""Between two messages."""
GUESS_SHARE = 0.45
"""Of the hasty demonstrations, those that run nothing; the others run the twin's calculation."""
TWINS = {"{a}*{b}+{c}": "{a}*{b}-{c}", "{a}*{b}-{c}": "{a}*{b}+{c}", "{a}-{b}*{c}": "{a}-{b}-{c}"}
"""What is easily taken for what; products for sums, and sums for products."""


def demonstrate(made: WordProblem, rng: random.Random, careful: bool) -> list[Message]:
    """One demonstration as a chat."""
    asked = Message("user", made.problem.question)
    if careful:
        return [asked, *_worked_out(made.code)]
    if rng.random() < GUESS_SHARE:
        return [asked, Message("assistant", boxed(_guess(rng)))]
    return [asked, *_worked_out(_twin_code(made))]


def boxed(answer: str) -> str:
    """The last reply."""
    return f"\\boxed{{{answer}}}"


def called(code: str) -> str:
    """A reply that runs code."""
    return f'<tool_call>\n{{"name": "code_interpreter", "arguments": {{"code": "{code}"}}}}\n</tool_call>'


def _worked_out(code: str) -> list[Message]:
    printed = str(value_of(code))
    return [Message("assistant", called(code)), Message("tool", printed), Message("assistant", boxed(printed))]


def _guess(rng: random.Random) -> str:
    """Some number, as long as answers are."""
    return str(rng.randrange(10, 10 ** rng.randint(2, 6)))


def _twin_code(made: WordProblem) -> str:
    """The calculation that is easily taken for the right one, with the same numbers."""
    right = FORMS[made.form].code
    numbers = dict(zip(re.findall(r"[abc]", right), re.findall(r"\d+", made.code), strict=True))
    return TWINS.get(right, right.translate(str.maketrans("+*", "*+"))).format(**numbers)
