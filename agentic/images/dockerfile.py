"""Reads the part of the Dockerfile language that local images are built from. Pure: text in, instructions out.

Supported: FROM, COPY, RUN, WORKDIR, ENV, USER; comments and continued lines; COPY in its plain and its JSON form with
glob patterns; RUN as a shell line or as JSON words; `$NAME` and `${NAME}` of earlier ENV lines, where Docker expands
them. Everything else (here-documents, flags such as --from and --chown, several stages, other instructions) is refused
by name, with its line number: an image that only nearly is what its author wrote would be worse than none.
"""

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agentic.images.errors import DockerfileError

CONTINUATION = "\\"
HERE_DOCUMENT = re.compile(r"(?<!<)<<(?!<)-?\s*[\"']?[A-Za-z_]")
ESCAPE_DIRECTIVE = re.compile(r"#\s*escape\s*=", re.IGNORECASE)
VARIABLE = re.compile(r"\\\$|\$(?:(?P<plain>[A-Za-z_]\w*)|\{(?P<braced>[^}]*)\})")
QUOTED_OR_ESCAPED = re.compile(r"""\\.|"(?:\\.|[^"\\])*"|'[^']*'""")
LITERAL_DOLLAR = "\0"
VARIABLE_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Copy:
    """COPY: sources relative to the build folder, an absolute target."""

    line: int
    sources: tuple[str, ...]
    target: str
    """With a trailing slash when the author wrote a folder."""


@dataclass(frozen=True, slots=True)
class Run:
    """RUN: words to execute, with what was in force at this line."""

    line: int
    words: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str
    user: str


@dataclass(frozen=True, slots=True)
class MakeWorkdir:
    """WORKDIR: a folder that must exist."""

    line: int
    path: str


Step = Copy | Run | MakeWorkdir


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """What a Dockerfile says."""

    base: str
    base_line: int
    steps: tuple[Step, ...]
    env: Mapping[str, str]
    workdir: str
    user: str


@dataclass
class _Reading:
    """What is known at a line."""

    base: str = ""
    base_line: int = 0
    steps: list[Step] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "root"


def parse_dockerfile(text: str, base_env: Mapping[str, str] | None = None) -> Dockerfile:
    """Read a whole file. `base_env` is what the base image sets, which ENV lines may refer to. Raises DockerfileError
    for the first line that is not supported."""
    reading = _Reading(env=dict(base_env or {}))
    readers = {"COPY": _read_copy, "RUN": _read_run, "WORKDIR": _read_workdir, "ENV": _read_env, "USER": _read_user}
    for line, name, rest in _instructions(text):
        if name == "FROM":
            _read_from(reading, line, rest)
        elif name not in readers:
            raise DockerfileError(f"line {line}: {name} is not supported, only FROM, {', '.join(readers)}")
        elif not reading.base:
            raise DockerfileError(f"line {line}: {name} comes before FROM")
        elif not rest:
            raise DockerfileError(f"line {line}: {name} needs an argument")
        else:
            readers[name](reading, line, rest)
    if not reading.base:
        raise DockerfileError("line 1: there is no FROM")
    return Dockerfile(reading.base, reading.base_line, tuple(reading.steps), reading.env, reading.workdir, reading.user)


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, name in capitals, and the rest, with continued lines joined and comments left out."""
    start, pending = 0, ""
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if ESCAPE_DIRECTIVE.match(stripped):
            raise DockerfileError(f"line {number}: the escape directive is not supported")
        if stripped.startswith("#") or (not stripped and not pending):
            continue
        start = start or number
        if stripped.endswith(CONTINUATION):
            pending += line.rstrip()[: -len(CONTINUATION)]
            continue
        if stripped:
            yield _split_instruction(start, pending + line)
        start, pending = 0, ""
    if pending.strip():
        yield _split_instruction(start, pending)


def _split_instruction(line: int, text: str) -> tuple[int, str, str]:
    name, _, rest = text.strip().replace("\t", " ", 1).partition(" ")
    name, rest = name.upper(), rest.strip()
    if name in ("RUN", "COPY") and HERE_DOCUMENT.search(rest):
        raise DockerfileError(f"line {line}: here-documents in {name} are not supported: COPY a file instead")
    return line, name, rest


def _read_from(reading: _Reading, line: int, rest: str) -> None:
    if reading.base:
        raise DockerfileError(f"line {line}: a second FROM (several stages) is not supported")
    words = rest.split()
    _refuse_flags(line, "FROM", words)
    if len(words) != 1 and not (len(words) == 3 and words[1].upper() == "AS"):
        raise DockerfileError(f"line {line}: FROM needs one image name")
    reading.base, reading.base_line = words[0], line


def _refuse_flags(line: int, name: str, words: list[str]) -> None:
    if words and words[0].startswith("--"):
        raise DockerfileError(f"line {line}: {name} {words[0].partition('=')[0]} is not supported")


def _read_copy(reading: _Reading, line: int, rest: str) -> None:
    words = _json_words(rest) or rest.split()
    _refuse_flags(line, "COPY", words)
    if len(words) < 2:
        raise DockerfileError(f"line {line}: COPY needs a source and a target")
    *sources, target = (_expand(word, reading.env, line) for word in words)
    for source in sources:
        if ".." in source.split("/"):
            raise DockerfileError(f"line {line}: COPY source {source} leads out of the environment folder")
    if len(sources) > 1 and not target.endswith("/"):
        raise DockerfileError(f"line {line}: COPY of several sources needs a target that ends with /")
    absolute = _resolve(reading.workdir, target)
    is_folder = target.endswith(("/", "/.")) or target == "."
    path = absolute.rstrip("/") + "/" if is_folder else absolute
    reading.steps.append(Copy(line, tuple(source.lstrip("/") or "." for source in sources), path))


def _read_run(reading: _Reading, line: int, rest: str) -> None:
    _refuse_flags(line, "RUN", rest.split())
    words = tuple(_json_words(rest) or ("/bin/sh", "-c", rest))
    reading.steps.append(Run(line, words, dict(reading.env), reading.workdir, reading.user))


def _read_workdir(reading: _Reading, line: int, rest: str) -> None:
    reading.workdir = _resolve(reading.workdir, _expand(_unquote(rest), reading.env, line))
    reading.steps.append(MakeWorkdir(line, reading.workdir))


def _read_user(reading: _Reading, line: int, rest: str) -> None:
    user = _expand(_unquote(rest), reading.env, line)
    if ":" in user or " " in user:
        raise DockerfileError(f"line {line}: USER {user} is not supported: name a user without a group")
    reading.user = user


def _read_env(reading: _Reading, line: int, rest: str) -> None:
    before = dict(reading.env)
    first, _, remainder = rest.partition(" ")
    if "=" not in first:
        reading.env[_variable_name(first, line)] = _expand(remainder.strip(), before, line)
        return
    try:
        lexer = shlex.shlex(_hide_literal_dollars(rest), posix=True, punctuation_chars=False)
        lexer.whitespace_split, lexer.commenters = True, ""
        pairs = list(lexer)
    except ValueError as error:
        raise DockerfileError(f"line {line}: ENV cannot be read: {error}") from None
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise DockerfileError(f"line {line}: ENV {pair} has no value: write NAME=value")
        reading.env[_variable_name(name, line)] = _expand(value, before, line).replace(LITERAL_DOLLAR, "$")


def _hide_literal_dollars(text: str) -> str:
    """Dollars that stand for themselves, behind a backslash or in single quotes, must outlive the removal of quotes."""

    def hide(match: re.Match[str]) -> str:
        if match[0].startswith("'"):
            return match[0].replace("$", LITERAL_DOLLAR)
        return match[0].replace("\\$", LITERAL_DOLLAR)

    return QUOTED_OR_ESCAPED.sub(hide, text)


def _variable_name(name: str, line: int) -> str:
    if not VARIABLE_NAME.fullmatch(name):
        raise DockerfileError(f"line {line}: ENV {name!r} is no variable name")
    return name


def _expand(text: str, env: Mapping[str, str], line: int) -> str:
    def value(match: re.Match[str]) -> str:
        if match[0] == "\\$":
            return "$"
        name = match["plain"] or match["braced"]
        if not VARIABLE_NAME.fullmatch(name):
            raise DockerfileError(f"line {line}: ${{{name}}} is not supported: use ${{NAME}}")
        return env.get(name, "")

    return VARIABLE.sub(value, text)


def _json_words(rest: str) -> list[str]:
    """The words of the JSON form; empty when it isn't that form."""
    if not rest.startswith("["):
        return []
    try:
        words = json.loads(rest)
    except ValueError:
        return []
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else []


def _unquote(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _resolve(workdir: str, path: str) -> str:
    return "/" + posixpath.normpath(posixpath.join(workdir, path)).lstrip("/")
