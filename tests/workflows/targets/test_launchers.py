"""The command line's targets that are launchers, as people use them."""

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
SUBMIT = ROOT / "workflows" / "submit.py"
SYSTEM = "/usr/bin:/bin"


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def submit(*arguments: str, workspace: Path, path: str = SYSTEM, **more: str) -> Ended:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AGENTIC", "RAY_"))},
        **{"PATH": path, "AGENTIC_WORKSPACE": str(workspace), "KUBECONFIG": "/nonexistent", **more},
    }
    words = [sys.executable, str(SUBMIT), *arguments]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return Ended(done.returncode, done.stdout, done.stderr)


def program(folder: Path, name: str, script: str) -> str:
    """A program of that name, first on a PATH; what it is given lies in `<name>.words` beside it."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{folder}/{name}.words\n{script}\n')
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return f"{folder}:{SYSTEM}"


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A PATH without any launcher, whatever this machine has."""
    (tmp_path / "bare").mkdir()
    return str(tmp_path / "bare")


def test_render_prints_the_script_and_the_task(tmp_path: Path) -> None:
    script = submit("render", "--target", "slurm", "--profile", "demo", "--run-id", "first", workspace=tmp_path)
    assert script.code == 0
    assert script.out.startswith("#!/usr/bin/env bash\n#SBATCH --job-name=agentic-rl-first\n")
    task = submit("render", "--target", "skypilot", "--profile", "demo", "--run-id", "first", workspace=tmp_path)
    assert task.code == 0
    assert yaml.safe_load(task.out)["resources"]["infra"] == "k8s"


MODEL = {
    **{"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2},
    **{"intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True},
}
"""The shape of Qwen2.5-0.5B-Instruct."""


def test_plan_shows_the_same_sizing_for_each_target(tmp_path: Path) -> None:
    model = tmp_path / "models" / "Qwen2.5-0.5B-Instruct"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(MODEL))
    (model / "model.safetensors").touch()
    words = ["--profile", "ppo-gsm8k", "skypilot.volume=shared"]
    shown = {
        target: submit("plan", "--target", target, *words, workspace=tmp_path)
        for target in ("argo", "local", "slurm", "skypilot")
    }
    assert {target: ended.code for target, ended in shown.items()} == dict.fromkeys(shown, 0)
    sizing = {
        target: [line for line in ended.out.splitlines() if line.startswith(("training", "schedule", "sizes"))]
        for target, ended in shown.items()
    }
    assert sizing["slurm"] == sizing["skypilot"] == sizing["local"] == sizing["argo"]
    assert "sizes       total_gpus 8, data_parallel 8, tensor_parallel 1" in sizing["slurm"][2]
    assert "job         2 nodes of 4 GPUs, 64 CPUs and 200G, 01:00:00 for each start" in shown["slurm"].out
    assert "task        verl-ppo: 2 nodes of 4 GPUs H100 and 128+ GiB on k8s" in shown["skypilot"].out


@pytest.mark.parametrize(("target", "name"), [("slurm", "sbatch"), ("skypilot", "sky")])
def test_a_launcher_that_is_not_installed_is_one_line_and_leaves_nothing(
    target: str, name: str, bare: str, tmp_path: Path
) -> None:
    ended = submit("submit", "--target", target, "--profile", "demo", workspace=tmp_path / "w", path=bare)
    assert (ended.code, ended.out) == (78, "")
    assert ended.err.startswith(f"{name} is not installed on this machine, and --target {target} needs it: write the ")
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "w").exists()


def test_submitting_to_slurm_keeps_the_script_and_says_the_job(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "sbatch", "echo '42;main'")
    words = ["submit", "--target", "slurm", "--profile", "demo", "--run-id", "first", "train.steps=4"]
    ended = submit(*words, workspace=tmp_path, path=path)
    assert (ended.code, ended.err) == (0, "")
    assert "job 42 is submitted for run first" in ended.out
    script = tmp_path / "runs" / "first" / "job.sbatch"
    assert (tmp_path / "bin" / "sbatch.words").read_text().splitlines() == ["--parsable", str(script)]
    assert "train.steps=4" in script.read_text()


def test_what_slurm_refuses_is_one_line(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "sbatch", "echo 'sbatch: error: invalid partition specified: gpu' >&2; exit 1")
    ended = submit("submit", "--target", "slurm", "--profile", "demo", workspace=tmp_path, path=path)
    assert ended.code == 78
    assert ended.err == "sbatch refuses the job: sbatch: error: invalid partition specified: gpu\n"


def test_submitting_to_skypilot_launches_the_task_and_gives_secrets_by_name(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "sky", "exit 0")
    words = ["submit", "--target", "skypilot", "--profile", "demo", "--run-id", "first"]
    missing = submit(*words, workspace=tmp_path, path=path)
    assert missing.code == 78
    assert missing.err.startswith("the environment has no RAY_AUTH_TOKEN")
    ended = submit(*words, workspace=tmp_path, path=path, RAY_AUTH_TOKEN="very secret")
    assert (ended.code, ended.err) == (0, "")
    task = tmp_path / "runs" / "first" / "agentic-grpo.yaml"
    given = (tmp_path / "bin" / "sky.words").read_text().splitlines()
    assert given == ["launch", "-c", "agentic-grpo", str(task), "--secret", "RAY_AUTH_TOKEN", "-y"]
    assert "very secret" not in task.read_text()


@pytest.mark.parametrize("verb", ["retry", "resume", "stop", "watch", "explain", "cleanup"])
def test_verbs_of_a_cluster_are_refused_by_name(verb: str, tmp_path: Path) -> None:
    ended = submit(verb, "first", "--target", "slurm", workspace=tmp_path)
    assert ended.code == 78
    assert re.fullmatch(rf"{verb} is no business of --target slurm: use submit, .*\n", ended.err)


def test_watching_is_the_launchers_own(tmp_path: Path) -> None:
    ended = submit("submit", "--watch", "--target", "slurm", "--profile", "demo", workspace=tmp_path)
    assert ended.code == 78
    assert "--watch is no business of --target slurm" in ended.err
