"""The workflow as people run it, on the real Argo controller: `submit.py submit --profile cluster-demo`, whole and with
what a cluster does to pods meanwhile. Each part is noted; `make cluster-run` keeps the notes in docs/results.

Everything is real but the image of the steps: see `testbed/pipeline_image.py`. The parts share a namespace and its
volumes, in this order, as the runs of one user do; those that train are marked `scale`.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pipeline_rig import Pipeline, begun, pipeline_space

from agentic.cluster.resources import JsonObject
from agentic.rollout.records import Phase, read_records
from agentic.training import checkpoints
from agentic.training.audit import audit
from testbed.access import ClusterAccess
from workflows.argo.nodes import phase_of

TRANSCRIPT = "CLUSTER_RUN_TRANSCRIPT"
"""Environment variable: the file that the notes go to."""

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def pipeline(cluster: ClusterAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    folder = tmp_path_factory.mktemp("volumes")
    transcript = begun(Path(os.environ.get(TRANSCRIPT) or folder / "transcript.txt"))
    with pipeline_space(cluster, folder, transcript) as pipeline:
        yield pipeline


@pytest.fixture(autouse=True)
def named(pipeline: Pipeline, request: pytest.FixtureRequest) -> Iterator[None]:
    """The transcript says which test did what, and how it ended."""
    title = request.node.name.removeprefix("test_").replace("_", " ")
    failed = request.session.testsfailed
    pipeline.transcript.note(f"== {title}")
    yield
    pipeline.transcript.note(f"== {'passed' if request.session.testsfailed == failed else 'FAILED'}: {title}")


ASK_DASHBOARD = """\
import urllib.request
print(urllib.request.urlopen("http://raycluster-verl-head-svc:8265/api/gcs_healthz", timeout=30).read().decode())
"""
"""From a pod of the run, as the NetworkPolicy allows."""


def phases(pipeline: Pipeline, name: str, step: str) -> list[str]:
    return [node.phase for node in pipeline.attempts(name, step)]


REWARD = re.compile(r"step (\d)/3 · reward \d")
"""Of the line about a step."""


def is_swept(pipeline: Pipeline, run_id: str) -> None:
    """The exit handler has left nothing but what tells of the run: pods of its steps, and of image builds, that have
    ended. What an object owned goes a moment after it."""
    pipeline.wait(
        lambda: not pipeline.working(run_id), f"{run_id} to be swept", 120, lambda: str(pipeline.working(run_id))
    )


@pytest.mark.scale
def test_the_whole_dag_runs_as_pods_and_a_lost_step_and_a_lost_head_cost_no_more_than_a_checkpoint(
    pipeline: Pipeline,
) -> None:
    """The step's process is killed first, which its job survives, then the head with the trainer in it. At the end a
    folder is where the report should go, so that `retry` has only that to do again."""
    name = pipeline.submit("whole")
    run_dir = pipeline.run_dir("whole")
    step = pipeline.wait_for_pod(name, "train")

    def saved(workflow: JsonObject) -> bool:
        assert phase_of(workflow) == "Running", pipeline.describe(name)
        return checkpoints.latest_step(run_dir / "checkpoints") is not None

    pipeline.wait_for_run(name, lambda workflow: read_records(run_dir, Phase.TRAIN), "until it has a rollout")
    pipeline.inside(step, "pkill", "-KILL", "-f", "steps.train:run")
    second = pipeline.wait_for_pod(name, "train", attempt=1)
    assert "success" in pipeline.inside(second, "python", "-c", ASK_DASHBOARD)
    pipeline.wait_for_run(name, saved, "until it has a checkpoint")
    assert len(list((run_dir / "metrics").glob("attempt-*.jsonl"))) == 1, "the job went on without its step"
    heads, volume_log = [pipeline.head_pod()], run_dir / "logs" / "train.log"

    def is_shown(workflow: JsonObject) -> bool:
        return all(REWARD.search(log) for log in (pipeline.logs(heads[0]), volume_log.read_text()))

    pipeline.wait_for_run(name, is_shown, "until a step's reward is in the head's log and on the volume")
    said = [pipeline.logs(heads[0])]
    pipeline.delete_pod(heads[0])

    (run_dir / "report.html").mkdir()
    pipeline.wait_for_pod(name, "evaluate")
    heads.append(pipeline.head_pod())
    said.append(pipeline.logs(heads[1]))
    assert heads[0] != heads[1]
    for log in (*said, volume_log.read_text()):
        assert "loading data set " in log
        assert "loading model " in log
    shown = {step for log in said for step in REWARD.findall(log)}
    kept = set(REWARD.findall(volume_log.read_text()))
    pipeline.transcript.note(
        f"steps with a reward: {sorted(shown)} by kubectl logs of the heads, {sorted(kept)} on the volume"
    )
    assert (shown, kept) == ({"1", "2", "3"}, {"1", "2", "3"})
    assert pipeline.wait_until_over(name) == "Failed"
    assert phases(pipeline, name, "report") == ["Failed"], pipeline.describe(name)
    *lost, last = phases(pipeline, name, "train")
    assert (set(lost), last) == ({"Failed"}, "Succeeded")
    assert len(lost) >= 2
    attempts = sorted((run_dir / "metrics").glob("attempt-*.jsonl"))
    assert len(attempts) >= 2
    assert json.loads(attempts[-1].read_text().splitlines()[0])["step"] > 1, "training went on from a checkpoint"
    evaluation = json.loads((run_dir / "evaluation.json").read_text())
    graded = {split: rates["after"]["graded"] for split, rates in evaluation["splits"].items()}
    assert graded == {"same-template": 6, "new-template": 2}
    records = read_records(run_dir, Phase.TRAIN)
    assert sum(record.outcome.is_graded for record in records) >= 0.9 * len(records), "infrastructure held"
    verdict = audit(run_dir)
    assert verdict.holds, verdict
    is_swept(pipeline, "whole")

    (run_dir / "report.html").rmdir()
    assert pipeline.of_run("retry", "whole").code == 0
    assert pipeline.wait_until_over(name) == "Succeeded", pipeline.describe(name)
    assert phases(pipeline, name, "evaluate") == ["Succeeded"], "not again"
    assert (run_dir / "report.html").is_file()
    is_swept(pipeline, "whole")


SHORT = (
    *("data.name=short", "model.name=short"),
    *("data.train=4", "data.same_template=2", "data.new_template=0", "images.shards=1", "model.steps=5"),
    *("train.steps=1", "train.prompts_per_step=2", "train.rollouts_per_prompt=2", "train.micro_batch_rollouts=4"),
    "train.validate_every=1",
)
"""One step of training on four tasks: what a run needs to have behind it that is gone on with. It has folders of its
own for them: other runs of the namespace go on with theirs."""


@pytest.mark.scale
def test_a_run_that_has_trained_is_gone_on_with_in_every_way_after_its_cluster_was_swept(pipeline: Pipeline) -> None:
    """`argo resubmit --memoized`, then `resume --from evaluate`, whose results are gone; then nothing is left of it."""
    run_dir = pipeline.run_dir("short")
    (run_dir / "report.html").mkdir(parents=True)
    name = pipeline.submit("short", *SHORT)
    assert pipeline.wait_until_over(name) == "Failed"
    ended = pipeline.steps(name)
    assert (ended["train"], ended["evaluate"], ended["report"]) == ("Succeeded", "Succeeded", "Failed"), ended
    is_swept(pipeline, "short")

    (run_dir / "report.html").rmdir()
    evaluation, records = run_dir / "evaluation.json", run_dir / "rollouts"
    written = {path: path.stat().st_mtime_ns for path in (evaluation, *records.glob("*.jsonl"))}
    assert pipeline.argo("resubmit", "--memoized", name).code == 0
    again = pipeline.resubmitted(name)
    assert pipeline.wait_until_over(again) == "Succeeded", pipeline.describe(again)
    assert phases(pipeline, again, "report") == ["Succeeded"]
    assert (run_dir / "report.html").is_file()
    assert {path: path.stat().st_mtime_ns for path in written} == written, "nothing was trained or measured again"
    assert len(list((run_dir / "metrics").glob("attempt-*.jsonl"))) == 1
    is_swept(pipeline, "short")

    before = json.loads(evaluation.read_text())
    evaluation.unlink()
    for record in (run_dir / "rollouts").glob("evaluate*"):
        record.unlink()
    assert pipeline.of_run("resume", "short", "--from", "evaluate").code == 0
    name = "agentic-rl-short-attempt-2"
    assert pipeline.wait_until_over(name) == "Succeeded", pipeline.describe(name)
    ended = pipeline.steps(name)
    assert (ended["train"], ended["evaluate"], ended["report"]) == ("Skipped", "Succeeded", "Succeeded"), ended
    assert json.loads(evaluation.read_text())["splits"].keys() == before["splits"].keys()
    assert pipeline.of_run("explain", "short").said == "run short shows no trouble that has a name\n"

    assert pipeline.of_run("cleanup", "short").code == 0
    assert pipeline.labelled("short") == []
    assert (run_dir / "report.html").is_file()


def test_a_step_without_enough_memory_is_tried_again_and_then_fails_by_that_name(pipeline: Pipeline) -> None:
    name = pipeline.submit("small", "cluster.light.memory=40Mi", "cluster.retries=1", "cluster.retry_seconds=1")

    assert pipeline.wait_until_over(name) == "Failed"
    killed = pipeline.attempts(name, "preflight")
    assert len(killed) == 2
    assert all("OOMKilled" in node.message for node in killed), killed
    explained = pipeline.of_run("explain", "small")
    named = {line.partition(":")[0] for line in explained.said.splitlines() if not line.startswith(" ")}
    assert (explained.code, named) == (75, {"out-of-memory"}), "by its name alone, and that it may pass"
    assert "cluster.light.memory" in explained.said


def test_what_cannot_pass_fails_at_once_with_its_reason_and_goes_on_once_it_is_mended(pipeline: Pipeline) -> None:
    """The report's place is taken by a folder, which is removed before `argo retry`."""
    in_the_way = pipeline.run_dir("mended") / "report.html"
    in_the_way.mkdir(parents=True)
    name = pipeline.submit("mended", "--start-from", "report")
    assert pipeline.wait_until_over(name) == "Failed"
    assert phases(pipeline, name, "report") == ["Failed"], "no second try"
    assert phases(pipeline, name, "cleanup") == ["Succeeded"]
    assert "directory" in pipeline.of_run("status", "mended").said, "the step's own words"

    in_the_way.rmdir()
    pipeline.argo_retry(name)
    assert pipeline.wait_until_over(name) == "Succeeded", pipeline.describe(name)
    assert in_the_way.is_file()


def test_deleted_and_evicted_pods_are_replaced_and_a_stopped_run_leaves_nothing(pipeline: Pipeline) -> None:
    name = pipeline.submit("moved", "--start-from", "train")
    pipeline.delete_pod(pipeline.wait_for_pod(name, "train"))
    pipeline.evict_pod(pipeline.wait_for_pod(name, "train", attempt=1))
    pipeline.wait_for_pod(name, "train", attempt=2)

    assert pipeline.of_run("stop", "moved").code == 0
    assert pipeline.wait_until_over(name) == "Failed"
    # Argo calls a stopped Workflow completed while its exit handler still runs, and looks at that no more.
    is_swept(pipeline, "moved")
    assert pipeline.of_run("cleanup", "moved").code == 0
    assert pipeline.labelled("moved") == []


@pytest.mark.scale
def test_a_run_is_resumed_from_evaluation_after_its_cluster_was_swept(pipeline: Pipeline) -> None:
    """Evaluation is done anew since what it had written is gone."""
    evaluation = pipeline.run_dir("whole") / "evaluation.json"
    before = json.loads(evaluation.read_text())
    evaluation.unlink()
    for record in (pipeline.run_dir("whole") / "rollouts").glob("evaluate*"):
        record.unlink()

    assert pipeline.of_run("resume", "whole", "--from", "evaluate").code == 0
    name = "agentic-rl-whole-attempt-2"
    assert pipeline.wait_until_over(name) == "Succeeded", pipeline.describe(name)
    assert phases(pipeline, name, "train") == []
    assert json.loads(evaluation.read_text())["splits"].keys() == before["splits"].keys()


@pytest.mark.scale
def test_cleanup_leaves_nothing_with_the_runs_label_but_its_folder(pipeline: Pipeline) -> None:
    assert pipeline.of_run("cleanup", "whole").code == 0
    assert pipeline.labelled("whole") == []
    assert (pipeline.run_dir("whole") / "report.html").is_file()
