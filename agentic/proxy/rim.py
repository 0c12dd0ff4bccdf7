"""What every process that agents reach does with their requests: reads keys, and waits for nobody without end.

The process that owns a session and one that only passes its calls on are the same to an agent; so both check keys
before anything of the body is read, and bound how long a body may take to come and an answer to be taken.
"""

import asyncio
from collections.abc import Awaitable

from aiohttp import web

from .errors import HttpRefused, Unauthorized
from .keys import KeyClaims, SessionKeys


def bearer(http: web.Request) -> str:
    """The key that a request carries, empty if none."""
    scheme, _, key = http.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else http.headers.get("x-api-key", "")


def check_key(http: web.Request, keys: SessionKeys) -> KeyClaims:
    """What the request's key opens; Unauthorized if that is not the session that the path names."""
    claims = keys.check(bearer(http))
    if http.match_info.get("session", claims.session_id) != claims.session_id:
        raise Unauthorized("this key does not open this session: send the session's own key")
    return claims


async def read_within(http: web.Request, seconds: float) -> bytes:
    """The request's body; 408 if it takes longer."""
    try:
        async with asyncio.timeout(seconds):
            return await http.read()
    except TimeoutError:
        raise HttpRefused(
            408, "request_timeout", f"the body did not come within {seconds:g} s: send it again"
        ) from None


async def write_within(http: web.Request, writing: Awaitable[None], seconds: float) -> None:
    """Await a write to the client; one that takes nothing for so long is taken for gone."""
    try:
        async with asyncio.timeout(seconds):
            await writing
    except TimeoutError:
        if http.transport is not None:
            http.transport.abort()
        raise ConnectionResetError("the client takes nothing") from None
