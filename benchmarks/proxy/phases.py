"""Where the time of one call goes, by the length of what came before: in one process, without sockets.

Each phase is what the proxy itself calls. `parse` (the body into messages) and `write` (the ids to the engine) follow
the history by nature; `plan` (which tokens are held, rendering and encoding what is new) has to follow what is new
alone, and so have `commit` (the record) and `reply`. Times are the thread's processor time, so a busy machine does not
count as slow code.
"""

import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentic.proxy import Renderer, Sampling, SessionSpec, make_renderer
from agentic.proxy.conversation import KnownConversations, extend_key, verbatim_digest
from agentic.proxy.dialects import make_dialects
from agentic.proxy.dialects.base import CallRequest
from agentic.proxy.engines.http import dumps, id_list
from agentic.proxy.events import Committed, Opened, Started
from agentic.proxy.journal import encode_record
from agentic.proxy.planning import Planned, find, plan_rest, plan_whole
from agentic.proxy.session import Session

from .model import Text

HISTORIES = (1_000, 4_000, 16_000, 64_000, 128_000)
TURN_TOKENS, REPLY_TOKENS = 800, 100
"""What each turn adds, whatever the history."""


class Conversation:
    """A session driven through the proxy's own stages, turn by turn."""

    def __init__(self, renderer: Renderer, text: Text) -> None:
        spec = SessionSpec(
            session_id="phases",
            sampling=Sampling(temperature=1.0, max_tokens=REPLY_TOKENS),
            max_prompt_tokens=10**6,
            max_response_tokens=10**6,
            max_calls=10**6,
        )
        self._renderer, self._text = renderer, text
        self._session, self._known = Session(Opened(spec=spec, at=0.0)), KnownConversations()
        self._chat = make_dialects()[0]
        self._messages: list[dict[str, Any]] = []
        self._reply = (*text.reply_ids[: REPLY_TOKENS - 1], text.end_id)
        self.times: dict[str, list[float]] = {}
        self.tokens = 0

    def turn(self) -> None:
        """One call, each phase timed."""
        observation = self._text.take(TURN_TOKENS - REPLY_TOKENS)
        self._messages.append({"role": "user", "content": observation})
        body = json.dumps({"model": "policy", "messages": self._messages}).encode()
        request = self._timed("parse", lambda: self._chat.to_call(self._chat.parse(body)))
        planned: Planned = self._timed("plan", lambda: self._planned(request))
        self._known.remember(request.messages, None, planned.keys)
        prompt = self._timed("write", lambda: self._written(planned))
        message = self._timed("reply", lambda: self._renderer.parse(self._reply, None))
        self._timed("commit", lambda: self._commit(planned, message))
        self._known.remember((*request.messages, message), None, [*planned.keys, extend_key(planned.keys[-1], message)])
        self._messages.append({"role": "assistant", "content": message.content})
        self.tokens = len(prompt) + len(self._reply)

    def _planned(self, request: CallRequest) -> Planned:
        found = find(self._session, request, self._known)
        arguments = (self._session, self._renderer, request, found)
        return plan_rest(*arguments) or plan_whole(*arguments)

    def _written(self, planned: Planned) -> Any:
        ids = self._session.graph.prompt_ids(planned.plan)
        dumps({"prompt": id_list(ids), "max_tokens": REPLY_TOKENS})
        return ids

    def _commit(self, planned: Planned, message: Any) -> None:
        number = len(self._session.calls)
        started = Started(call=number, body_digest=str(number), idempotency_key=None, overridden=())
        committed = Committed(
            call=number,
            at=0.0,
            anchor=planned.plan.anchor,
            context=planned.plan.context,
            first_prompt=planned.plan.first_prompt,
            ids=self._reply,
            logprobs=(-0.5,) * len(self._reply),
            versions=(0,) * len(self._reply),
            finish="stop",
            stop_reason=None,
            delivered=True,
            answered=True,
            state_key=extend_key(planned.keys[-1], replace(message)),
            verbatim=verbatim_digest(message),
        )
        for event in (started, committed):
            encode_record(event)
            self._session.apply(event)

    def _timed(self, phase: str, work: Callable[[], Any]) -> Any:
        started = time.thread_time()
        result = work()
        self.times.setdefault(phase, []).append(1000 * (time.thread_time() - started))
        return result


def measure_phases(model: Path, text: Text, repeats: int) -> list[dict[str, float]]:
    """Least milliseconds of each phase of turns at each history: whatever else the machine does only adds. All words
    have been seen before, so that encoding costs the same at each length."""
    renderer = make_renderer(model)
    _reach(Conversation(renderer, text), HISTORIES[-1])
    return [_row(renderer, text, history, repeats) for history in HISTORIES]


def _row(renderer: Renderer, text: Text, history: int, repeats: int) -> dict[str, float]:
    """Of as many turns of one conversation as stay within a tenth of the history, and of as many as that takes."""
    turns = max(1, min(repeats, history // (10 * TURN_TOKENS)))
    times: dict[str, list[float]] = {}
    measured = []
    for _ in range(math.ceil(repeats / turns)):
        conversation = _reach(Conversation(renderer, text), history - TURN_TOKENS * turns // 2)
        conversation.times.clear()
        for _ in range(turns):
            measured.append(conversation.tokens)
            conversation.turn()
        for phase, found in conversation.times.items():
            times.setdefault(phase, []).extend(found)
    least = {f"{phase}_ms": round(min(found), 3) for phase, found in times.items()}
    return {"history_tokens": history, "measured_around": round(statistics.mean(measured)), **least}


def _reach(conversation: Conversation, tokens: int) -> Conversation:
    while conversation.tokens < tokens:
        conversation.turn()
    return conversation
