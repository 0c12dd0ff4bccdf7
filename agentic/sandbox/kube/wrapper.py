"""What is started inside a sandbox for each command: a few lines for /bin/sh, which every image has.

Kubernetes' exec knows neither a folder to start in nor an environment, a time limit or a way to kill; and its stream
ends only when every process that holds an output has ended, so that `server &` would seem to run for ever. The wrapper
sets up the first two and marks, with a secret that only this command's wrapper has,
- on standard error, its beginning: its process id, which is the command's session, and when process 1 started, which
  tells a restarted container from the same one;
- on both outputs, the command's end and exit code.
The secret comes by standard input, so nothing inside finds it in an environment or among arguments; and until it has
come nothing is done, so a stream whose opening was lost on the way, and that is opened again, starts nothing twice.
`KILL` ends what a command started: its session, and what has left that but still carries in its environment a second
word, which is no secret.
"""

import re
import secrets
import shlex
from dataclasses import dataclass
from urllib.parse import quote_plus

from agentic.sandbox.kube.execution import ExecRequest

MARK_VARIABLE = "AGENTIC_EXEC"
LONGEST_ADDRESS_BYTES = 7 * 1024
"""Of the words of one command as an address has them, percent-encoded: proxies on the way bound an address to 8 KiB or
so, and Linux a single argument to 128 KiB. More goes through standard input."""

BORN = r"""
born() { read -r s < /proc/1/stat; set -- ${s##*) }; eval "born=\${20}"; }
born
"""
"""When process 1 started, in clock ticks since the machine's boot."""

STILL_THERE = f'{BORN}[ "$born" = "$1" ]'
"""Run as `sh -c STILL_THERE sh BORN`: whether the container is the one that it was."""

WRAPPER = (
    BORN
    + r"""
word=$1 kind=$2 cwd=$3 user=$4; shift 4
read -r m s ends && [ -n "$ends" ] || exit 125
end() { echo "$m $1"; echo "$m $1" >&2; exit "$1"; }
echo "$m $$ $born" >&2
cd -- "$cwd" || end 126
for sh in /bin/bash /usr/bin/bash /bin/sh; do [ -x "$sh" ] && break; done
export AGENTIC_EXEC="$word"
while [ "$1" != -- ]; do export "$1"; shift; done; shift
[ "$kind" = words ] || set -- "$sh" -c "$@"
if [ "$kind" = script ]; then
  script=$(dd bs=1 count="$s" 2>/dev/null)
  set -- "$sh" -c 's=$(cat <&3); exec 3<&-; eval "$s"'
fi
[ "$ends" != none ] || exec </dev/null
if [ -n "$user" ] && [ "$user" != "$(id -u)" ] && [ "$user" != "$(id -un)" ]; then
  name=$(id -un -- "$user") && su -s /bin/sh "$name" -c : || end 126
  set -- su -s /bin/sh "$name" -c 'exec "$0" "$@"' "$@"
fi
go() {
  if [ "$kind" != script ]; then "$@"; return; fi
  "$@" 3<<END_OF_SCRIPT
$script
END_OF_SCRIPT
}
unframed() { while read -r k && [ "$k" -gt 0 ]; do dd bs="$k" count=1 iflag=fullblock 2>/dev/null || break; done; }
if [ "$ends" = framed ]; then unframed | go "$@"; else go "$@"; fi
end $?
"""
)

WRAPPER_ADDRESS_BYTES = len(quote_plus(WRAPPER))

GO = b"go\n"
AWAITS_GO = "read -r go || exit 125\n"
"""Before what is run without the wrapper: nothing of a stream that was given up may run late."""

KILL = r"""
m=$1 sid=$2
for round in 1 2 3 4 5 6 7 8 9 10; do
  found=
  for p in /proc/[0-9]*; do
    pid=${p#/proc/}
    if [ "$pid" = 1 ] || [ "$pid" = $$ ]; then continue; fi
    read -r stat < "$p/stat" || continue
    set -- ${stat##*) }
    [ "$1" = Z ] && continue
    if [ "$4" = "$sid" ] || grep -q -- "$m" "$p/environ" "$p/cmdline"; then kill -9 "$pid" && found=1; fi
  done
  [ -n "$found" ] || break
done 2>/dev/null
exit 0
"""

END_ALL = r"""
kill -9 -1
for round in $(seq 200); do
  left=
  for p in /proc/[0-9]*; do
    pid=${p#/proc/}
    if [ "$pid" = 1 ] || [ "$pid" = $$ ]; then continue; fi
    read -r stat < "$p/stat" || continue
    set -- ${stat##*) }
    [ "$1" = Z ] || left=1
  done
  [ -n "$left" ] || exit 0
  kill -9 -1
  sleep 0.05
done 2>/dev/null
exit 1
"""
"""The kernel kills all at once, process 1 of the sandbox and this shell excepted. What is
killed takes a moment to end on a busy node, hence the pauses."""


@dataclass(frozen=True, slots=True)
class WrappedCommand:
    """What to start, and what to send before the command's own input."""

    word: str
    """In the environment of all that the command starts."""
    mark: str
    """The secret."""
    words: tuple[str, ...]
    script: bytes
    has_stdin: bool
    """Whether the command has an input of its own."""

    def header(self, is_framed: bool) -> bytes:
        """For the wrapper: the secret, what of the input is the script, and whether the rest is nothing, ends with the
        stream, or comes framed, each frame after a line with its length, the last one being empty."""
        rest = "none" if not self.has_stdin else "framed" if is_framed else "plain"
        return f"{self.mark} {len(self.script)} {rest}\n".encode() + self.script


def wrap(request: ExecRequest) -> WrappedCommand:
    """Raises ValueError for an environment that no shell can hold."""
    request.require_names()
    word, mark = secrets.token_hex(8), secrets.token_hex(8)
    env = [f"{name}={value}" for name, value in request.env.items()]
    is_line = isinstance(request.command, str)
    command = [request.command] if isinstance(request.command, str) else list(request.command)
    kind, script = ("line" if is_line else "words"), b""
    if not fits_an_address([request.cwd, *env, *command]):
        exports = "".join(f"export {shlex.quote(word)}\n" for word in env)
        line = command[0] if is_line else f"exec {shlex.join(command)}"
        kind, env, command, script = "script", [], [], f"{exports}{line}".encode()
    has_stdin = not isinstance(request.stdin, bytes) or bool(request.stdin)
    head = ("/bin/sh", "-c", WRAPPER, "sh", word, kind, request.cwd, request.user or "")
    return WrappedCommand(word, mark, (*head, *env, "--", *command), script, has_stdin)


def fits_an_address(words: list[str]) -> bool:
    room = LONGEST_ADDRESS_BYTES - WRAPPER_ADDRESS_BYTES
    names = sum(len("&command=") for _ in words)
    if 3 * sum(len(word.encode()) for word in words) + names <= room:
        return True
    return sum(len(quote_plus(word)) for word in words) + names <= room


SAYS = re.compile(rb" (\d{1,20})( \d{0,20})?\n")
SAYS_SO_FAR = re.compile(rb"(?: (?:\d{1,20}(?: \d{0,20})?)?)?")
"""What follows the secret in a mark, and any beginning of it."""


class Marked:
    """An output stream with marks in it; passes on what lies before and between them, byte for byte. Holds back no more
    than could still become a mark."""

    def __init__(self, mark: str) -> None:
        self._mark = mark.encode()
        self._kept = b""
        self.marks: list[list[str]] = []

    def feed(self, data: bytes) -> bytes:
        """Some of the stream; returns what surely is no mark."""
        data = self._kept + data if self._kept else data
        plain: list[bytes] = []
        taken = start = 0
        while (start := data.find(self._mark, start)) >= 0:
            after = start + len(self._mark)
            if found := SAYS.match(data, after):
                self.marks.append([group.decode().strip() for group in found.groups() if group is not None])
                plain.append(data[taken:start])
                taken = start = found.end()
            elif SAYS_SO_FAR.fullmatch(data, after):
                break
            else:
                start += 1
        keep_from = start if start >= 0 else len(data) - self._beginning(data, taken)
        self._kept = data[keep_from:]
        rest = data[taken:keep_from] if taken or keep_from < len(data) else data
        return b"".join((*plain, rest)) if plain else rest

    def _beginning(self, data: bytes, taken: int) -> int:
        """How many of the last bytes may be the beginning of a mark."""
        for length in range(min(len(self._mark) - 1, len(data) - taken), 0, -1):
            if data.endswith(self._mark[:length]):
                return length
        return 0

    def rest(self) -> bytes:
        """What was held back, when the stream has ended."""
        kept, self._kept = self._kept, b""
        return kept
