"""What a worker does with a request before its own handlers see it: answer it, forward it, or ask all workers.

The session is read from the path, from the bearer key, or, when one is opened, from the body. A call of an agent is
forwarded only with a key that opens its session, which is seen before anything of its body is read; whether the key is
of this session of the name, and all else, the owner checks. A forwarded request arrives on a private socket, behind
which there is no routing, so it cannot travel on.
"""

import asyncio
import json
from collections.abc import Callable, Sequence

from aiohttp import web
from aiohttp.typedefs import Handler

from ..errors import HttpRefused, InvalidRequest, RequestRefused, WorkerUnavailable
from ..keys import SessionKeys, session_of_key
from ..rim import bearer, check_key
from .forwarding import Answer, Peers, Plane
from .merging import merge_json, merge_metrics
from .ownership import owner_of

type Merge = Callable[[list[bytes]], bytes]

HEALTH = "/health"
"""Of this process, whoever asks."""
EVERYBODY: dict[tuple[str, str], Merge] = {
    ("GET", "/sessions"): merge_json,
    ("GET", "/metrics"): merge_metrics,
    ("POST", "/pause"): merge_json,
    ("POST", "/resume"): merge_json,
}
"""Control calls that concern every worker, and how their answers become one."""


class Router:
    """Routing of one worker."""

    def __init__(self, peers: Peers, slot: int, keys: SessionKeys) -> None:
        self._peers = peers
        self._slot = slot
        self._keys = keys

    @web.middleware
    async def agent(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A call of an agent goes to the session's owner."""
        if request.path == HEALTH:
            return await handler(request)
        session_id = request.match_info.get("session") or session_of_key(bearer(request))
        if self._owner(session_id) != self._slot:
            check_key(request, self._keys)
        return await self._route(request, handler, "agent", session_id)

    @web.middleware
    async def control(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A control call goes to the session's owner, or to everybody."""
        merge = EVERYBODY.get((request.method, request.path))
        if merge is not None:
            return await self._ask_everybody(request, merge)
        session_id = request.match_info.get("session")
        if (request.method, request.path) == ("POST", "/sessions"):
            session_id = session_in(await request.read())
        return await self._route(request, handler, "control", session_id)

    async def _route(
        self, request: web.Request, handler: Handler, plane: Plane, session_id: str | None
    ) -> web.StreamResponse:
        owner = self._owner(session_id)
        if owner == self._slot:
            return await handler(request)
        return await self._peers.forward(request, plane, owner)

    def _owner(self, session_id: str | None) -> int:
        return self._slot if session_id is None else owner_of(session_id, self._peers.slots)

    async def _ask_everybody(self, http: web.Request, merge: Merge) -> web.StreamResponse:
        answers = await asyncio.gather(*(self._ask(http, slot) for slot in range(self._peers.slots)))
        first = next((answer for answer in answers if answer.status != 200), None)
        if first is None:
            body = merge([answer.body for answer in answers])
            return web.Response(body=body, headers={"Content-Type": answers[0].content_type})
        if any(answer.status == 200 for answer in answers):
            raise partial_refusal(first.status, answers)
        return web.Response(body=first.body, status=first.status, headers={"Content-Type": first.content_type})

    async def _ask(self, http: web.Request, slot: int) -> Answer:
        try:
            return await self._peers.ask(http, "control", slot)
        except WorkerUnavailable as error:
            body = json.dumps({"error": {"message": str(error)}}).encode()
            return Answer(error.status, "application/json", body)


def partial_refusal(status: int, answers: Sequence[Answer]) -> RequestRefused:
    """What the control side is told when only some workers have done what all were asked for."""
    reasons = [f"slot {slot}: {_reason(answer)}" for slot, answer in enumerate(answers) if answer.status != 200]
    done = ", ".join(str(slot) for slot, answer in enumerate(answers) if answer.status == 200)
    message = f"{'; '.join(reasons)}; done by slot {done}: ask again"
    if any(answer.status == WorkerUnavailable.status for answer in answers):
        return WorkerUnavailable(message)
    return HttpRefused(status, "partly_refused", message)


def _reason(answer: Answer) -> str:
    try:
        return str(json.loads(answer.body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"answered {answer.status}"


def session_in(body: bytes) -> str:
    """The name of the session that a body asks to open."""
    try:
        found = json.loads(body)["session_id"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest("session_id: is missing: name the session", "session_id") from error
    if not isinstance(found, str):
        raise InvalidRequest(f"session_id: {found!r} is no text: name the session", "session_id")
    return found
