"""How the run's actors start, and what their callers see of failures; Ray's own errors, without a cluster."""

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
import sys
import types
from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from agentic.errors import PermanentError, TransientError
from agentic.proxy import ProxyError, ProxySettings, Sampling, SessionSpec
from agentic.rollout.actors import StartOnce
from agentic.rollout.errors import ProxyUnavailableError, RolloutConfigError
from agentic.rollout.leases import Leases
from agentic.rollout.proxy_actor import ActorProxy, RunProxyActor
from agentic.rollout.runner_actor import ActorTrials, TrialRunnerActor
from agentic.rollout.settings import ScriptedAgentSettings
from agentic.rollout.trial import EnvironmentSpec, TrialRequest
from agentic.sandbox.errors import SandboxSetupError
from agentic.sandbox.settings import BubblewrapSandbox, PodmanSandbox

SPEC = SessionSpec(
    session_id="s",
    sampling=Sampling(temperature=1.0, max_tokens=8),
    max_prompt_tokens=100,
    max_response_tokens=100,
    max_calls=4,
)


class FailingActor:
    """Stands for a handle: every call of every method ends with this error."""

    def __init__(self, error):
        self._error = error

    def __getattr__(self, method):
        return self

    async def remote(self, *arguments):
        raise self._error


def raised_inside(cause):
    """As Ray hands over what an actor's method raised."""
    return RayTaskError("open", "traceback", cause, proctitle="actor", ip="127.0.0.1").as_instanceof_cause()


@pytest.fixture
def request_for(tmp_path):
    return TrialRequest(
        trial_id="t",
        task_dir=str(tmp_path / "nowhere"),
        trials_dir=str(tmp_path / "trials"),
        agent=ScriptedAgentSettings(),
        base_url="http://127.0.0.1:9/v1",
        api_key="key",
        deadline_seconds=9,
        start_seconds=2,
        grading_seconds=2,
    )


async def test_what_starts_is_started_once_for_all():
    starts = []

    async def start():
        starts.append(1)
        await asyncio.sleep(0.01)
        return len(starts)

    once = StartOnce(start)
    assert await asyncio.gather(*(once.get() for _ in range(20))) == [1] * 20
    assert await once.get() == 1


async def test_a_failed_start_is_told_to_all_who_waited_and_tried_again():
    starts = []

    async def start():
        starts.append(1)
        await asyncio.sleep(0.01)
        if len(starts) < 3:
            raise TransientError(f"try {len(starts)}")
        return "up"

    once = StartOnce(start)
    for number in (1, 2):
        results = await asyncio.gather(*(once.get() for _ in range(5)), return_exceptions=True)
        assert [str(result) for result in results] == [f"try {number}"] * 5
    assert await once.get() == "up"
    assert len(starts) == 3


async def test_a_caller_that_is_cancelled_does_not_cancel_the_start():
    async def start():
        await asyncio.sleep(0.05)
        return "up"

    once = StartOnce(start)
    first = asyncio.create_task(once.get())
    await asyncio.sleep(0)
    first.cancel()
    assert await once.get() == "up"


@pytest.mark.parametrize("side", ["port", "control_port"])
async def test_a_proxy_whose_port_is_held_starts_when_it_is_free(policy, model_dir, side):
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        settings = ProxySettings(**{side: holder.getsockname()[1]})
        actor = RunProxyActor(settings, lambda: policy("hi").engine, model_dir)
        with pytest.raises(ProxyError, match="cannot listen"):
            await actor.open(SPEC)
    try:
        assert (await actor.open(SPEC)).session_id == "s"
    finally:
        await actor.stop()


async def test_a_runner_that_could_not_sweep_runs_trials_when_it_can(tmp_path, request_for):
    engine = tmp_path / "engine"
    actor = TrialRunnerActor("run", tmp_path / "images", PodmanSandbox(program=str(engine)), 1)
    with pytest.raises(SandboxSetupError, match="no program"):
        await actor.run(request_for, "worker")
    engine.write_text("#!/bin/sh\n")
    engine.chmod(0o755)
    assert (await actor.run(request_for, "worker")).facts.rewards is None
    await actor.close()


@pytest.mark.parametrize("error", [OSError(98, "in use"), TransientError("no"), RuntimeError("odd"), ValueError("odd")])
async def test_a_failure_inside_an_actor_is_infra_and_is_tried_again(error, request_for):
    handle = FailingActor(raised_inside(error))
    for call in (ActorProxy(handle).open(SPEC), ActorProxy(handle).seal("s"), ActorProxy(handle).drop("s")):
        with pytest.raises(ProxyUnavailableError, match=type(error).__name__):
            await call
    facts = (await ActorTrials(handle).run(request_for)).facts
    assert (facts.rewards, facts.exception) == (None, type(error).__name__)
    assert str(error) in facts.message


async def test_a_dead_actor_is_infra(request_for):
    handle = FailingActor(ActorDiedError())
    with pytest.raises(ProxyUnavailableError, match="died"):
        await ActorProxy(handle, return_seconds=0).open(SPEC)
    assert (await ActorTrials(handle, return_seconds=0).run(request_for)).facts.rewards is None


class ReturningActor:
    """Stands for a handle of an actor that is dead until so many looks were taken."""

    def __init__(self, looks):
        self.looks = looks
        self.calls = []

    def __getattr__(self, method):
        async def remote(*arguments):
            self.calls.append(method)
            self.looks -= method == "__ray_ready__"
            if self.looks > 0 or method != "__ray_ready__":
                raise ActorDiedError()

        return types.SimpleNamespace(remote=remote)


async def test_an_attempt_that_a_dying_actor_lost_ends_once_another_one_is_there(request_for):
    handle = ReturningActor(looks=3)
    proxy = ActorProxy(handle)
    results = await asyncio.gather(*(proxy.open(SPEC) for _ in range(50)), return_exceptions=True)
    assert {type(result) for result in results} == {ProxyUnavailableError}
    assert handle.calls.count("__ray_ready__") == 3, "all wait together"
    handle.looks = 1000
    with pytest.raises(ProxyUnavailableError):
        await asyncio.wait_for(proxy.drop("s"), 5)  # What a dead proxy held is gone.
    trials = ReturningActor(looks=2)
    assert (await ActorTrials(trials).run(request_for)).facts.exception == "ActorDiedError"
    assert trials.calls.count("__ray_ready__") == 2


@pytest.mark.timeout(240)
def test_the_attempt_after_a_proxys_death_meets_the_next_one_however_long_that_takes(tmp_path):
    program = Path(__file__).with_name("drive_actor_return.py")
    command = [sys.executable, str(program), str(tmp_path), "8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == ["ProxyUnavailableError", "s"]


async def test_what_is_permanent_or_the_proxys_own_refusal_stays_what_it_is(request_for):
    permanent = FailingActor(raised_inside(RolloutConfigError("settings cannot work")))
    with pytest.raises(PermanentError, match="settings cannot work"):
        await ActorProxy(permanent).open(SPEC)
    with pytest.raises(PermanentError, match="settings cannot work"):
        await ActorTrials(permanent).run(request_for)
    with pytest.raises(ProxyError, match="twice"):
        await ActorProxy(FailingActor(raised_inside(ProxyError("opened twice")))).open(SPEC)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
@pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning")
async def test_the_trials_of_a_worker_that_has_died_are_ended_with_their_sandboxes(tmp_path, build_tasks, trial_for):
    sandbox = BubblewrapSandbox(memory_mb=128, scratch_mb=16)
    (task,) = await build_tasks(tmp_path / "data", sandbox, "calc", store_dir=tmp_path / "images")
    actor = TrialRunnerActor("run", tmp_path / "images", sandbox, 2, lease_seconds=2.0)

    def run(command, worker):
        request = trial_for(command, trial_id=worker, task_dir=str(task), environment=EnvironmentSpec())
        return asyncio.create_task(actor.run(request, worker))

    dead, alive = run("sleep 577.215", "dead"), run("sleep 10", "alive")
    while not dead.done():
        await asyncio.sleep(0.2)
        await actor.renew("alive")
    assert (dead.result().facts.exception, alive.done()) == ("WorkerGone", False)
    assert not any(b"577.215" in command for command in commands())
    while not alive.done():
        await asyncio.sleep(0.2)
        await actor.renew("alive")
    assert alive.result().facts.rewards == {"reward": 0.0}
    await actor.close()


def commands():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_bytes()


def test_a_lease_ends_when_it_is_not_renewed():
    now = [0.0]
    leases = Leases(10, lambda: now[0])
    leases.renew("a")
    leases.renew("b")
    now[0] = 8
    leases.renew("b")
    now[0] = 11
    assert leases.expired() == ["a"]
    leases.end("a")
    leases.end("unknown")
    assert leases.expired() == []
    now[0] = 19
    assert leases.expired() == ["b"]
