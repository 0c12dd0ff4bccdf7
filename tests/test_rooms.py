"""The rules of the tree that a reader relies on: who imports whom, what stays light, how long things get.

The table is that of docs/architecture.md; an exception is listed here by name with its reason, or there is none.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = frozenset(["agentic.errors", "agentic.files", "agentic.json_lines", "agentic.processes", "agentic.settings"])
HEAVY = frozenset(["torch", "ray", "vllm", "verl", "transformers", "harbor"])

ROOMS: dict[str, frozenset[str]] = {
    # A command named after the tasks, whose work needs sandboxes: above the room that its name stands in.
    "agentic.tasks.__main__": frozenset(["agentic.authoring"]),
    # A trial by hand builds the image of its task first.
    "agentic.rollout.__main__": frozenset(["agentic.images", "agentic.sandbox", "agentic.rollout"]),
    # The account that submitting makes has the rights of the run's sandboxes.
    "workflows": frozenset(
        [
            "steps",
            "agentic.cluster",
            "agentic.training.sizing",
            "agentic.training.errors",
            "agentic.sandbox.kube.rights",
        ]
    ),
    "steps": frozenset(["agentic"]),
    "agentic.proxy": frozenset(),
    "agentic.sandbox": frozenset(["agentic.cluster"]),
    "agentic.images": frozenset(["agentic.cluster", "agentic.tasks", "agentic.sandbox"]),
    "agentic.rollout": frozenset(["agentic.proxy", "agentic.sandbox", "agentic.tasks"]),
    "agentic.authoring": frozenset(["agentic.tasks", "agentic.images", "agentic.sandbox", "agentic.rollout"]),
    "agentic.models": frozenset(["agentic.tasks"]),
    "agentic.training": frozenset(["agentic.rollout", "agentic.proxy", "agentic.sandbox", "agentic.tasks"]),
    "agentic.cluster": frozenset(),
    "agentic.tasks": frozenset(),
    "agentic.report": frozenset(),
}
"""Room → what of ours it may import, besides itself and what all may."""

FUNCTION_LINES, FUNCTION_P90, FUNCTION_LONG_SHARE = 60, 26, 0.03
FILE_LINES, TEST_FILE_LINES, NESTING = 500, 800, 4

LONGER = {
    "agentic.training.engine_server._wait_until_ready": "a client, a loop, a suppression and a request, one line each",
}
"""Functions and files beyond a bound: name → reason."""

EDGES = {
    "agentic.proxy.gateway": "a call that breaks is recorded as lost, with its traceback in the log",
    "agentic.proxy.sessions": "the sweeper: one session's trouble is logged and must not keep all others from expiring",
}
"""Modules that catch broadly and log, which the linter takes as it is: name → reason."""

BROAD = re.compile(r"#\s*noqa:[^#]*\bBLE001\b\s*-\s*\S+")
"""How a broad catch gives its reason."""


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str | None:
    return next((room for room in ROOMS if module == room or module.startswith(f"{room}.")), None)


def imports_of(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it the import stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = package_of(path, node.level)
            base = ".".join([*package, *([node.module] if node.module else [])])
            for name in node.names:
                nested = f"{base}.{name.name}"
                is_module = (ROOT / nested.replace(".", "/")).with_suffix(".py").exists() or (
                    ROOT / nested.replace(".", "/")
                ).is_dir()
                yield nested if is_module else base


def package_of(path: Path, level: int) -> list[str]:
    """The package that a relative import starts from; none for an absolute one."""
    if not level:
        return []
    folders = list(path.relative_to(ROOT).parent.parts)
    return folders[: len(folders) - level + 1]


def is_allowed(room: str, imported: str) -> bool:
    if not imported.startswith(("agentic.", "steps", "workflows")) or room_of(imported) == room:
        return True
    if imported in SHARED:
        return room != "agentic.proxy"
    if room == "workflows" and imported.endswith(".settings"):
        return True
    return any(imported == allowed or imported.startswith(f"{allowed}.") for allowed in ROOMS[room])


def test_rooms_import_what_the_table_allows() -> None:
    found = []
    for path in sources("workflows", "steps", "agentic"):
        room = room_of(module_of(path))
        if room is not None:
            found += [f"{module_of(path)} imports {name}" for name in imports_of(path) if not is_allowed(room, name)]
    assert found == []


def test_every_package_of_agentic_is_a_room_of_the_table() -> None:
    packages = {
        path.parent.relative_to(ROOT).as_posix().replace("/", ".") for path in ROOT.glob("agentic/*/__init__.py")
    }
    assert packages == {room for room in ROOMS if room.startswith("agentic.") and room.count(".") == 1}


LIGHT = ["workflows.verbs", "workflows.local.run", "agentic.proxy", "steps.train", "agentic.report"]


@pytest.mark.parametrize("module", LIGHT)
def test_a_fresh_interpreter_imports_it_without_machine_learning(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({set(HEAVY)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_the_proxy_alone_imports_nothing_of_ours() -> None:
    code = "import sys, agentic.proxy; print(*sorted(m for m in sys.modules if m.startswith('agentic.')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert [name for name in done.stdout.split() if not name.startswith("agentic.proxy")] == []


def test_settings_are_light() -> None:
    rooms = [module_of(path) for path in ROOT.glob("agentic/*/settings.py")]
    code = f"import sys, {', '.join(rooms)}; print(*sorted(m for m in sys.modules if '.' not in m))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not {*HEAVY, "hera", "kubernetes", "aiohttp", "numpy"} & set(done.stdout.split())


def test_step_modules_do_not_postpone_annotations() -> None:
    assert [path.name for path in sources("steps") if "__future__" in imports_of(path)] == []


BLOCKS = ast.If | ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try | ast.Match
"""What opens a level of nesting."""


class Function(NamedTuple):
    """One function and its bounds."""

    name: str
    lines: int
    nesting: int


def depth(node: ast.AST, level: int = 0) -> int:
    """Nested blocks; an `elif` is no deeper than its `if`."""
    deepest = level
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        opens = isinstance(child, BLOCKS)
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        deepest = max(deepest, depth(child, level + (opens and not is_elif)))
    return deepest


def functions() -> list[Function]:
    return [
        Function(f"{module_of(path)}.{node.name}", (node.end_lineno or 0) - node.lineno + 1, depth(node))
        for path in sources("workflows", "steps", "agentic", "scripts", "testbed")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_functions_keep_within_the_bounds() -> None:
    beyond = [f for f in functions() if (f.lines > FUNCTION_LINES or f.nesting > NESTING) and f.name not in LONGER]
    assert beyond == []


def test_the_tail_of_function_lengths_is_short() -> None:
    lengths = [function.lines for function in functions()]
    assert quantiles(lengths, n=10)[8] <= FUNCTION_P90
    assert sum(length > 50 for length in lengths) / len(lengths) <= FUNCTION_LONG_SHARE


def test_files_keep_within_the_bounds() -> None:
    bounds = [(FILE_LINES, path) for path in sources("workflows", "steps", "agentic", "scripts", "testbed")]
    bounds += [(TEST_FILE_LINES, path) for path in sources("tests")]
    long = [(module_of(path), lines) for bound, path in bounds if (lines := path.read_text().count("\n")) > bound]
    assert [(name, lines) for name, lines in long if name not in LONGER] == []


def test_every_exception_to_the_bounds_is_still_one() -> None:
    names = {f.name for f in functions() if f.lines > FUNCTION_LINES or f.nesting > NESTING}
    assert set(LONGER) <= names | {module_of(path) for path in sources("workflows", "steps", "agentic", "tests")}


def test_modules_open_with_what_they_promise() -> None:
    paths = sources("workflows", "steps", "agentic", "scripts", "testbed")
    silent = [module_of(path) for path in paths if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []


def test_a_broad_catch_gives_its_reason_on_the_line() -> None:
    found = []
    for path in sources("workflows", "steps", "agentic", "scripts", "testbed"):
        text = path.read_text()
        handlers = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ExceptHandler)]
        for handler in handlers:
            line = text.splitlines()[handler.lineno - 1].strip()
            if is_broad(handler) and not reraises(handler) and not BROAD.search(line) and module_of(path) not in EDGES:
                found.append(f"{module_of(path)}:{handler.lineno}: {line}")
    assert found == []


def is_broad(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {kind.id for kind in caught if isinstance(kind, ast.Name)}
    return None in caught or bool(names & {"Exception", "BaseException"})


def reraises(handler: ast.ExceptHandler) -> bool:
    """Nothing is swallowed when the handler ends by raising; the linter sees that as well."""
    return isinstance(handler.body[-1], ast.Raise)


def test_wire_data_is_not_checked_with_assert() -> None:
    found = [
        f"{module_of(path)}:{node.lineno}"
        for path in sources("workflows", "steps", "agentic")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert)
    ]
    assert found == []
