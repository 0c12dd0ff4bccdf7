"""A job that was killed goes on with what is left, and only if it is still the same job."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.errors import PermanentError
from agentic.rollout.outcomes import Outcome
from agentic.rollout.records import Phase, PhaseSeconds, RolloutRecord, append_record
from agentic.rollout.settings import RolloutSettings
from agentic.sandbox.settings import BubblewrapSandbox
from agentic.tasks.manifest import Manifest
from agentic.training import checkpoints, metrics, resume
from agentic.training.control import permute_within_groups
from agentic.training.errors import TrainingError, TrainingInterrupted
from agentic.training.job import failure_of, summarise
from agentic.training.jobs import TrainJob
from agentic.training.resume import Plan
from agentic.training.settings import RaySettings, TrainSettings

EIGHT = TrainSettings(steps=8, validate_every=4)


@pytest.mark.parametrize(
    ("latest", "validated", "left"),
    [
        (None, [], Plan(is_done=False, validates_first=True, validates_only=False)),
        (None, [0], Plan(is_done=False, validates_first=True, validates_only=False)),
        (3, [0], Plan(is_done=False, validates_first=False, validates_only=False)),
        (4, [0, 4], Plan(is_done=False, validates_first=False, validates_only=False)),
        (4, [0], Plan(is_done=False, validates_first=True, validates_only=False)),
        (8, [0, 4], Plan(is_done=False, validates_first=True, validates_only=True)),
        (8, [0, 4, 8], Plan(is_done=True, validates_first=False, validates_only=False)),
    ],
)
def test_a_checkpoint_whose_validation_was_not_logged_is_validated_first(
    latest: int | None, validated: list[int], left: Plan
) -> None:
    assert resume.plan(latest, validated, EIGHT, stalled=False) == left


def test_the_last_step_is_validated_even_off_the_schedule() -> None:
    odd = TrainSettings(steps=7, validate_every=4)
    assert resume.plan(7, [0, 4], odd, stalled=False).validates_only


def test_a_job_that_was_stopped_early_stays_stopped() -> None:
    assert resume.plan(4, [0, 4], EIGHT, stalled=True).is_done
    assert not resume.plan(4, [0], EIGHT, stalled=True).is_done


@given(
    latest=st.none() | st.integers(1, 12),
    validated=st.sets(st.integers(0, 12)),
    steps=st.integers(1, 12),
    every=st.integers(1, 5),
    stalled=st.booleans(),
)
def test_nothing_is_done_before_its_last_checkpoint_is_validated(
    latest: int | None, validated: set[int], steps: int, every: int, stalled: bool
) -> None:
    left = resume.plan(latest, validated, TrainSettings(steps=steps, validate_every=every), stalled=stalled)

    assert not (left.is_done and (left.validates_first or left.validates_only))
    assert left.validates_first or not left.validates_only
    if left.is_done and latest is not None and latest >= steps:
        assert latest in validated


def make_job(folder: Path, *, content: str = "d", weights: bytes = b"w", **changes: Any) -> TrainJob:
    data, model = folder / "data", folder / "model"
    data.mkdir(exist_ok=True)
    model.mkdir(exist_ok=True)
    splits = {"train": ["a"], "held-out": ["b"]}
    manifest = Manifest(
        name="n", source="folder", recipe_sha256="r", seed=0, counts={}, splits=splits, content_sha256=content
    )
    (data / "manifest.json").write_text(manifest.model_dump_json())
    (model / "model.safetensors").write_bytes(weights)
    train = {"device": "cpu", "gpus_per_node": 1, "steps": 8} | changes.pop("train", {})
    run_dir = folder / "runs" / "r"
    run_dir.mkdir(parents=True, exist_ok=True)
    return TrainJob(
        run_id="r",
        run_dir=run_dir,
        model_dir=model,
        data_dir=data,
        store_dir=folder / "images",
        train=TrainSettings(**train),
        ray=RaySettings(),
        rollout=RolloutSettings(**changes.pop("rollout", {})),
        sandbox=BubblewrapSandbox(**changes.pop("sandbox", {})),
    )


def rolled_out(folder: Path) -> None:
    (folder / "runs" / "r" / "rollouts").mkdir(parents=True)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"train": {"learning_rate": 0.5}}, "train.learning_rate"),
        ({"train": {"seed": 3, "clip_ratio": 0.1}}, "train.clip_ratio, train.seed"),
        ({"rollout": {"deadline_seconds": 500}}, "rollout.deadline_seconds"),
        ({"sandbox": {"memory_mb": 777}}, "sandbox.memory_mb"),
        ({"content": "other"}, "data"),
        ({"weights": b"other"}, "model"),
    ],
)
def test_rollouts_of_other_settings_are_never_taken_for_this_jobs(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    resume.claim(make_job(tmp_path))
    rolled_out(tmp_path)

    with pytest.raises(PermanentError, match=f"another {named}: give a new --run-id"):
        resume.claim(make_job(tmp_path, **changes))
    resume.claim(make_job(tmp_path))


@pytest.mark.parametrize("changes", [{"train": {"steps": 20, "threads": 1}}, {"rollout": {"concurrency": 3}}])
def test_how_long_and_how_fast_a_run_goes_may_change(tmp_path: Path, changes: dict[str, Any]) -> None:
    resume.claim(make_job(tmp_path))
    rolled_out(tmp_path)

    resume.claim(make_job(tmp_path, **changes))


def test_a_run_without_rollouts_takes_new_settings(tmp_path: Path) -> None:
    resume.claim(make_job(tmp_path))
    resume.claim(make_job(tmp_path, train={"seed": 5}))

    identity = json.loads((tmp_path / "runs" / "r" / "identity.json").read_text())
    assert identity["train"]["seed"] == 5


def test_a_checkpoint_beyond_the_tracker_is_what_a_killed_trainer_left(tmp_path: Path) -> None:
    assert checkpoints.saved_steps(tmp_path) == []
    for step in (2, 4, 6):
        checkpoints.policy_dir(tmp_path, step).mkdir(parents=True)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("4")

    assert checkpoints.latest_step(tmp_path) == 4
    assert checkpoints.saved_steps(tmp_path) == [2, 4]


def test_of_a_checkpoint_that_verl_pruned_only_the_place_in_the_data_is_left(tmp_path: Path) -> None:
    (tmp_path / "global_step_10").mkdir()
    (tmp_path / "global_step_10/data.pt").write_bytes(b"")
    checkpoints.policy_dir(tmp_path, 20).mkdir(parents=True)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("20")

    assert checkpoints.saved_steps(tmp_path) == [20]


def test_a_validation_that_was_lost_is_not_told_as_a_schedule_that_does_not_meet_it(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    checkpoints.policy_dir(job.checkpoint_dir, 4).mkdir(parents=True)
    (job.checkpoint_dir / "latest_checkpointed_iteration.txt").write_text("4")
    held_out = job.held_out()[0]
    line = {"step": 4, "data": {f"val-core/{held_out.source}/reward/mean@1": 0.0}}
    metrics.attempt_file(job.run_dir).write_text(json.dumps(line) + "\n")
    seconds = PhaseSeconds(total=1.0)
    lost = {"rollout_id": "r", "phase": Phase.VALIDATION, "step": 4, "task": "b", "split": held_out.split}
    lost |= {"outcome": Outcome.INFRA, "reward": None, "attempt": 1, "started": 0.0, "seconds": seconds}
    append_record(job.run_dir, RolloutRecord(**lost))

    with pytest.raises(TrainingError, match=r"at the saved steps \[4\] mostly were lost to infrastructure"):
        summarise(job)


def test_a_disk_that_is_full_at_a_restart_leaves_the_runs_identity_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(tmp_path)
    resume.claim(job)

    def is_full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", is_full)
        with pytest.raises(OSError, match="No space left"):
            resume.claim(make_job(tmp_path, train={"seed": 5}))
    resume.claim(job)


def test_an_identity_that_nobody_can_read_is_named(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    resume.claim(job)
    (tmp_path / "runs/r/identity.json").write_text("")
    with pytest.raises(PermanentError, match=r"identity\.json cannot be read .*: delete it"):
        resume.claim(job)


@pytest.mark.parametrize(
    ("text", "code", "kind", "says"),
    [
        ("omegaconf.errors.ConfigKeyError: no such key\n", 1, TrainingError, "ConfigKeyError: no such key"),
        ("\x1b[36m(TaskRunner pid=7)\x1b[0m AssertionError: batch\n", 1, TrainingError, "AssertionError: batch"),
        ("ray.exceptions.RayTaskError(TypeError): ray::run()\nTypeError: None\n", 1, TrainingError, "TypeError: None"),
        ("ConnectionError: Failed to connect to Ray\n", 1, TrainingInterrupted, "Failed to connect"),
        ("UserWarning: engine: ModuleNotFoundError('x')\n", 1, TrainingInterrupted, "exit code 1"),
        ("AssertionError: batch\n", -9, TrainingInterrupted, "trying again resumes"),
        (
            "(AgentLoopWorkerTQ pid=12) agentic.rollout.errors.TrialServerRefusal: the trial server refuses: no key\n"
            "ValueError: Received an empty list as keys.\n",
            1,
            TrainingError,
            "TrialServerRefusal: the trial server refuses: no key",
        ),
        (
            "agentic.nowhere.errors.OddError: what\nagentic.images.errors.OddError: what\nValueError: no keys\n",
            1,
            TrainingInterrupted,
            "ValueError: no keys",
        ),
        (
            "(W pid=3) agentic.sandbox.errors.SandboxSetupError: no cgroups here\nValueError: no keys\n",
            1,
            TrainingError,
            "SandboxSetupError: no cgroups here",
        ),
        ("agentic.sandbox.errors.SandboxSetupError: no cgroups\n", -9, TrainingInterrupted, "trying again resumes"),
        (
            "agentic.rollout.errors.ProxyUnavailableError: the proxy's process died\nValueError: no keys\n",
            1,
            TrainingInterrupted,
            "ValueError: no keys",
        ),
    ],
)
def test_only_what_does_not_depend_on_the_moment_is_permanent(
    tmp_path: Path, text: str, code: int, kind: type[Exception], says: str
) -> None:
    log = tmp_path / "trainer.log"
    earlier = "AssertionError: of an earlier start\n"
    log.write_text(earlier + text)

    failure = failure_of(code, log, len(earlier))

    assert type(failure) is kind
    assert says in str(failure)
    assert "earlier" not in str(failure)
    assert "\n" not in str(failure)


@given(
    rewards=st.dictionaries(
        st.tuples(st.sampled_from(["g1", "g2", "uid_x"]), st.integers(0, 7)).map(lambda key: f"{key[0]}_{key[1]}"),
        st.sampled_from([0.0, 1.0]),
    ),
    seed=st.integers(0, 99),
)
def test_the_control_keeps_every_groups_rewards_and_forgets_who_earned_them(
    rewards: dict[str, float], seed: int
) -> None:
    permuted = permute_within_groups(rewards, random.Random(seed))

    assert permuted.keys() == rewards.keys()
    for group in {session.rpartition("_")[0] for session in rewards}:
        members = [session for session in rewards if session.rpartition("_")[0] == group]
        assert sorted(permuted[one] for one in members) == sorted(rewards[one] for one in members)


def test_the_control_really_permutes() -> None:
    rewards = {f"g_{number}": float(number) for number in range(16)}

    assert permute_within_groups(rewards, random.Random(0)) != rewards
