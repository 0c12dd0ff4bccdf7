"""What a session must hold, by a model of its own: a list of generations, each with its prompt, its tokens, and whether
somebody received it. No graph, no keys, no events; tokens are strings.

It knows the tiny policy's template, a tokenizer of one token a character with one merge (`zq`), and the rules of
docs/architecture.md. It imports nothing of the proxy.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

END, START = "<|im_end|>", "<|im_start|>"
MERGED = "zq"

type Tokens = tuple[str, ...]
type Turns = tuple[tuple[str, str], ...]
"""Role and text of each message, as the client wrote them."""


def letters(text: str) -> Tokens:
    """Text as the tokenizer encodes it, where it holds no special token."""
    out: list[str] = []
    while text:
        size = 2 if text.startswith(MERGED) else 1
        out.append(text[:size])
        text = text[size:]
    return tuple(out)


def text_of(tokens: Iterable[str]) -> str:
    """What a client reads of sampled tokens."""
    return "".join(token for token in tokens if token != END)


def turn(role: str, text: str) -> Tokens:
    """One message in the template."""
    return (START, *letters(f"{role}\n"), *letters(text), END, "\n")


ASKS = (START, *letters("assistant\n"))
"""Where the template lets the model begin."""


def same_turn(role: str, text: str) -> tuple[str, str]:
    """A message without what clients change: thinking, and white space around an assistant's text."""
    return (role, text.rpartition("</think>")[2].strip()) if role == "assistant" else (role, text)


@dataclass(frozen=True)
class Asked:
    """One request: what it says, and by what it may be known as a retry."""

    body: str
    """The API and the whole body."""
    turns: Turns = ()
    text: str | None = None
    """A text completion's prompt."""
    key: str | None = None
    retries: int = 0


@dataclass
class Generated:
    """One generation."""

    number: int
    asked: Asked
    prompt: Tokens
    tokens: Tokens
    """All that the engine would give."""
    logprobs: tuple[float | None, ...]
    given: int = 0
    versions: list[int] = field(default_factory=list)
    state: str = "running"
    """running, answered or failed."""
    waiting: int = 0
    delivered: bool = False
    superseded: bool = False
    replaces: int | None = None
    """The failed one in whose place it is."""
    reply_id: str = ""
    """What a client may continue it by, once one has it."""
    order: int = -1
    """When it was recorded; -1: never, or without a token."""

    @property
    def sampled(self) -> Tokens:
        """What the engine gave."""
        return self.tokens[: self.given]

    @property
    def standing(self) -> str:
        """What somebody who asks for it again would get: see `MAY_REPEAT`."""
        if self.state == "failed":
            return "replaced" if self.superseded else "failed"
        return "served" if self.waiting or self.delivered else "left"

    @property
    def turns_after(self) -> Turns:
        """The conversation with the reply."""
        return (*self.asked.turns, ("assistant", text_of(self.tokens)))


ALIVE = ("left", "served")
MAY_REPEAT = {False: ("left",), True: ("left", "failed", "served")}
"""By whether an SDK counts a retry: what a request without a key may repeat, in this order. "left": unanswered, and
nobody waits; "failed": nobody has asked again since; "served": somebody has it or waits for it."""


class SessionOracle:
    """One session as it must be."""

    def __init__(self) -> None:
        self.calls: list[Generated] = []
        self.cut: dict[str, int] = {}
        self._recorded = 0

    def prompt(self, asked: Asked) -> Tokens:
        """What the engine must be sent."""
        answered = [call for call in self.calls if call.state == "answered"]
        if asked.text is not None:
            return self._text_prompt(asked.text, answered)
        turns = asked.turns
        for count in range(len(turns), 0, -1):
            wanted = [same_turn(*each) for each in turns[:count]]
            held = [c for c in answered if c.asked.text is None and [same_turn(*t) for t in c.turns_after] == wanted]
            if held:
                best = max(held, key=lambda c: (c.turns_after[-1] == turns[count - 1], c.delivered, c.order))
                closing = ("\n",) if best.tokens[-1] == END else (END, "\n")
                new = [token for each in turns[count:] for token in turn(*each)]
                return (*best.prompt, *best.tokens, *closing, *new, *ASKS)
        return (*(token for each in turns for token in turn(*each)), *ASKS)

    @staticmethod
    def _text_prompt(text: str, answered: Sequence[Generated]) -> Tokens:
        best: Generated | None = None
        rank: tuple[int, bool, int] | None = None
        for call in answered:
            if call.asked.text is None or not text.startswith(call.asked.text + text_of(call.tokens)):
                continue
            own = (len(call.asked.text + text_of(call.tokens)), call.delivered, call.order)
            if rank is None or own > rank:
                best, rank = call, own
        if best is None or rank is None:
            return letters(text)
        return (*best.prompt, *best.tokens, *letters(text[rank[0] :]))

    def repeated(self, asked: Asked) -> Generated | None:
        """The call that a request repeats, so that nothing is sampled for it; by the contract's words on retries.

        Where a key is sent, it alone says. Else a request may repeat what its sign, an SDK's count or none, lets it:
        first the reply that a client left without, then one that failed and has to be sampled anew, then one that
        somebody has or waits for.
        """
        if asked.key is not None:
            return next((c for c in self.calls if c.asked.key == asked.key and c.standing in ALIVE), None)
        for standing in MAY_REPEAT[asked.retries > 0]:
            found = [c for c in self.calls if c.asked.body == asked.body and c.standing == standing]
            if found:
                return {"left": found[0], "failed": None, "served": found[-1]}[standing]
        return None

    def start(self, asked: Asked, tokens: Tokens, logprobs: tuple[float | None, ...]) -> Generated:
        """A new generation; whoever asks again for a failed one, an SDK or an agent, puts it in its place."""
        same = [c for c in self.calls if c.asked.body == asked.body and c.standing == "failed"]
        call = Generated(len(self.calls), asked, self.prompt(asked), tokens, logprobs)
        if same:
            same[0].superseded, call.replaces = True, same[0].number
        self.calls.append(call)
        return call

    def give(self, call: Generated, upto: int, version: int) -> None:
        """The engine gave its tokens up to here."""
        new = upto - call.given
        call.given += new
        call.versions += [version] * new

    def answer(self, call: Generated, version: int) -> None:
        """It is whole; who waits has it."""
        self.give(call, len(call.tokens), version)
        call.state, call.delivered = "answered", call.waiting > 0
        self._record(call)

    def fail(self, call: Generated, word: str) -> None:
        """It ended without a reply; what was given is kept, and trains nothing."""
        call.state, call.waiting = "failed", 0
        self.cut[word] = self.cut.get(word, 0) + 1
        if call.given:
            self._record(call)

    def _record(self, call: Generated) -> None:
        call.order = self._recorded
        self._recorded += 1

    def recorded(self) -> list[Generated]:
        """Generations of which tokens are kept."""
        return [call for call in self.calls if call.order >= 0]

    def trains(self) -> list[tuple[Tokens, tuple[float | None, ...], tuple[int, ...]]]:
        """What must be trained, in no order: tokens, log-probabilities, versions of each delivered generation."""
        if not self.is_complete:
            return []
        return sorted(
            (call.sampled, call.logprobs[: call.given], tuple(call.versions))
            for call in self.recorded()
            if call.delivered
        )

    @property
    def is_complete(self) -> bool:
        """Whether every recorded token has its log-probability."""
        return all(logprob is not None for call in self.recorded() for logprob in call.logprobs[: call.given])

    def survive(self, records: Sequence[dict[str, object]]) -> None:
        """What is left after a crash, by the records that are whole; what ran, and what they lack, is cut."""
        started = [record for record in records if record["kind"] == "started"]
        self.calls = self.calls[: len(started)]
        self.cut = {}
        committed = {r["call"]: (n, r) for n, r in enumerate(records) if r["kind"] == "committed"}
        failed = {r["call"]: r for r in records if r["kind"] == "failed"}
        superseded = {r["supersedes"] for r in started}
        for call in self.calls:
            call.waiting, call.order = 0, -1
            call.superseded = call.number in superseded
            if call.number in committed:
                self._survived(call, *committed[call.number], records)
            else:
                word = failed[call.number]["cut"] if call.number in failed else "restart"
                call.given, call.versions, call.delivered = 0, [], False
                self.fail(call, str(word))
        self._recorded = len(records)

    def _survived(
        self, call: Generated, place: int, record: dict[str, object], records: Sequence[dict[str, object]]
    ) -> None:
        call.order = place
        marks = [r["delivered"] for r in records if r["kind"] == "delivered" and r["call"] == call.number]
        call.delivered = bool([record["delivered"], *marks][-1])
        if not record["answered"]:
            word = str(record["cut"])
            self.cut[word] = self.cut.get(word, 0) + 1
