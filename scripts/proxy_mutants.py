"""Breaks each invariant of the proxy on purpose and sees that the test named after it fails: `make proxy-mutants`.

A mutant replaces one text of one file, in a copy of the package and its tests in a folder of its own; the working tree
is never touched. A text that is not found exactly once is an error: the table has to follow the code. Before the
mutants the tests have to pass on an unchanged copy, so a failure is the mutant's. Ends with `N of N caught`, and with 1
if one was not.
"""

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    "agentic/__init__.py",
    "agentic/proxy",
    "tests/conftest.py",
    "tests/agentic/proxy/conftest.py",
    "tests/doubles",
    "pyproject.toml",
)
PROOF = "tests/agentic/proxy/proof/test_proxy_invariants.py"
TESTS_FAILED = 1
"""How pytest ends when tests failed; another code says that they could not be run."""


class Mutant(NamedTuple):
    """One way to break an invariant."""

    invariant: int
    file: str
    """Below agentic/proxy."""
    text: str
    """Has to be there exactly once."""
    replacement: str


MUTANTS = (
    Mutant(
        1,
        "graph.py",
        'return self.path_ids(plan.anchor) + array("I", plan.context)',
        'return self.path_ids(plan.anchor and self.nodes[plan.anchor].parent) + array("I", plan.context)',
    ),
    Mutant(1, "graph.py", "matched = self.nodes[anchor].end", "matched = self.nodes[anchor].end - 1"),
    Mutant(2, "graph.py", "if not are_finite(self.logprobs):", "if not self.logprobs:"),
    Mutant(
        2,
        "generating.py",
        "self.logprobs.extend(chunk.logprobs)",
        "self.logprobs.extend(logprob or 0.0 for logprob in chunk.logprobs)",
    ),
    Mutant(3, "graph.py", " and number not in spent", ""),
    Mutant(3, "graph.py", "node.sampled and node.delivered and", "node.sampled and"),
    Mutant(3, "gateway.py", "time.time(), call.waiting > 0, None)", "time.time(), True, None)"),
    Mutant(
        4, "conversation.py", "_without_thinking(message.content).strip(), calls]", "message.content.strip(), calls]"
    ),
    Mutant(4, "conversation.py", "_arguments_identity(call.arguments)]", "call.arguments]"),
    Mutant(4, "graph.py", "Plan(relation, anchor, tuple(suffix),", "Plan(relation, node.parent, tuple(suffix),"),
    Mutant(5, "session.py", "return alive[-1] if alive else None", "return None"),
    Mutant(5, "session.py", "return abandoned[0]", "return None"),
    Mutant(5, "session.py", "if arrival.idempotency_key is not None:", "if not arrival.body_digest:"),
    Mutant(6, "generating.py", "[chunk.version] * len(chunk.ids)", "[-len(self.versions)] * len(chunk.ids)"),
    Mutant(6, "graph.py", "map(operator.lt, self.versions[1:], self.versions)", "map((-1).__eq__, self.versions)"),
    Mutant(
        7,
        "session.py",
        'raise JournalError(f"session {self.spec.session_id} is sealed: refuse {event.kind}")',
        "pass",
    ),
    Mutant(7, "live.py", "running.generating.stop(cut)", "pass"),
    Mutant(
        8,
        "session.py",
        'self.incomplete_reason = self.incomplete_reason or f"call {event.call}: {problem}"',
        "self._cut[problem] += 1",
    ),
    Mutant(8, "session.py", "self.graph.trajectories(with_loss=complete)", "self.graph.trajectories(with_loss=True)"),
    Mutant(
        9, "rim.py", 'http.match_info.get("session", claims.session_id) != claims.session_id', "not claims.session_id"
    ),
    Mutant(9, "keys.py", 'hmac.compare_digest(self._code(text).encode(), code.encode("utf-8", "replace"))', "code"),
    Mutant(10, "journal.py", "self._torn[session_id] = whole", "pass"),
    Mutant(10, "journal.py", "if checksum != ", "if not checksum and body != "),
    Mutant(
        10,
        "live.py",
        "await self._journal.append(self.session.spec.session_id, events, is_durable)",
        "asyncio.get_running_loop().call_later(0.5, str)",
    ),
    Mutant(11, "dialects/chat/reply.py", '        "prompt_logprobs": None,\n', ""),
)


def main() -> int:
    """Try them all, two at a time."""
    missing = [mutant for mutant in MUTANTS if occurrences(mutant) != 1]
    for mutant in missing:
        _say(
            f"{mutant.file} has {mutant.text!r} {occurrences(mutant)} times instead of once: bring the table up to date"
        )
    if missing:
        return 2
    started = time.monotonic()
    with TemporaryDirectory() as folder:
        code, output = _run(_copied(Path(folder)), "test_invariant_")
    if code != 0:
        _say(f"{output}\nthe tests fail without any mutant")
        return 2
    with ThreadPoolExecutor(2) as threads:
        caught = list(threads.map(_is_caught, MUTANTS))
    _say(f"{sum(caught)} of {len(caught)} caught, in {time.monotonic() - started:.0f} s")
    return 0 if all(caught) else 1


def _is_caught(mutant: Mutant) -> bool:
    name = f"test_invariant_{mutant.invariant:02}_"
    with TemporaryDirectory() as folder:
        copy = _copied(Path(folder))
        path = copy / "agentic" / "proxy" / mutant.file
        before = path.read_text()
        path.write_text(before.replace(mutant.text, mutant.replacement))
        code, output = _run(copy, name)
    if code not in (0, TESTS_FAILED):
        _say(output)
    verdict = "caught" if code == TESTS_FAILED else "NOT CAUGHT" if mutant.text in before else "TEXT GONE"
    _say(f"{verdict:>10}  invariant {mutant.invariant:>2}  {mutant.file}: {' '.join(mutant.text.split())[:70]}")
    return code == TESTS_FAILED


def occurrences(mutant: Mutant) -> int:
    """How often the text of a mutant stands in its file."""
    return (ROOT / "agentic" / "proxy" / mutant.file).read_text().count(mutant.text)


def _copied(folder: Path) -> Path:
    for name in (*COPIED, PROOF):
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return folder


def _run(copy: Path, name: str) -> tuple[int, str]:
    """Run the tests whose names begin so in a copy, with the copy's package."""
    own = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout=30", "-k", name, PROOF]
    result = subprocess.run(command, cwd=copy, env=own, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout[-4000:] + result.stderr[-4000:]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
