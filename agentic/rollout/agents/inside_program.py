"""The agent that runs inside a sandbox: one program of the standard library, shipped there as it is.

Whatever `python3` an image has must run it, so it imports nothing of ours and needs no newer Python than 3.7. What has
to be the same for the agents outside lives here too, and they import it: how a reply becomes a command, what the model
sees of a command's output, what an answer of the session's endpoint means.

`program.py JOB` reads its job from a file and removes that file before it runs any command: from then on the session's
key is in this process's memory alone, on no command line and in no environment. It asks the model over the Unix socket
that is bound into the sandbox, or at the one address that a pod may reach, once per reply and without a retry: a second
request for the same turn could sample twice. It ends when the model submits, when it has used its turns, or when the
model gives no answer; the exit code says which, and the only line that it prints says how many turns it took.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

SUBMIT = "submit"
"""The command that ends the agent's work; it is not run."""

NO_COMMAND = "no command"
"""What the model reads after a reply that held none."""

OVERFLOW_CODE = "context_length_exceeded"
"""The error code of the OpenAI API for a request that no longer fits."""

DONE, CONTEXT_SPENT, NO_ANSWER = 0, 64, 69
"""Exit codes; none that Python, a shell or a signal would give."""

TIMEOUT_EXIT_CODE, NOT_STARTED_EXIT_CODE = 124, 126
"""What a command that ran out of time, or that could not be started, counts as having returned."""

KEPT_BYTES = 256 * 1024
"""Kept of the start of each output stream, and as much of its end; far more than a model reads of it."""

LAST_READ_SECONDS = 0.2
"""How long output is awaited after a command's end: a process in the background may hold the pipe for ever."""

KILL_ROUNDS = 10
"""How often a session is searched for processes that were started since; what still escapes, the sandbox bounds."""

_CHUNK_BYTES = 65536
_FENCE = re.compile(r"```bash\n(.*?)\n```", re.DOTALL)


class ContextSpentError(Exception):
    """The session has no room for the request."""


class NoAnswerError(Exception):
    """Anything else than a completion, or nothing at all."""


class Job(NamedTuple):
    """What the program is told, as a JSON object of these names."""

    socket: str
    """The Unix socket of the proxy, as seen from inside; empty where it is reached at `address`."""
    url_path: str
    """The session's chat completions at the proxy."""
    api_key: str
    model: str
    instruction: str
    max_turns: int
    max_tokens: int
    command_timeout_seconds: float
    output_characters: int
    address: str = ""
    """Host and port of the proxy, where there is no socket."""


def command_of(text: str) -> str | None:
    """The one command in a reply of plain text; None when there is none."""
    match = _FENCE.search(text)
    return match.group(1).strip() or None if match else None


def output_text(output: str, exit_code: int, limit_characters: int) -> str:
    """What the model sees of a command: its output, or one word when there is none."""
    text = output.strip()
    if not text:
        return "error" if exit_code else "ok"
    return cut_middle(text, limit_characters)


def cut_middle(text: str, limit_characters: int) -> str:
    """At most `limit_characters` of text, its middle replaced by a marker that says how much is missing."""
    if len(text) <= limit_characters:
        return text
    # The marker's own length depends on the number in it; 40 characters hold any.
    keep = max(limit_characters - 40, 0)
    head, tail = keep - keep // 2, keep // 2
    marker = f"\n[... {len(text) - keep} characters cut ...]\n"
    return text[:head] + marker + (text[-tail:] if tail else "")


def message_of(status: int, text: str) -> dict[str, Any]:
    """The assistant's message in an answer of the chat completions.

    Raises ContextSpentError when the session's budget is spent, NoAnswerError for any other answer than a completion.
    """
    try:
        body = json.loads(text)
    except ValueError as error:
        raise NoAnswerError(f"the model's endpoint answered {status} with no JSON: {text[:200]!r}") from error
    if status == 200:
        try:
            message = body["choices"][0]["message"]
        except (KeyError, IndexError, TypeError) as error:
            raise NoAnswerError(f"the model's endpoint answered without a message: {text[:200]!r}") from error
        return {name: value for name, value in message.items() if value is not None}
    detail = body.get("error") if isinstance(body, dict) else None
    detail = detail if isinstance(detail, dict) else {}
    if status == 400 and detail.get("code") == OVERFLOW_CODE:
        raise ContextSpentError(detail.get("message", OVERFLOW_CODE))
    raise NoAnswerError(f"the model's endpoint answered {status}: {detail.get('message', text[:200])}")


class SocketConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket. Without a time limit of its own: the trial's clock ends a call that takes too long."""

    def __init__(self, path: str) -> None:
        super().__init__("proxy")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


class Capture:
    """The start and the end of one output stream, read by a thread of its own until the stream ends, so that a process
    in the background that goes on writing is never held up."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._head = b""
        self._tail = b""
        self._left_out = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def text(self, patience_seconds: float) -> str:
        """What came until the stream's end, or until patience does."""
        self._thread.join(patience_seconds)
        middle = f"\n[... {self._left_out} bytes left out ...]\n" if self._left_out else ""
        return self._head.decode(errors="replace") + middle + self._tail.decode(errors="replace")

    def _read(self) -> None:
        while True:
            chunk = os.read(self._stream.fileno(), _CHUNK_BYTES)
            if not chunk:
                self._stream.close()
                return
            room = KEPT_BYTES - len(self._head)
            self._head += chunk[:room]
            tail = self._tail + chunk[room:]
            self._left_out += max(len(tail) - KEPT_BYTES, 0)
            self._tail = tail[-KEPT_BYTES:]


class Agent:
    """Asks the model, runs one command in a shell of its own, feeds back its output, until the model submits."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
        self.turns = 0
        """Replies asked for."""

    def work(self) -> None:
        """To the end; see `message_of` for what it raises. The last turn's command is run though nobody reads it."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": self._job.instruction.strip()}]
        while self.turns < self._job.max_turns:
            self.turns += 1
            reply = self._ask(messages)
            command = command_of(str(reply.get("content") or ""))
            if command == SUBMIT:
                return
            text = NO_COMMAND if command is None else self._observe(command)
            messages += [reply, {"role": "user", "content": text}]

    def _ask(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        body = {"model": self._job.model, "messages": messages, "max_tokens": self._job.max_tokens}
        headers = {"Authorization": f"Bearer {self._job.api_key}", "Content-Type": "application/json"}
        job = self._job
        connection = SocketConnection(job.socket) if job.socket else http.client.HTTPConnection(job.address)
        try:
            connection.request("POST", self._job.url_path, json.dumps(body).encode(), headers)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswerError(f"no answer from the model's endpoint: {type(error).__name__}: {error}") from error
        finally:
            connection.close()
        return message_of(response.status, text)

    def _observe(self, command: str) -> str:
        try:
            output, exit_code = run_command([self._shell, "-c", command], self._job.command_timeout_seconds)
        except (OSError, RuntimeError, ValueError) as error:
            # No room for another process or thread, or no word of a command line (a NUL): a matter for the model.
            output, exit_code = f"the command was not started: {error}", NOT_STARTED_EXIT_CODE
        return output_text(output, exit_code, self._job.output_characters)


def run_command(words: list[str], timeout_seconds: float) -> tuple[str, int]:
    """A command's output and exit code. One that runs out of time is killed with its session; what commands left in the
    background before lives on. Raises OSError, RuntimeError or ValueError, with nothing left running, when it cannot be
    started."""
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        captures = [Capture(stream) for stream in (process.stdout, process.stderr) if stream is not None]
        exit_code = process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        exit_code = TIMEOUT_EXIT_CODE
    finally:
        if process.returncode is None:
            kill_session(process.pid)
            process.wait()
    until = time.monotonic() + LAST_READ_SECONDS
    output = "".join(capture.text(max(until - time.monotonic(), 0.0)) for capture in captures)
    return output, 128 - exit_code if exit_code < 0 else exit_code


def kill_session(leader: int) -> None:
    """The leader first, so that it starts nothing more, then the others: until somebody waits for it, its number is
    nobody else's. Killing its process group would not do: `timeout` and shells with job control make their own."""
    os.kill(leader, signal.SIGKILL)
    for _ in range(KILL_ROUNDS):
        members = session_members(leader)
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not members:
            return


def session_members(leader: int) -> list[int]:
    """The session's other processes that have not ended."""
    members = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, _, session = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:4]
            if int(session) == leader and int(folder.name) != leader and state != "Z":
                members.append(int(folder.name))
    return members


def read_job(path: Path) -> Job:
    """The job, whose file is then gone."""
    job = Job(**json.loads(path.read_text(encoding="utf-8")))
    path.unlink()
    return job


def main(arguments: list[str]) -> int:
    """Do the job that the one argument names; the exit code."""
    agent = Agent(read_job(Path(arguments[0])))
    exit_code, message = DONE, ""
    try:
        agent.work()
    except ContextSpentError as error:
        exit_code, message = CONTEXT_SPENT, str(error)
    except NoAnswerError as error:
        exit_code, message = NO_ANSWER, str(error)
    sys.stdout.write(json.dumps({"turns": agent.turns, "message": message}) + "\n")
    return exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
