"""Running commands inside sandboxes: fork into the namespaces, feed, capture, reap, report."""

# The spawner stays small: pathlib is a megabyte and milliseconds.
# ruff: noqa: PTH102, PTH123

import contextlib
import functools
import os
import selectors
import time
from collections.abc import Callable
from typing import Any

from agentic.sandbox.local.spawner import enter, wire
from agentic.sandbox.local.spawner.loop import CHUNK_BYTES, Channel, Loop
from agentic.sandbox.local.spawner.output import Capture
from agentic.sandbox.local.spawner.processes import RunningCommand, RunningSandbox, has_others, remove_cgroup

LAST_READS = 64
"""Chunks read after a command's end, at most: what it wrote fits into a pipe, but a background process may write on."""

Ends = tuple[int, int]


class Commands:
    """All commands of all sandboxes."""

    def __init__(
        self, loop: Loop, channel: Channel, is_rootless: bool, ended: Callable[[RunningSandbox], None]
    ) -> None:
        self._loop = loop
        self._is_rootless = is_rootless
        self._channel = channel
        self._ended = ended
        self._null = os.open("/dev/null", os.O_RDONLY)
        self._own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
        with open("/proc/sys/kernel/cap_last_cap") as handle:
            self._last_capability = int(handle.read())

    def launch(self, sandbox: RunningSandbox, request: dict[str, Any], body: bytes, passed: dict[str, int]) -> None:
        """Start a command; `passed` holds descriptors of the owner to use in place of pipes. Raises OSError when the
        sandbox cannot be entered."""
        request["last_capability"] = self._last_capability
        cgroup, cgroups = make_command_cgroup(sandbox)
        pipes: dict[str, Ends] = {name: os.pipe() for name in ("stdout", "stderr", "errors")}
        if body:
            pipes["stdin"] = os.pipe()
        stdin = passed.get("stdin", pipes["stdin"][0] if body else self._null)
        theirs = (stdin, passed.get("stdout", pipes["stdout"][1]), pipes["stderr"][1])
        try:
            errors = pipes["errors"][1]
            pid = self._fork_into(
                sandbox, lambda: enter.become_command(request, sandbox.init_pidfd, cgroups, theirs, errors), errors
            )
        except OSError:
            for ends in pipes.values():
                os.close(ends[0])
                os.close(ends[1])
            if cgroup is not None:
                remove_cgroup(cgroup)
            raise
        for name, ends in pipes.items():
            os.close(ends[0 if name == "stdin" else 1])
        command = self._register(sandbox, request, pid, cgroup, pipes)
        if body:
            self._feed(command, pipes["stdin"][1], body)

    def kill_all_in(self, sandbox: RunningSandbox) -> bool:
        """Kill every process but process 1; True when none is left, so that a caller repeats it until then. The wait is
        for a child that makes two system calls. Zombies count for the kernel's answer, so that it alone is no proof."""
        outside = os.fstat(self._own_pid_namespace).st_ino
        pid = self._fork_into(sandbox, lambda: enter.become_killer(outside), self._null)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        is_empty = code == enter.NOTHING_LEFT_EXIT_CODE or not has_others(sandbox.init_pid)
        return is_empty and not sandbox.commands

    def _fork_into(self, sandbox: RunningSandbox, become: Callable[[], object], errors: int) -> int:
        """Fork a child that is born in the sandbox's process namespace, and is our own child all the same."""
        if self._is_rootless:
            return fork_through_waiter(sandbox.init_pidfd, become, errors)
        os.setns(sandbox.init_pidfd, os.CLONE_NEWPID)
        try:
            pid = os.fork()
            if pid == 0:
                become()
        finally:
            os.setns(self._own_pid_namespace, os.CLONE_NEWPID)
        return pid

    def _register(
        self, sandbox: RunningSandbox, request: dict[str, Any], pid: int, cgroup: str | None, pipes: dict[str, Ends]
    ) -> RunningCommand:
        stdout, stderr = Capture(request["output_limit"]), Capture(request["output_limit"])
        command = RunningCommand(
            request_id=request["id"],
            sandbox=sandbox,
            pid=pid,
            pidfd=os.pidfd_open(pid),
            cgroup=cgroup,
            stdout=stdout,
            stderr=stderr,
            outputs={pipes["stdout"][0]: stdout, pipes["stderr"][0]: stderr},
            errors=pipes["errors"][0],
            deadline=time.monotonic() + request["timeout"],
        )
        sandbox.commands[command.request_id] = command
        for fd in command.outputs:
            os.set_blocking(fd, False)
            self._loop.watch(fd, functools.partial(self._read, command, fd))
        os.set_blocking(command.errors, False)
        self._loop.watch(command.pidfd, lambda: self._on_exit(command))
        return command

    def _feed(self, command: RunningCommand, fd: int, body: bytes) -> None:
        command.stdin, command.to_write = fd, memoryview(body)
        os.set_blocking(fd, False)
        self._loop.watch(fd, lambda: self._write(command), selectors.EVENT_WRITE)

    def _write(self, command: RunningCommand) -> None:
        try:
            command.to_write = command.to_write[os.write(command.stdin, command.to_write[:CHUNK_BYTES]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            command.to_write = memoryview(b"")
        if not command.to_write:
            self._loop.close(command.stdin)
            command.stdin = -1

    def _read(self, command: RunningCommand, fd: int) -> bool:
        """Take one chunk; whether there may be more at once."""
        try:
            chunk = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if chunk:
            command.outputs[fd].feed(chunk)
            return True
        self._loop.close(fd)
        del command.outputs[fd]
        return False

    def _on_exit(self, command: RunningCommand) -> None:
        _, status = os.waitpid(command.pid, 0)
        self._loop.close(command.pidfd)
        if command.stdin >= 0:
            self._loop.close(command.stdin)
        for fd in list(command.outputs):
            reads = 0
            while reads < LAST_READS and self._read(command, fd):
                reads += 1
        sandbox = command.sandbox
        del sandbox.commands[command.request_id]
        if command.cgroup is not None and not remove_cgroup(command.cgroup):
            sandbox.leftover_cgroups.append(command.cgroup)
        for fd in command.outputs:
            self._drain(sandbox, fd)
        self._report(command, os.waitstatus_to_exitcode(status))
        self._ended(sandbox)

    def _report(self, command: RunningCommand, code: int) -> None:
        failure = read_all(command.errors)
        if failure or not command.sandbox.is_alive():
            reason = failure or "its process 1 is dead"
            self._channel.reply({"id": command.request_id, "event": wire.LOST, "reason": reason})
            return
        stdout, stderr = command.stdout.value(), command.stderr.value()
        header = {
            "id": command.request_id,
            "event": wire.DONE,
            "code": code if code >= 0 else 128 - code,
            "timed_out": command.timed_out,
            "truncated": command.stdout.is_truncated or command.stderr.is_truncated,
            "stdout": len(stdout),
        }
        self._channel.reply(header, stdout + stderr)

    def _drain(self, sandbox: RunningSandbox, fd: int) -> None:
        """Keep reading for a background process that still holds the pipe, and throw it away."""
        sandbox.drains.add(fd)

        def read() -> None:
            with contextlib.suppress(BlockingIOError):
                if not os.read(fd, CHUNK_BYTES):
                    self._loop.close(fd)
                    sandbox.drains.discard(fd)

        self._loop.watch(fd, read)


def fork_through_waiter(init_pidfd: int, become: Callable[[], object], errors: int) -> int:
    """The same by two forks: without root, nobody may come back to the process namespace that he has left. The child
    in between stays outside, waits, and ends with the command's code."""
    waiter = os.fork()
    if waiter != 0:
        return waiter
    try:
        os.setns(init_pidfd, os.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            become()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os._exit(code if code >= 0 else 128 - code)
    except OSError as error:
        os.write(errors, str(error).encode())
    finally:
        os._exit(1)


def make_command_cgroup(sandbox: RunningSandbox) -> tuple[str | None, list[str]]:
    """A cgroup of the command's own, and all that the command joins."""
    parent = sandbox.request["command_cgroup"]
    if parent is None:
        return None, []
    sandbox.leftover_cgroups = [folder for folder in sandbox.leftover_cgroups if not remove_cgroup(folder)]
    sandbox.sequence += 1
    folder = f"{parent}/c{sandbox.sequence}"
    os.mkdir(folder)
    return folder, [folder, *(joined for joined in sandbox.request["cgroups"] if joined != parent)]


def read_all(fd: int) -> str:
    """What a pipe holds; closes it."""
    try:
        return os.read(fd, 4096).decode(errors="replace")
    except BlockingIOError:
        return ""
    finally:
        os.close(fd)
