"""Every trouble of the catalogue is named from the words in which components report it, and from nothing less."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from regex_variants import variants

from agentic.cluster.troubles import Evidence, Trouble, find_troubles, name_refusal
from agentic.cluster.troubles.catalogue import CATALOGUE
from agentic.cluster.troubles.kinds import Place, Sign
from agentic.cluster.troubles.observations import Observation, observe


def single(row: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each of its logs."""
    texts = row.get("logs")
    return [row] if texts is None else [{"trouble": row["trouble"], "from": row["from"], "log": text} for text in texts]


ROWS: list[dict[str, Any]] = [
    one for row in yaml.safe_load(Path(__file__).with_name("as_worded.yaml").read_text()) for one in single(row)
]
POD = {"kind": "Pod", "metadata": {"name": "x", "namespace": "rl"}}


def pod(**status: Any) -> dict[str, Any]:
    return {**POD, "status": {"phase": "Pending", **status}}


def container(**state: Any) -> dict[str, Any]:
    return pod(containerStatuses=[{"name": "main", "ready": False, "state": state}])


def event(kind: str, reason: str, message: str) -> dict[str, Any]:
    return {"kind": "Event", "involvedObject": {"kind": kind, "name": "x"}, "reason": reason, "message": message}


def workflow(message: str) -> dict[str, Any]:
    node = {"type": "Pod", "displayName": "train(0)", "phase": "Failed", "message": message}
    return {"kind": "Workflow", "metadata": {"name": "w"}, "status": {"phase": "Failed", "nodes": {"w-1": node}}}


def evidence(row: dict[str, Any]) -> Evidence:
    match row:
        case {"waiting": [reason, message]}:
            return Evidence(pods=[container(waiting={"reason": reason, "message": message})])
        case {"ended": [reason, code, message]}:
            return Evidence(pods=[container(terminated={"reason": reason, "exitCode": code, "message": message})])
        case {"pod": [reason, message]}:
            return Evidence(pods=[pod(phase="Failed", reason=reason, message=message)])
        case {"condition": [kind, status, reason, message]}:
            condition = {"type": kind, "status": status, "reason": reason, "message": message}
            return Evidence(pods=[pod(conditions=[condition])])
        case {"event": [reason, message]}:
            return Evidence(events=[event("Pod", reason, message)])
        case {"objectevent": [kind, reason, message]}:
            return Evidence(events=[event(kind, reason, message)])
        case {"node": message}:
            return Evidence(objects=[workflow(message)])
        case {"object": body}:
            return Evidence(objects=[body])
        case _:
            return Evidence(logs={"train.log": row["log"]})


def found(row: dict[str, Any]) -> list[Trouble]:
    if "answer" in row:
        refusal = name_refusal("namespace rl", row["answer"])
        return [refusal] if refusal else []
    return find_troubles(evidence(row))


def observed(row: dict[str, Any]) -> list[Observation]:
    if "answer" in row:
        return [Observation(Place.ANSWER, "", "", row["answer"])]
    return list(observe(evidence(row)))


def title(row: dict[str, Any]) -> str:
    return f"{row['trouble']}-{next(key for key in row if key not in ('trouble', 'from'))}"


@pytest.mark.parametrize("row", ROWS, ids=title)
def test_what_a_component_says_is_named_and_nothing_else(row: dict[str, Any]) -> None:
    assert [trouble.name for trouble in found(row)] == [row["trouble"]]


@pytest.mark.parametrize("row", ROWS, ids=title)
def test_a_trouble_is_told_on_one_line_with_what_was_said_and_what_to_do(row: dict[str, Any]) -> None:
    (trouble,) = found(row)
    assert "\n" not in trouble.line
    kind = CATALOGUE[trouble.name]
    assert trouble.remedy in {kind.remedy, *kind.remedies.values()}
    assert trouble.message
    assert trouble.where


def test_every_row_says_where_its_wording_comes_from() -> None:
    assert [row["trouble"] for row in ROWS if not row.get("from")] == []


def test_every_sign_of_the_catalogue_is_seen_in_some_wording() -> None:
    seen = [observation for row in ROWS for observation in observed(row)]

    def is_seen(sign: Sign) -> bool:
        return any(one.place in sign.places and sign.words.search(one.text) for one in seen)

    unseen = [
        (kind.name, sign.words.pattern) for kind in CATALOGUE.values() for sign in kind.signs if not is_seen(sign)
    ]
    assert unseen == []


def test_every_way_to_read_a_sign_is_one_that_somebody_says() -> None:
    """A sign is seen by any of its branches; each of them has to be a wording."""
    seen = [observation for row in ROWS for observation in observed(row)]
    unseen = [
        (kind.name, words)
        for kind in CATALOGUE.values()
        for sign in kind.signs
        for words in variants(sign.words.pattern)
        if not any(one.place in sign.places and re.search(words, one.text) for one in seen)
    ]
    assert unseen == []


def test_every_trouble_with_signs_has_a_wording() -> None:
    named = {row["trouble"] for row in ROWS}
    assert [kind.name for kind in CATALOGUE.values() if kind.signs and kind.name not in named] == []
