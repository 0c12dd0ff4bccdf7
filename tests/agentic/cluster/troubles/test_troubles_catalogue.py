"""The catalogue itself: names, remedies that name what exists, and the document that is made of it."""

import inspect
import re
from pathlib import Path

from agentic.cluster.doctor import asking, capacity, evidence, fitting, gpus, probing, pulling, queues, volumes
from agentic.cluster.troubles.catalogue import CATALOGUE, TOPICS
from scripts import troubles_reference
from workflows.settings import SELECTORS, Settings, setting_names

ROOT = Path(__file__).resolve().parents[4]
SETTING = re.compile(
    r"(?<![/.])\b(?:cluster|train|rollout|sandbox|model|images|data|ray|machine)\.[a-z_]+(?:\.[a-z_]+)*"
)
IN_GUIDE = (
    *("gpu-memory", "proxy-unreachable", "connection-refused", "timed-out", "path-missing", "rewards-all-zero"),
    *("disk-category", "zone-conflict", "claim-pending", "volume-not-attached", "unschedulable", "image-missing"),
    *("image-pull-secret-missing", "builder-unreachable", "gpu-too-old", "no-egress", "package-index-unreachable"),
    *("image-refused", "image-pull-secret-other-region", "no-room-for-cpu", "no-room-for-memory", "no-room-for-gpu"),
    *("larger-than-any-node", "image-not-pulled"),
)
"""What people who train by hand are told to look out for."""


def test_names_are_unique_and_in_one_style() -> None:
    names = [kind.name for kinds in TOPICS.values() for kind in kinds]
    assert len(names) == len(set(names)) == len(CATALOGUE)
    assert [name for name in names if not re.fullmatch(r"[a-z]+(-[a-z]+)*", name)] == []


def test_every_trouble_that_the_guide_lists_has_its_name() -> None:
    assert [name for name in IN_GUIDE if name not in CATALOGUE] == []


def test_a_remedy_is_one_line_that_names_settings_that_exist() -> None:
    known = set(setting_names(Settings)) | {f"sandbox.{name}" for name in SELECTORS}
    wrong = [
        (kind.name, setting)
        for kind in CATALOGUE.values()
        for remedy in (kind.remedy, *kind.remedies.values())
        for setting in SETTING.findall(remedy)
        if setting not in known
    ]
    assert wrong == []
    assert [kind.name for kind in CATALOGUE.values() if "\n" in kind.remedy or len(kind.remedy) < 15] == []


def test_a_trouble_without_signs_is_found_by_a_check() -> None:
    sources = [asking, capacity, evidence, fitting, gpus, probing, pulling, queues, volumes]
    texts = [inspect.getsource(module) for module in sources]
    texts += [path.read_text() for path in (ROOT / "steps").glob("*troubles.py")]
    texts.append((ROOT / "agentic/cluster/doctor/examining.py").read_text())
    assert [kind.name for kind in CATALOGUE.values() if not kind.signs and f'"{kind.name}"' not in "".join(texts)] == []


def test_the_document_is_what_the_catalogue_says() -> None:
    assert (ROOT / "docs/troubles.md").read_text() == troubles_reference.render(), "run make docs"
