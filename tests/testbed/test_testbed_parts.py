"""The cluster for tests without starting it: its table, its tools, its processes' records."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from testbed.cluster import Cluster
from testbed.component import Component, Machine, wait_until_ready
from testbed.components import COMPONENTS
from testbed.errors import StartError
from testbed.fake_nodes import kwok_config
from testbed.layout import Layout
from testbed.processes import Daemons, end, started_at
from testbed.tools import MODULES, TOOLS, Toolbox, digest


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout("test", tmp_path / "cache", tmp_path / "state", tmp_path / "sockets")


def test_every_tool_of_a_component_can_be_built_and_every_tool_has_one() -> None:
    named = {tool for component in COMPONENTS for tool in component.tools}
    assert named == set(TOOLS)


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_is_pinned_by_the_go_module_that_it_is_built_in(name: str) -> None:
    tool = TOOLS[name]
    text = (MODULES / tool.module / "go.mod").read_text()
    if tool.package != ".":
        assert re.search(rf"^(tool )?\s*{re.escape(tool.package)}$", text, re.MULTILINE)
        assert (MODULES / tool.module / "go.sum").is_file()


def test_each_tool_has_a_folder_of_its_own_that_its_pins_and_flags_name(layout: Layout) -> None:
    folders = {Toolbox(layout).folder(name) for name in TOOLS}
    assert len(folders) == len(TOOLS)
    assert len({digest(tool) for tool in TOOLS.values()}) == len(TOOLS)


def test_a_tool_that_is_there_is_not_built(layout: Layout) -> None:
    toolbox = Toolbox(layout)
    assert toolbox.missing(["pause"]) == ["pause"]
    toolbox.folder("pause").mkdir(parents=True)
    toolbox.path("pause").touch()
    said: list[str] = []
    toolbox.build(["pause"], said.append)
    assert said == []


def test_a_process_is_known_by_pid_and_start_time(layout: Layout) -> None:
    daemons = Daemons(layout)
    process = subprocess.Popen(["sleep", "60"])
    layout.pids.mkdir(parents=True)
    record = layout.pids / "sleeper"
    try:
        record.write_text(f"{process.pid} {started_at(process.pid)}")
        assert daemons.pid("sleeper") == process.pid
        record.write_text(f"{process.pid} 1")
        assert daemons.pid("sleeper") is None
        daemons.stop("sleeper")
        assert process.poll() is None
    finally:
        end([process.pid])
    assert process.wait() != 0
    assert started_at(process.pid) == ""


def test_a_process_that_ignores_the_request_to_end_is_killed() -> None:
    process = subprocess.Popen(
        [
            "python3",
            "-c",
            "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    end([process.pid], grace_seconds=0.2)
    process.stdout.close()
    assert process.wait() == -9


def test_a_component_that_ends_while_it_starts_is_an_error_at_once(layout: Layout) -> None:
    component = Component("broken", lambda machine: ("false",), lambda machine: False)
    with pytest.raises(StartError, match="broken ended while it started"):
        wait_until_ready(component, Machine(layout, Toolbox(layout)), lambda: False)


def test_a_component_that_never_gets_ready_is_an_error_after_its_time(layout: Layout) -> None:
    component = Component("slow", lambda machine: ("true",), lambda machine: False, ready_seconds=0.2)
    with pytest.raises(StartError, match="slow was not ready after"):
        wait_until_ready(component, Machine(layout, Toolbox(layout)), lambda: True)


def test_nothing_runs_before_the_cluster_is_up(layout: Layout) -> None:
    cluster = Cluster(layout, lambda text: None)
    assert set(cluster.status().values()) == {None}
    assert not cluster.is_up()


def test_a_pod_that_a_job_merely_owns_does_not_complete_on_a_fake_node(tmp_path: Path) -> None:
    folder = tmp_path / "pod/fast"
    folder.mkdir(parents=True)
    match = [{"key": ".metadata.ownerReferences.[].kind", "operator": "In", "values": ["Job"]}]
    stage = {"kind": "Stage", "spec": {"selector": {"matchExpressions": match}}}
    (folder / "pod-complete.yaml").write_text(yaml.safe_dump(stage))
    (folder / "kustomization.yaml").write_text("kind: Kustomization\n")
    (document,) = kwok_config(tmp_path)
    assert "controller == true" in document["spec"]["selector"]["matchExpressions"][0]["key"]
