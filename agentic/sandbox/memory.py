"""The deterministic double of a sandbox: files in a dictionary, a shell of a few words, time that only `sleep` moves.

Ships with the package so that rollouts can be tried without a machine that can isolate anything. What it fakes: one
file system per sandbox, made of the rootfs's layers above the base; the commands `echo`, `printf`, `cat`, `pwd`, `cd`,
`env`, `mkdir`, `rm`, `chmod`, `test`, `sleep`, `exit`, `true`, `false`, `yes` and `id`, joined by `;` and `&&`, with
`>` and `>>`; what `&` puts in the background comes to run when the next command begins. Other programs are functions
given to the provider. `lose` plays the death of a sandbox.
"""

import contextlib
import math
import posixpath
import shlex
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agentic.sandbox.base import TIMEOUT_EXIT_CODE, Command, ExecResult, Sandbox, SandboxSpec
from agentic.sandbox.errors import SandboxLostError, SandboxStartError, SandboxTransferError
from agentic.sandbox.local.spawner.output import Capture
from agentic.sandbox.settings import SandboxLimits

YES_BYTES = 4 * 1024 * 1024
"""What `yes` writes before it gets bored."""


@dataclass(frozen=True, slots=True)
class Node:
    """A file, a folder or a symbolic link."""

    mode: int
    """With the kind, as in `stat`."""
    content: bytes = b""
    """Of a link: where it leads."""


class Finished(Exception):
    """The command is over before its last word."""

    def __init__(self, code: int, timed_out: bool = False) -> None:
        self.code, self.timed_out = code, timed_out


@dataclass(slots=True)
class Invocation:
    """A command while it runs; what a program given to the provider sees."""

    sandbox: "MemorySandbox"
    cwd: str
    env: dict[str, str]
    stdin: bytes
    user: str
    seconds_left: float
    stdout: Capture
    stderr: Capture

    def fail(self, message: str, code: int = 1) -> int:
        self.stderr.feed(message.encode() + b"\n")
        return code

    def path(self, name: str) -> str:
        return posixpath.normpath(posixpath.join(self.cwd, name))


Program = Callable[[Invocation, list[str]], int]
"""Given the words, its own name first; the exit code."""


class MemoryProvider:
    """All doubles of a test."""

    def __init__(self, limits: SandboxLimits | None = None, programs: Mapping[str, Program] | None = None) -> None:
        self.limits = limits or SandboxLimits()
        self.programs = {**BUILT_IN, **(programs or {})}
        self.sandboxes: dict[str, MemorySandbox] = {}

    async def acquire(self, spec: SandboxSpec) -> Sandbox:
        name = f"{spec.run_id}/{spec.sandbox_id}"
        if name in self.sandboxes:
            raise SandboxStartError(f"sandbox {name} runs already: give each its own id")
        sandbox = MemorySandbox(self, spec)
        self.sandboxes[name] = sandbox
        return sandbox

    async def sweep(self, run_id: str) -> int:
        return 0

    async def close(self) -> None:
        for sandbox in list(self.sandboxes.values()):
            await sandbox.release()


class MemorySandbox:
    """One double."""

    def __init__(self, provider: MemoryProvider, spec: SandboxSpec) -> None:
        self.spec = spec
        self.files: dict[str, Node] = {"/": Node(stat.S_IFDIR | 0o755)}
        self._provider = provider
        self._background: list[tuple[Invocation, list[str]]] = []
        self._is_gone = False
        for layer in reversed(spec.rootfs.layers[:-1] if spec.rootfs.binds else spec.rootfs.layers):
            self._take(layer, "/")
        self.make_folder(self._workdir)

    @property
    def _workdir(self) -> str:
        return self.spec.workdir or self.spec.rootfs.config.workdir

    def lose(self) -> None:
        """Die, as a sandbox whose machine is gone."""
        self._is_gone = True

    def _require_alive(self) -> None:
        if self._is_gone:
            raise SandboxLostError(f"sandbox {self.spec.run_id}/{self.spec.sandbox_id} is lost")

    def make_folder(self, path: str) -> None:
        while path not in self.files:
            self.files[path] = Node(stat.S_IFDIR | 0o755)
            path = posixpath.dirname(path)

    def write(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self.make_folder(posixpath.dirname(path))
        self.files[path] = Node(stat.S_IFREG | mode, content)

    def remove(self, path: str) -> None:
        for name in [name for name in self.files if name == path or name.startswith(path.rstrip("/") + "/")]:
            del self.files[name]

    async def exec(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        user: str | int | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        self._require_alive()
        self._catch_up()
        limits, config = self._provider.limits, self.spec.rootfs.config
        invocation = Invocation(
            sandbox=self,
            cwd=posixpath.join(self._workdir, cwd or ""),
            env={**config.env, **self.spec.env, **(env or {})},
            stdin=stdin,
            user=str(config.user if user is None else user),
            seconds_left=limits.command_timeout_seconds if timeout_seconds is None else timeout_seconds,
            stdout=Capture(limits.output_limit_bytes),
            stderr=Capture(limits.output_limit_bytes),
        )
        timed_out = False
        try:
            code = self._run(invocation, command)
        except Finished as end:
            code, timed_out = end.code, end.timed_out
        truncated = invocation.stdout.is_truncated or invocation.stderr.is_truncated
        return ExecResult(code, invocation.stdout.value(), invocation.stderr.value(), timed_out, truncated)

    def _run(self, invocation: Invocation, command: Command) -> int:
        cwd = self.files.get(posixpath.normpath(invocation.cwd))
        if cwd is None or not stat.S_ISDIR(cwd.mode):
            return invocation.fail(f"sandbox: cannot start in {invocation.cwd}: No such file or directory", 126)
        if not isinstance(command, str):
            return self._run_program(invocation, list(command))
        lexer = shlex.shlex(command, posix=True, punctuation_chars=";&>\n")
        lexer.whitespace, lexer.whitespace_split = " \t", True
        code, tokens = 0, list[str]()
        for token in [*lexer, ";"]:
            if token not in (";", "&", "\n"):
                tokens.append(token)
                continue
            if token == "&":
                self._background.append((self._detached(invocation), tokens))
                code = 0
            elif tokens:
                code = self._run_until_failure(invocation, tokens)
            tokens = []
        return code

    def _run_until_failure(self, invocation: Invocation, tokens: list[str]) -> int:
        """Commands joined by `&&`."""
        code, words = 0, list[str]()
        for token in [*tokens, "&&"]:
            if token != "&&":
                words.append(invocation.env.get(token[1:], "") if token.startswith("$") else token)
                continue
            if words and code == 0:
                code = self._run_redirected(invocation, words)
            words = []
        return code

    def _detached(self, invocation: Invocation) -> Invocation:
        """The same place and names, with time without end and output that nobody reads."""
        limit = self._provider.limits.output_limit_bytes
        return replace(invocation, stdin=b"", seconds_left=math.inf, stdout=Capture(limit), stderr=Capture(limit))

    def _catch_up(self) -> None:
        """Run what earlier commands left in the background."""
        waiting, self._background = self._background, []
        for invocation, tokens in waiting:
            with contextlib.suppress(Finished):
                self._run_until_failure(invocation, tokens)

    async def end_commands(self) -> None:
        self._require_alive()
        self._background.clear()

    def _run_redirected(self, invocation: Invocation, words: list[str]) -> int:
        if len(words) < 3 or words[-2] not in (">", ">>"):
            return self._run_program(invocation, words)
        path, kept = invocation.path(words[-1]), invocation.stdout
        invocation.stdout = Capture(self._provider.limits.output_limit_bytes)
        code = self._run_program(invocation, words[:-2])
        before = self.files[path].content if words[-2] == ">>" and path in self.files else b""
        self.write(path, before + invocation.stdout.value())
        invocation.stdout = kept
        return code

    def _run_program(self, invocation: Invocation, words: list[str]) -> int:
        program = self._provider.programs.get(posixpath.basename(words[0]))
        if program is None:
            return invocation.fail(f"{words[0]}: command not found", 127)
        return program(invocation, words)

    async def upload(self, source: Path, target: str) -> None:
        self._require_alive()
        if not source.exists():
            raise SandboxTransferError(f"cannot upload {source}: no such file or folder")
        path = posixpath.join(self._workdir, target)
        if source.is_dir():
            self.make_folder(path)
            self._take(source, path)
        else:
            self.write(path, source.read_bytes(), stat.S_IMODE(source.stat().st_mode))

    def _take(self, folder: Path, target: str) -> None:
        for path in sorted(folder.rglob("*")):
            name = posixpath.join(target, path.relative_to(folder).as_posix())
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                self.files[name] = Node(mode, str(path.readlink()).encode())
            elif stat.S_ISDIR(mode):
                self.files[name] = Node(mode)
            elif stat.S_ISREG(mode):
                self.files[name] = Node(mode, path.read_bytes())

    async def download(self, source: str, target: Path) -> None:
        self._require_alive()
        path = posixpath.normpath(posixpath.join(self._workdir, source))
        if path not in self.files:
            raise SandboxTransferError(f"cannot download {source}: no such file or folder")
        for name in sorted(name for name in self.files if name == path or name.startswith(path.rstrip("/") + "/")):
            give(self.files[name], target / name[len(path) :].lstrip("/") if name != path else target)

    async def release(self) -> None:
        self._is_gone = True
        self._provider.sandboxes.pop(f"{self.spec.run_id}/{self.spec.sandbox_id}", None)


def give(node: Node, target: Path) -> None:
    """Write a node to the host."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISDIR(node.mode):
        target.mkdir(exist_ok=True)
    elif stat.S_ISLNK(node.mode):
        target.unlink(missing_ok=True)
        target.symlink_to(node.content.decode())
        return
    else:
        target.write_bytes(node.content)
    target.chmod(stat.S_IMODE(node.mode))


def _echo(invocation: Invocation, words: list[str]) -> int:
    invocation.stdout.feed((" ".join(words[1:]) + "\n").encode())
    return 0


def _printf(invocation: Invocation, words: list[str]) -> int:
    invocation.stdout.feed(words[1].encode())
    return 0


def _cat(invocation: Invocation, words: list[str]) -> int:
    for name in words[1:] or ["-"]:
        node = (
            Node(stat.S_IFREG, invocation.stdin) if name == "-" else invocation.sandbox.files.get(invocation.path(name))
        )
        if node is None or not stat.S_ISREG(node.mode):
            return invocation.fail(f"cat: {name}: No such file or directory")
        invocation.stdout.feed(node.content)
    return 0


def _cd(invocation: Invocation, words: list[str]) -> int:
    path = invocation.path(words[1])
    if path not in invocation.sandbox.files:
        return invocation.fail(f"cd: {words[1]}: No such file or directory")
    invocation.cwd = path
    return 0


def _env(invocation: Invocation, words: list[str]) -> int:
    invocation.stdout.feed("".join(f"{name}={value}\n" for name, value in invocation.env.items()).encode())
    return 0


def _mkdir(invocation: Invocation, words: list[str]) -> int:
    for name in words[1:]:
        if not name.startswith("-"):
            invocation.sandbox.make_folder(invocation.path(name))
    return 0


def _rm(invocation: Invocation, words: list[str]) -> int:
    for name in words[1:]:
        if not name.startswith("-"):
            invocation.sandbox.remove(invocation.path(name))
    return 0


def _chmod(invocation: Invocation, words: list[str]) -> int:
    files = invocation.sandbox.files
    for name in words[2:]:
        path = invocation.path(name)
        if path not in files:
            return invocation.fail(f"chmod: {name}: No such file or directory")
        files[path] = Node(stat.S_IFMT(files[path].mode) | int(words[1], 8), files[path].content)
    return 0


def _test(invocation: Invocation, words: list[str]) -> int:
    kinds = {"-e": lambda mode: True, "-d": stat.S_ISDIR, "-f": stat.S_ISREG, "-L": stat.S_ISLNK}
    node = invocation.sandbox.files.get(invocation.path(words[2]))
    return 0 if node is not None and kinds[words[1]](node.mode) else 1


def _sleep(invocation: Invocation, words: list[str]) -> int:
    invocation.seconds_left -= float(words[1])
    if invocation.seconds_left <= 0:
        raise Finished(TIMEOUT_EXIT_CODE, timed_out=True)
    return 0


def _exit(invocation: Invocation, words: list[str]) -> int:
    raise Finished(int(words[1]) if len(words) > 1 else 0)


def _yes(invocation: Invocation, words: list[str]) -> int:
    invocation.stdout.feed(b"y\n" * (YES_BYTES // 2))
    return 0


BUILT_IN: Mapping[str, Program] = {
    "echo": _echo,
    "printf": _printf,
    "cat": _cat,
    "cd": _cd,
    "env": _env,
    "mkdir": _mkdir,
    "rm": _rm,
    "chmod": _chmod,
    "test": _test,
    "sleep": _sleep,
    "exit": _exit,
    "yes": _yes,
    "true": lambda invocation, words: 0,
    "false": lambda invocation, words: 1,
    "pwd": lambda invocation, words: _echo(invocation, ["echo", invocation.cwd]),
    "id": lambda invocation, words: _echo(invocation, ["echo", invocation.user]),
}
