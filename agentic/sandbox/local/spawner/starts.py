"""Starting sandboxes: fork, id maps, and the wait until process 1 says that it is up."""

# The spawner stays small: pathlib is a megabyte and milliseconds.
# ruff: noqa: PTH123

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentic.sandbox.local.spawner import enter, wire
from agentic.sandbox.local.spawner.loop import NEVER, Channel, Loop
from agentic.sandbox.local.spawner.processes import RunningSandbox

START_TIMEOUT_SECONDS = 30.0
NAMESPACE_IDS = 65536
"""How many user and group ids a sandbox has when we run as root."""

PIPES = ("ask", "answer", "info", "ready", "errors")
WRITTEN_BY_US = ("answer",)


@dataclass
class Starting:
    """A sandbox that is not up yet."""

    request_id: int
    sandbox: RunningSandbox
    pipes: dict[str, int]
    deadline: float
    message: bytes = b""


class Starts:
    """All sandboxes that are not up yet."""

    def __init__(self, loop: Loop, channel: Channel, started: Callable[[RunningSandbox], None]) -> None:
        self._loop = loop
        self._channel = channel
        self._started = started
        self._starting: dict[str, Starting] = {}

    def find(self, name: str) -> RunningSandbox | None:
        """A sandbox that is not up yet."""
        starting = self._starting.get(name)
        return starting.sandbox if starting else None

    def next_deadline(self) -> float:
        return min((starting.deadline for starting in self._starting.values()), default=NEVER)

    def enforce_deadlines(self, now: float) -> None:
        """Kill what takes too long; its end is reported when its monitor exits."""
        for starting in self._starting.values():
            if starting.deadline <= now:
                starting.deadline = NEVER
                starting.message += b"it did not start in time "
                starting.sandbox.kill()

    def kill_all(self) -> None:
        for starting in self._starting.values():
            starting.sandbox.kill()

    def start(self, request: dict[str, Any]) -> RunningSandbox:
        """Fork; the reply comes when process 1 is up, or when the monitor exits before."""
        pipes = {name: os.pipe() for name in PIPES}
        pid = os.fork()
        if pid == 0:
            enter.become_sandbox(request, **{n: ends[0 if n in WRITTEN_BY_US else 1] for n, ends in pipes.items()})
        for name, ends in pipes.items():
            os.close(ends[0 if name in WRITTEN_BY_US else 1])
        ours = {name: ends[1 if name in WRITTEN_BY_US else 0] for name, ends in pipes.items()}
        sandbox = RunningSandbox(request["sandbox"], request, pid, os.pidfd_open(pid))
        starting = Starting(request["id"], sandbox, ours, time.monotonic() + START_TIMEOUT_SECONDS)
        self._starting[sandbox.name] = starting
        self._loop.watch(ours["ask"], lambda: self._on_ask(starting))
        self._loop.watch(ours["ready"], lambda: self._on_ready(starting))
        return sandbox

    def _on_ask(self, starting: Starting) -> None:
        is_asking = os.read(starting.pipes["ask"], 1) == b"m"
        self._loop.forget(starting.pipes["ask"])
        if not is_asking:
            return
        try:
            write_id_maps(starting.sandbox.monitor_pid, starting.sandbox.request["owner"])
            answer = b"m"
        except OSError as error:
            starting.message += f"id maps: {error} ".encode()
            answer = b"x"
        with contextlib.suppress(BrokenPipeError):
            os.write(starting.pipes["answer"], answer)

    def _on_ready(self, starting: Starting) -> None:
        is_up = bool(os.read(starting.pipes["ready"], 1))
        self._loop.forget(starting.pipes["ready"])
        if not is_up:
            return
        sandbox = starting.sandbox
        sandbox.init_pid = int(json.loads(os.read(starting.pipes["info"], 4096))["child-pid"])
        sandbox.init_pidfd = os.pidfd_open(sandbox.init_pid)
        self._finish(starting)
        self._started(sandbox)
        self._channel.reply({"id": starting.request_id, "event": wire.STARTED, "pid": sandbox.init_pid})

    def fail_if_starting(self, sandbox: RunningSandbox) -> bool:
        """The monitor is gone: report a start that failed, if it was one."""
        starting = self._starting.get(sandbox.name)
        if starting is None:
            return False
        os.set_blocking(starting.pipes["errors"], False)
        with contextlib.suppress(BlockingIOError):
            starting.message += os.read(starting.pipes["errors"], 4096)
        self._finish(starting)
        reason = " ".join(starting.message.decode(errors="replace").split()) or "bubblewrap ended without a word"
        self._channel.reply({"id": starting.request_id, "event": wire.FAILED, "reason": reason})
        for request_id in sandbox.release_ids:
            self._channel.reply({"id": request_id, "event": wire.RELEASED})
        return True

    def _finish(self, starting: Starting) -> None:
        del self._starting[starting.sandbox.name]
        for fd in starting.pipes.values():
            self._loop.close(fd)


def write_id_maps(pid: int, first_id: int | None) -> None:
    """Give a user namespace its ids: a range of unprivileged ones, or only our own when we are no root ourselves."""
    if first_id is None:
        write_file(f"/proc/{pid}/setgroups", "deny")
        line = "0 0 1"
    else:
        line = f"0 {first_id} {NAMESPACE_IDS}"
    write_file(f"/proc/{pid}/gid_map", line)
    write_file(f"/proc/{pid}/uid_map", line)


def write_file(path: str, text: str) -> None:
    with open(path, "w") as handle:
        handle.write(text)
