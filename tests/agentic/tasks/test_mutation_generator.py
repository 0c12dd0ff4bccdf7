"""What holds for every generated task, checked by executing its code and by real sed."""

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.tasks.errors import DataError
from agentic.tasks.mutation.commands import numbered, repair_command, repair_of
from agentic.tasks.mutation.forms import PHRASES, Kind, rival_forms
from agentic.tasks.mutation.functions import call_function
from agentic.tasks.mutation.generator import Mutant, Recipe, generate
from agentic.tasks.mutation.splits import make_mutants
from agentic.tasks.settings import MutationData

SPLITS = make_mutants(MutationData())
TRAIN, SAME, NEW = SPLITS["train"], SPLITS["same-template"], SPLITS["new-template"]
EVERY = [*TRAIN, *SAME, *NEW]


def solves(mutant: Mutant, source: str) -> bool:
    """Whether a source passes the hidden checks; one that does not even compile does not."""
    calls = [arguments for arguments, _ in mutant.hidden]
    try:
        return call_function(source, mutant.name, calls) == [expected for _, expected in mutant.hidden]
    except (SyntaxError, KeyError, AttributeError):
        return False


def edited(source: str, line: int, old: str, new: str) -> str:
    lines = source.split("\n")
    lines[line - 1] = lines[line - 1].replace(old, new, 1)
    return "\n".join(lines)


def test_the_original_passes_and_the_mutant_fails_the_hidden_checks() -> None:
    assert all(solves(mutant, mutant.fixed) and not solves(mutant, mutant.source) for mutant in EVERY)


def test_no_other_form_of_the_kind_passes() -> None:
    for mutant in EVERY:
        hole = mutant.wrong
        for rival in rival_forms(hole.kind, hole.right):
            assert not solves(mutant, edited(mutant.fixed, hole.line, hole.right, rival)), (mutant.fixed, rival)


def test_one_documented_place_is_wrong_and_the_docstring_names_what_is_right() -> None:
    for mutant in EVERY:
        doc = mutant.source.splitlines()[1]
        assert [hole.is_wrong for hole in mutant.holes].count(True) == 1
        assert all(re.search(rf"\b{hole.phrase}\b", doc) for hole in mutant.holes), mutant.source


def test_the_shown_call_fails_and_is_not_among_the_hidden_checks() -> None:
    for mutant in EVERY:
        arguments, got, expected = mutant.shown
        assert call_function(mutant.source, mutant.name, [arguments]) == [got] != [expected]
        assert call_function(mutant.fixed, mutant.name, [arguments]) == [expected]
        assert arguments not in [hidden for hidden, _ in mutant.hidden]
        assert len(mutant.hidden) >= 6


def test_the_instruction_shows_neither_the_file_nor_the_edit() -> None:
    for mutant in EVERY:
        body = body_of(mutant).splitlines()
        assert not any(line.strip() in mutant.instruction for line in body if line.strip())
        assert mutant.wrong.phrase not in mutant.instruction.split("(")[0]


def test_every_kind_has_its_share_and_there_are_at_least_five() -> None:
    for members in (TRAIN, SAME, NEW):
        counts = Counter(mutant.kind for mutant in members)
        assert len(counts) >= 5
        assert max(counts.values()) <= 0.25 * len(members)


def test_held_out_functions_share_no_name_noun_or_text_with_training() -> None:
    def texts(members: list[Mutant]) -> set[str]:
        return {mutant.source.splitlines()[1] for mutant in members}

    for held_out in (SAME, NEW):
        assert not {mutant.name for mutant in held_out} & {mutant.name for mutant in TRAIN}
        assert not texts(held_out) & texts(TRAIN)
        assert not {mutant.source for mutant in held_out} & {mutant.source for mutant in TRAIN}


class Renamed(ast.NodeTransformer):
    """Replaces names by their order of appearance and literals by their type."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def _rename(self, name: str) -> str:
        return self.names.setdefault(name, f"name{len(self.names)}")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = "function"
        node.body = node.body[1:]
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self._rename(node.arg)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._rename(node.id)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.copy_location(ast.Constant(type(node.value).__name__), node)


def shape(source: str) -> str:
    return ast.dump(Renamed().visit(ast.parse(source)))


def test_no_new_template_function_equals_a_training_one_after_renaming() -> None:
    training = {shape(source) for mutant in TRAIN for source in (mutant.source, mutant.fixed)}
    assert not {shape(source) for mutant in NEW for source in (mutant.source, mutant.fixed)} & training
    known = {shape(mutant.fixed) for mutant in SAME} & training
    assert known, "the same-template split has known shapes, or this test compares nothing"


@pytest.mark.parametrize("held_out", [SAME, NEW], ids=["same-template", "new-template"])
def test_no_single_edit_solves_more_than_a_tenth_of_the_held_out_tasks(held_out: list[Mutant]) -> None:
    pairs = {(old, new) for forms in PHRASES.values() for old in (*forms, ")") for new in forms if old != new}
    having = {old: [mutant for mutant in held_out if old in body_of(mutant)] for old, _ in pairs}
    most = 0
    for line in (None, 3, 4, 5, 6, 7):
        for old, new in pairs:
            edited_by = (substituted(mutant, {(line, old): new}) for mutant in having[old])
            most = max(most, sum(map(solves, having[old], edited_by)))
    assert 0 < most <= 0.1 * len(held_out)


def body_of(mutant: Mutant) -> str:
    return mutant.source.split('"""')[2]


def substituted(mutant: Mutant, rules: dict[tuple[int | None, str], str]) -> str:
    """What one blind command makes of the file: every rule at once, on each body line, first match only."""
    lines = mutant.source.split("\n")
    for number in range(3, len(lines)):
        mine = {old: new for (line, old), new in rules.items() if line in (None, number)}
        if mine:
            pattern = "|".join(re.escape(old) for old in sorted(mine, key=len, reverse=True))
            lines[number - 1] = re.sub(pattern, lambda match, mine=mine: mine[match.group()], lines[number - 1])
    return "\n".join(lines)


@pytest.mark.parametrize("lines", [(None,), (3, 4)], ids=["any line", "by line"])
def test_no_script_of_many_substitutions_learned_in_training_solves_a_tenth(lines: tuple[int | None, ...]) -> None:
    """Rules are added greedily, each the one that solves most training tasks on top of those before it."""
    rules: dict[tuple[int | None, str], str] = {}
    best = 0
    for forms in PHRASES.values():
        for line in lines:
            for old in (*forms, ")"):
                touched = [mutant for mutant in TRAIN if old in body_of(mutant)]
                base = sum(solves(mutant, substituted(mutant, rules)) for mutant in touched)
                for new in forms:
                    tried = {**rules, (line, old): new}
                    count = sum(solves(mutant, substituted(mutant, tried)) for mutant in touched)
                    if count > base:
                        base, best, rules = count, best + count - base, tried
    assert len(rules) >= 10
    for held_out in (SAME, NEW):
        solved = sum(solves(mutant, substituted(mutant, rules)) for mutant in held_out)
        assert solved <= 0.1 * len(held_out), f"{solved} of {len(held_out)} by {rules}"


def test_the_repair_command_does_in_real_sed_what_was_meant(tmp_path: Path) -> None:
    seen: dict[str, Mutant] = {}
    for mutant in EVERY:
        seen.setdefault(re.sub(r"\d+s", "Ns", repair_of(mutant.wrong)), mutant)
    for mutant in list(seen.values())[::3]:
        (tmp_path / "mod.py").write_text(mutant.source)
        done = subprocess.run(["sh", "-c", repair_of(mutant.wrong)], cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "mod.py").read_text() == mutant.fixed


def test_the_look_command_prints_what_demonstrations_show(tmp_path: Path) -> None:
    (tmp_path / "mod.py").write_text(TRAIN[0].source)
    done = subprocess.run(["cat", "-n", "mod.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == numbered(TRAIN[0].source)


def test_the_same_seed_gives_the_same_tasks_and_another_gives_others() -> None:
    recipe = Recipe()
    assert generate(24, "one", recipe) == generate(24, "one", recipe)
    assert generate(24, "one", recipe) != generate(24, "two", recipe)


def test_held_out_tasks_do_not_change_with_the_training_seed() -> None:
    other = make_mutants(MutationData(seed=5, train=16))
    assert other["same-template"] == SAME
    assert other["train"] != TRAIN[:16]


def test_asking_for_more_than_the_shapes_can_give_says_so() -> None:
    with pytest.raises(DataError, match="ask for fewer tasks"):
        generate(5000, "many", Recipe(nouns=("price",)))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(), two_places=st.floats(0, 1), made_up=st.floats(0, 1))
def test_any_recipe_gives_fair_tasks(seed: int, two_places: float, made_up: float) -> None:
    mutants = generate(8, str(seed), Recipe(two_places=two_places, made_up=made_up))
    assert len({mutant.source for mutant in mutants}) == 8
    for mutant in mutants:
        hole = mutant.wrong
        assert solves(mutant, edited(mutant.source, hole.line, hole.form, hole.right))
        assert not solves(mutant, mutant.source)


def test_a_missing_guard_is_repaired_by_adding_one() -> None:
    guards = [mutant for mutant in TRAIN if mutant.kind is Kind.GUARD]
    assert guards
    assert all("default=" not in mutant.source and "default=" in mutant.fixed for mutant in guards)


def test_patterns_of_sed_are_escaped() -> None:
    assert repair_command(3, "[-1]", "[0]") == r"sed -i '3s|\[-1\]|[0]|' mod.py"
    assert repair_command(4, " * ", " // ") == r"sed -i '4s| \* | // |' mod.py"
