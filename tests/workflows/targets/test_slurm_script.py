"""The batch script: as reviewed, plain bash, and saying what the settings say."""

import os
import shlex
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from workflows.errors import CommandError, SettingsError
from workflows.settings import load_settings
from workflows.targets import slurm
from workflows.targets.launch import Launch

HERE = Path(__file__).parent
TWO_NODES = ["train.nodes=2", "cluster.workers.replicas=1"]


def launch(**changes: Any) -> Launch:
    given: dict[str, Any] = {
        "run_id": "first",
        "profile": "demo",
        "arguments": (),
        "variables": (),
        "start_from": None,
        "project": PurePosixPath("/shared/agentic-rl"),
        "workspace": PurePosixPath("/shared/workspace"),
    }
    return Launch(**given | changes)


def rendered(*arguments: str, profile: str = "demo", **changes: Any) -> str:
    return slurm.render(load_settings(profile, arguments, {}), launch(profile=profile, arguments=arguments, **changes))


def directives(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


def head_of(script: str) -> str:
    """Without the part that is the same for every run."""
    return script.removesuffix(slurm.BODY.read_text())


def in_bash(script: str, command: str) -> str:
    """What bash makes of the assignments."""
    words = ["bash", "-uc", f"{head_of(script)}\n{command}"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_NETWORK_INTERFACE"}
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout


EVERYTHING = [
    *TWO_NODES,
    "slurm.partition=gpu",
    "slurm.account=lab",
    'slurm.options=["--qos=high"]',
    "slurm.image=docker://example/trainer:1",
    'slurm.binds=["/scratch"]',
    'slurm.setup=["module load apptainer"]',
    "slurm.interface=ib0",
    'slurm.data_interfaces=["ib0", "ib1"]',
]


@pytest.mark.parametrize(
    ("name", "profile", "arguments"),
    [
        ("demo-two-nodes", "demo", EVERYTHING),
        ("ppo-gsm8k", "ppo-gsm8k", []),
        ("swe-qwen2.5-7b", "swe-qwen2.5-7b", []),
    ],
)
def test_the_head_of_the_script_is_the_reviewed_one(name: str, profile: str, arguments: list[str], golden: Any) -> None:
    golden(HERE / "golden" / f"{name}.sbatch", head_of(rendered(*arguments, profile=profile)))


@pytest.mark.parametrize("arguments", [[], EVERYTHING, ["slurm.dashboard_port=null", "slurm.requeue=false"]])
def test_shellcheck_finds_nothing(arguments: list[str], tmp_path: Path) -> None:
    path = tmp_path / "job.sbatch"
    path.write_text(rendered(*arguments))
    words = [str(Path(sys.executable).with_name("shellcheck"))]
    done = subprocess.run([*words, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_nodes_and_gpus_are_those_of_training_and_the_rest_is_slurms() -> None:
    words = ["train.nodes=2", "cluster.workers.replicas=1", "cluster.workers.gpus=8"]
    script = rendered(*words, "slurm.partition=gpu", "slurm.account=lab", profile="swe-qwen2.5-7b")
    wanted = {"--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=8", "--partition=gpu", "--account=lab", "--requeue"}
    assert wanted <= set(directives(script))


def test_without_a_gpu_none_is_asked_for() -> None:
    assert not [line for line in directives(rendered()) if "gpu" in line]


def test_the_payload_is_this_machines_workflow_with_all_that_was_given() -> None:
    script = rendered("train.steps=4", 'rollout.agent.kind="shell"', variables=(("AGENTIC__TRAIN__SEED", "7 8"),))
    words = in_bash(script, 'printf "%s\\n" "${PAYLOAD[@]}"').splitlines()
    assert words[:2] == ["env", "AGENTIC__TRAIN__SEED=7 8"]
    assert words[2:5] == ["/shared/agentic-rl/.venv/bin/python", "workflows/submit.py", "local"]
    assert words[5:] == ["--profile", "demo", "--run-id", "first", "train.steps=4", 'rollout.agent.kind="shell"']


@pytest.mark.parametrize("word", ["$(touch broken)", "a b", "'", '"; exit 1', "`id`", "\\"])
def test_no_setting_is_read_as_shell(word: str) -> None:
    script = rendered(f"slurm.python=/opt/{word}/python")
    assert in_bash(script, 'printf %s "${PYTHON[0]}"') == f"/opt/{word}/python"


def test_a_word_with_a_line_break_cannot_become_a_directive() -> None:
    with pytest.raises(SettingsError, match=r"slurm\.partition"):
        load_settings("demo", ['slurm.partition="gpu\\n#SBATCH --wrap=id"'], {})
    with pytest.raises(SettingsError, match=r"slurm\.options"):
        load_settings("demo", ['slurm.options=["--qos=a\\n#SBATCH --wrap=id"]'], {})


def test_the_image_is_shown_project_workspace_and_what_is_bound_and_gpus_only_where_there_are() -> None:
    words = shlex.split(in_bash(rendered(*EVERYTHING), 'printf "%s " "${IN_IMAGE[@]}"'))
    assert words[:2] == ["apptainer", "exec"]
    assert words[-1] == "docker://example/trainer:1"
    assert {"--bind=/shared/agentic-rl", "--bind=/shared/workspace", "--bind=/scratch"} <= set(words)
    assert "--nv" not in words
    assert "--nv" in in_bash(rendered("slurm.image=trainer.sif", profile="swe-qwen2.5-7b"), 'echo "${IN_IMAGE[@]}"')


def test_the_interface_of_the_environment_comes_before_that_of_the_settings() -> None:
    script = rendered("slurm.interface=ib0")
    assert in_bash(script, 'printf %s "$INTERFACE"') == "ib0"
    assert in_bash(f"RAY_NETWORK_INTERFACE=eth1\n{script}", 'printf %s "$INTERFACE"') == "eth1"


def test_pods_are_refused_where_there_is_no_kubernetes() -> None:
    with pytest.raises(CommandError, match=r"sandbox\.provider is pod but --target slurm has no Kubernetes"):
        rendered("sandbox.provider=pod", profile="swe-qwen2.5-7b")


def address_of_a_node(folder: Path, own: str, others: str, peer: str = "") -> str:
    """What the body takes for a node's address, where the host's name stands for some and it has others."""
    (folder / "hostname").write_text(
        f'#!/bin/sh\ncase $1 in --ip-address) echo "{own}" ;; --all-*) echo "{others}" ;; *) echo node ;; esac\n'
    )
    (folder / "ip").write_text('#!/bin/sh\necho "$4 via 10.0.0.1 dev eth3 src 10.0.0.9 uid 0"\n')
    for name in ("hostname", "ip"):
        (folder / name).chmod(0o755)
    functions = rendered().removesuffix("\nmain\n")
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    words = ["bash", "-c", f'{functions}\naddress=$(own_address {peer}) && with_port "$address" 6379']
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip()


@pytest.mark.parametrize(
    ("own", "others", "found"),
    [
        ("10.0.0.7", "", "10.0.0.7:6379"),
        ("2001:db8::7 10.0.0.7", "", "10.0.0.7:6379"),
        ("127.0.1.1", "10.0.0.7 2001:db8::7", "10.0.0.7:6379"),
        ("fe80::1 2001:db8::7", "", "[2001:db8::7]:6379"),
        ("::1", "fe80::1 2001:db8::7", "[2001:db8::7]:6379"),
        ("127.0.1.1", "", "slurm: node has no address but loopback: set slurm.interface or RAY_NETWORK_INTERFACE"),
    ],
)
def test_without_a_chosen_interface_a_node_has_its_names_address_ipv4_first(
    own: str, others: str, found: str, tmp_path: Path
) -> None:
    assert address_of_a_node(tmp_path, own, others).splitlines()[0] == found


def test_a_worker_has_the_address_from_which_it_reaches_the_head(tmp_path: Path) -> None:
    assert address_of_a_node(tmp_path, "10.1.1.1", "10.2.2.2", peer="10.0.0.1") == "10.0.0.9:6379"
