"""The spawner: requests in, processes watched, results out. One thread, nothing blocks.

It lives outside every sandbox, so nothing inside can stop it, read it, or speak for it: an exit code is what the kernel
reports to the parent of the command. It ends with its owner (a pidfd watches it, besides the closed socket), bubblewrap
ends with it, and all inside with bubblewrap.
"""

import os
import signal
import socket
import sys
import time
from typing import Any

from agentic.sandbox.local.spawner import syscalls, wire
from agentic.sandbox.local.spawner.commands import Commands
from agentic.sandbox.local.spawner.loop import NEVER, Channel, Loop
from agentic.sandbox.local.spawner.processes import RunningCommand, RunningSandbox, remove_cgroup
from agentic.sandbox.local.spawner.starts import Starts, write_file

ROOTLESS_STAGE = "rootless"
"""Second argument of the process when it has moved into a user namespace of its own."""


class Server:
    """Which sandboxes exist, and what happens when one ends."""

    def __init__(self, connection: socket.socket, is_rootless: bool) -> None:
        self._loop = Loop()
        self._channel = Channel(connection, self._loop, self._handle)
        self._sandboxes: dict[str, RunningSandbox] = {}
        self._starts = Starts(self._loop, self._channel, self._on_started)
        self._commands = Commands(self._loop, self._channel, is_rootless, self._bury_if_dead)

    def run(self, owner: int) -> None:
        """Serve until the owner is gone, then kill everything."""
        self._loop.watch(os.pidfd_open(owner), self._loop.stop)
        while not self._loop.is_done:
            deadline = min((command.deadline for command in self._running_commands()), default=NEVER)
            self._loop.run_once(min(deadline, self._starts.next_deadline()))
            now = time.monotonic()
            self._starts.enforce_deadlines(now)
            # Asked again: what ended in this round owns neither its process id nor its cgroup any more.
            for command in self._running_commands():
                if command.deadline <= now and not command.has_ended():
                    command.time_out()
        self._starts.kill_all()
        for sandbox in self._sandboxes.values():
            sandbox.kill()

    def _running_commands(self) -> list[RunningCommand]:
        return [command for sandbox in self._sandboxes.values() for command in sandbox.commands.values()]

    def _handle(self, request: dict[str, Any], body: bytes) -> None:
        operation = request["op"]
        if operation == wire.START:
            sandbox = self._starts.start(request)
            self._loop.watch(sandbox.monitor_pidfd, lambda: self._on_monitor_exit(sandbox))
        elif operation == wire.EXEC:
            self._exec(request, body)
        elif operation == wire.CANCEL:
            self._cancel(request)
        elif operation == wire.END:
            self._end_commands(request)
        elif operation == wire.RELEASE:
            self._release(request)
        else:
            raise ValueError(f"unknown operation {operation!r}")

    def _on_started(self, sandbox: RunningSandbox) -> None:
        self._sandboxes[sandbox.name] = sandbox

    def _exec(self, request: dict[str, Any], body: bytes) -> None:
        passed = {name: self._channel.take_fd() for name in request["fds"]}
        sandbox = self._sandboxes.get(request["sandbox"])
        try:
            if sandbox is None or sandbox.release_ids:
                raise ProcessLookupError("it does not run")
            self._commands.launch(sandbox, request, body, passed)
        except OSError as error:
            self._channel.reply({"id": request["id"], "event": wire.LOST, "reason": str(error)})
        finally:
            for fd in passed.values():
                os.close(fd)

    def _cancel(self, request: dict[str, Any]) -> None:
        sandbox = self._sandboxes.get(request["sandbox"])
        command = sandbox.commands.get(request["command"]) if sandbox else None
        if command is not None:
            command.kill()

    def _end_commands(self, request: dict[str, Any]) -> None:
        sandbox = self._sandboxes.get(request["sandbox"])
        try:
            if sandbox is None or sandbox.release_ids or not sandbox.is_alive():
                raise ProcessLookupError("it does not run")
            is_clear = self._commands.kill_all_in(sandbox)
        except OSError as error:
            self._channel.reply({"id": request["id"], "event": wire.LOST, "reason": str(error)})
            return
        self._channel.reply({"id": request["id"], "event": wire.ENDED, "is_clear": is_clear})

    def _release(self, request: dict[str, Any]) -> None:
        sandbox = self._sandboxes.get(request["sandbox"]) or self._starts.find(request["sandbox"])
        if sandbox is None:
            self._channel.reply({"id": request["id"], "event": wire.RELEASED})
            return
        sandbox.release_ids.append(request["id"])
        sandbox.kill()

    def _on_monitor_exit(self, sandbox: RunningSandbox) -> None:
        os.waitpid(sandbox.monitor_pid, 0)
        self._loop.close(sandbox.monitor_pidfd)
        sandbox.has_monitor = False
        if not self._starts.fail_if_starting(sandbox):
            sandbox.kill()
            self._bury_if_dead(sandbox)

    def _bury_if_dead(self, sandbox: RunningSandbox) -> None:
        """When monitor and commands are gone, free what is left and tell whoever waits."""
        if sandbox.has_monitor or sandbox.commands:
            return
        os.close(sandbox.init_pidfd)
        for fd in sandbox.drains:
            self._loop.close(fd)
        for folder in sandbox.leftover_cgroups:
            remove_cgroup(folder)
        del self._sandboxes[sandbox.name]
        if not sandbox.release_ids:
            self._channel.reply({"event": wire.LOST, "sandbox": sandbox.name})
        for request_id in sandbox.release_ids:
            self._channel.reply({"id": request_id, "event": wire.RELEASED})


def enter_rootless_namespace(arguments: list[str]) -> None:
    """Without root: become root of a user namespace of our own, which may mount. The program is started again in it,
    so that its /proc entries belong to that root and id maps can be written through them."""
    uid, gid = os.geteuid(), os.getegid()
    os.unshare(os.CLONE_NEWUSER)
    write_file("/proc/self/setgroups", "deny")
    write_file("/proc/self/uid_map", f"0 {uid} 1")
    write_file("/proc/self/gid_map", f"0 {gid} 1")
    os.execv(sys.executable, [*arguments, ROOTLESS_STAGE])


def main(connection_fd: int, owner: int, is_rootless: bool) -> None:
    """Entry point of the process; see `client.py` for how it is started."""
    if is_rootless and sys.argv[-1] != ROOTLESS_STAGE:
        os.set_inheritable(connection_fd, True)
        enter_rootless_namespace(sys.orig_argv)
    os.set_inheritable(connection_fd, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    Server(socket.socket(fileno=connection_fd), is_rootless).run(owner)
