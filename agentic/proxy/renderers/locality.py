"""Whether a chat template is local: whether the text of a message depends on its neighbours alone.

To bridge, a template has to be shown to append only. Rendering the whole conversation shows it at a cost that grows
with the history. If the template is local, the first message and the last few show the same: all that such a template
can look at for a message is the message itself, the ones beside it, the first one, the tools, and whether it is the
first or the last. So in renderings that share their last old messages, whatever older messages would have said is the
same in each.

Local is what can be read off the syntax tree: one loop over `messages` at the top level whose body names `messages`
only as `messages[0]` and `messages[loop.index0 ± 1]`, asks of `loop` only for such neighbours and for its ends, and
carries nothing on (no namespace); around the loop `messages` appears only as its first or last message. Everything
else, such as Qwen3's template, which looks for the last question, is not local, and is rendered whole.
"""

from collections.abc import Iterator, Sequence

from jinja2 import nodes

from ..conversation import Message

MESSAGES = "messages"
NEIGHBOURS = 3
"""Old messages that stay at the end: the sampled one, the one before it, and the latter's own neighbour."""
LOOP_ENDS = frozenset(["first", "last", "previtem", "nextitem"])


def is_local(template: nodes.Template) -> bool:
    """Whether the text of a message depends on its neighbours alone."""
    loops = [node for node in template.body if _is_message_loop(node)]
    if len(loops) != 1 or template.find(nodes.Macro) or template.find(nodes.Import) or template.find(nodes.Include):
        return False
    (loop,) = loops
    around = [node for node in template.body if node is not loop]
    return all(_is_blind(node, at_end=True) for node in around) and _is_local_loop(loop)


def window(messages: Sequence[Message], held: int) -> tuple[Sequence[Message], int]:
    """The messages that show the same as all of them, and how many of these are held."""
    dropped = held - NEIGHBOURS - 1
    if dropped <= 0:
        return messages, held
    return [messages[0], *messages[1 + dropped :]], held - dropped


def _is_message_loop(node: nodes.Node) -> bool:
    return isinstance(node, nodes.For) and _is_name(node.iter, MESSAGES)


def _is_local_loop(loop: nodes.Node) -> bool:
    if not isinstance(loop, nodes.For) or loop.test is not None or loop.else_ or loop.recursive:
        return False
    assigned = [name.name for name in loop.find_all(nodes.Name) if name.ctx == "store"]
    if MESSAGES in assigned or "loop" in assigned or loop.find(nodes.NSRef) is not None:
        return False
    return all(_is_blind(node, in_loop=True) for node in loop.body)


def _is_blind(node: nodes.Node, in_loop: bool = False, at_end: bool = False) -> bool:
    """Whether nothing in here sees other messages than it may."""
    if isinstance(node, nodes.Getitem) and _is_name(node.node, MESSAGES):
        return _is_near(node.arg, in_loop, at_end)
    if isinstance(node, nodes.Compare) and in_loop and _asks_whether_first(node):
        return True
    if isinstance(node, nodes.Getattr) and _is_name(node.node, "loop"):
        return not in_loop or node.attr in LOOP_ENDS
    if isinstance(node, nodes.Name) and node.name in (MESSAGES, "loop"):
        return node.name == "loop" and not in_loop
    if isinstance(node, nodes.For):
        # Within it `loop` is its own: it may be asked anything, and is no place among the messages.
        return _is_blind(node.iter, in_loop, at_end) and all(_is_blind(inner) for inner in _inside(node))
    return all(_is_blind(child, in_loop, at_end) for child in node.iter_child_nodes())


def _inside(loop: nodes.For) -> Iterator[nodes.Node]:
    yield from loop.body
    yield from loop.else_
    if loop.test is not None:
        yield loop.test


def _is_near(place: nodes.Expr, in_loop: bool, at_end: bool) -> bool:
    if isinstance(place, nodes.Const):
        return bool(place.value == 0)
    if isinstance(place, nodes.Neg) and isinstance(place.node, nodes.Const):
        return at_end and bool(place.node.value == 1)
    if not in_loop or not isinstance(place, nodes.Add | nodes.Sub):
        return False
    return _is_loop_index(place.left) and isinstance(place.right, nodes.Const) and bool(place.right.value == 1)


def _is_loop_index(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Getattr) and _is_name(node.node, "loop") and node.attr == "index0"


def _asks_whether_first(node: nodes.Compare) -> bool:
    if len(node.ops) != 1 or not _is_loop_index(node.expr):
        return False
    operand = node.ops[0]
    return operand.op in ("eq", "ne", "gt") and isinstance(operand.expr, nodes.Const) and operand.expr.value == 0


def _is_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name
