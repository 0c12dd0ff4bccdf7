"""What has to hold of a capture, told from the engine's record alone: prompts that it got and tokens that it gave.

Knows nothing of the proxy's graph. A call that goes on where an earlier one ended begins with that one's prompt and
sampled ids; a call that does not is a new branch, and the test has to name its cause.
"""

from collections.abc import Mapping, Sequence

from agentic.proxy import SealedSession

type Ids = tuple[int, ...]


def parents(prompts: Sequence[Ids], sampled: Sequence[Ids]) -> list[int | None]:
    """For each call the latest call whose prompt and reply its prompt begins with, the longest such beginning first."""
    wholes = [prompt + reply for prompt, reply in zip(prompts, sampled, strict=True)]
    found: list[int | None] = []
    for number, prompt in enumerate(prompts):
        held = [n for n in range(number) if prompt[: len(wholes[n])] == wholes[n]]
        found.append(max(held, key=lambda n: len(wholes[n]), default=None))
    return found


def branches(prompts: Sequence[Ids], sampled: Sequence[Ids]) -> list[int]:
    """Calls that do not simply go on: they begin anew, or where another call went on before."""
    taken: set[int | None] = {None}
    found = []
    for number, parent in enumerate(parents(prompts, sampled)):
        if parent in taken:
            found.append(number)
        taken.add(parent)
    return found


def causes(numbers: Sequence[int], texts: Sequence[str], known: Mapping[str, str]) -> list[str]:
    """For each of these calls the name of its cause: the first whose text the prompt holds."""
    return [_cause(texts[number], known) for number in numbers]


def check_capture(sealed: SealedSession, prompts: Sequence[Ids], sampled: Sequence[Ids]) -> None:
    """Nothing lost, nothing twice, nothing encoded anew."""
    assert sealed.complete, sealed.incomplete_reason
    assert (sealed.undelivered_tokens, sealed.overflowed) == (0, False)
    assert sealed.sampled_tokens == sum(len(reply) for reply in sampled)
    rows = [tuple(t.prompt_ids) + tuple(t.response_ids) for t in sealed.trajectories]
    masks = [(0,) * len(t.prompt_ids) + tuple(t.response_mask) for t in sealed.trajectories]
    for number, (prompt, reply) in enumerate(zip(prompts, sampled, strict=True)):
        start, end = len(prompt), len(prompt) + len(reply)
        holders = [n for n, row in enumerate(rows) if row[:end] == prompt + reply]
        assert holders, f"call {number}: no trajectory holds its prompt and its sampled tokens"
        with_loss = [n for n in holders if any(masks[n][start:end])]
        assert len(with_loss) == 1, f"call {number}: its tokens have loss in {len(with_loss)} trajectories"
        assert all(masks[with_loss[0]][start:end]), f"call {number}: some of its tokens have no loss"
    assert sum(map(sum, masks)) == sealed.sampled_tokens
    leaves = set(range(len(prompts))) - set(parents(prompts, sampled))
    assert len(rows) == len(leaves), "there are other branches than the engine saw"


def _cause(text: str, known: Mapping[str, str]) -> str:
    return next((name for name, held in known.items() if held in text), f"unexplained: ...{text[-400:]}")
