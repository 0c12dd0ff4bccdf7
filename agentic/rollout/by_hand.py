"""One rollout by hand: `python -m agentic.rollout run TASK --agent NAME --model URL`.

The same session, trial, grading and folder as in training, with the proxy in this process, in front of a server that
runs already or of a script. What it is told on the way goes to standard error, what came out to standard output. A lost
trial is not tried again: who looks at one trial wants to see the loss. Unless set, its clock is the task's own, and
agents of this project may say as much as a real model does; in training both are the run's settings.

Building the task's image is handed in by the caller, since this room does not know how.
"""

import asyncio
import contextlib
import os
import tempfile
import time
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agentic.errors import AgenticError
from agentic.proxy import Engine, ProxyServer, Renderer, Sampling, SealedSession, SessionHandle, SessionSpec
from agentic.proxy.models import SessionInfo
from agentic.rollout.agents.settings import CommandAgentSettings
from agentic.rollout.assignments import assign
from agentic.rollout.engine_time import TimedEngine, TimedProxy
from agentic.rollout.errors import RolloutConfigError
from agentic.rollout.folder import cause, leave_folders
from agentic.rollout.grading.time_limits import seconds_for
from agentic.rollout.proxy_socket import advertised, prepare_folder, proxy_settings, sandbox_environment
from agentic.rollout.records import Phase
from agentic.rollout.rollouts import RolloutRequest, RolloutResult, run_rollout
from agentic.rollout.settings import RolloutSettings
from agentic.rollout.trial import TrialRequest, TrialResult, TrialRunner, sandboxed_runner
from agentic.sandbox.settings import SandboxSettings
from agentic.tasks.harbor_format import CONFIG

SOLVED, FAILED, LOST, REFUSED = 0, 1, 75, 78
"""Exit codes: the tests passed; they did not; infrastructure lost the trial; something has to be changed."""

SCRIPTED = "scripted:"

type Say = Callable[[str], None]
type BuildImage = Callable[[Path, Path, SandboxSettings], Awaitable[None]]
"""Given the task's folder, the store and the sandbox; raises when the image cannot be built."""

_FIXED = {"keep_trials": "all", "infra_retries": 0, "concurrency": 1}
"""What one trial by hand is, whatever is set."""

_TALK = {"max_turns": 30, "max_tokens": 2048}
"""Of an agent of ours, unless set: the settings' own defaults are for the demo's tiny policy."""

AGENT_SECONDS, TESTS_SECONDS = 900.0, 600.0
"""For a task that sets no time of its own."""

_SANDBOX: TypeAdapter[SandboxSettings] = TypeAdapter(SandboxSettings)


@dataclass(frozen=True, slots=True)
class ByHand:
    """What was asked for on the command line."""

    task: Path
    model: str
    """Base URL of a vLLM or SGLang server, or `scripted:FILE`."""
    tokenizer: Path | None
    model_name: str | None
    key_variable: str | None
    """The environment variable that holds the server's key."""
    out: Path
    images: Path
    settings: RolloutSettings
    sandbox: SandboxSettings
    temperature: float = 0.0
    prompt_tokens: int = 16_384
    response_tokens: int = 32_768
    run_id: str = field(default_factory=lambda: f"by-hand-{os.getpid()}-{time.time_ns():x}")


@dataclass(frozen=True, slots=True)
class Report:
    """What came out."""

    result: RolloutResult
    folder: Path | None
    """None where the disk took none."""

    @property
    def exit_code(self) -> int:
        """See the constants."""
        outcome = self.result.verdict.outcome
        return LOST if not outcome.is_graded else SOLVED if outcome == "solved" else FAILED

    def as_data(self) -> dict[str, Any]:
        """For people and for programs."""
        result, attempt = self.result, self.result.attempts[-1]
        return {
            "outcome": str(result.verdict.outcome),
            "cause": cause(attempt),
            "reward": result.reward,
            "turns": result.trial.turns if result.trial else 0,
            "calls": result.sealed.calls if result.sealed else 0,
            "tokens": result.sealed.sampled_tokens if result.sealed else 0,
            "seconds": round(result.seconds, 2),
            "engine_seconds": round(result.engine_seconds, 2),
            "folder": str(self.folder) if self.folder else None,
        }


def read_settings(
    agent: str, sandbox: str, words: Sequence[str] = (), task: Path | None = None
) -> tuple[RolloutSettings, SandboxSettings]:
    """Settings from the agent's and the sandbox's names, `rollout.KEY=VALUE` or `sandbox.KEY=VALUE` words, and the
    task's clock.

    Raises RolloutConfigError in one line.
    """
    values: dict[str, Any] = {"rollout": {"agent": {"kind": agent}}, "sandbox": {"provider": sandbox}}
    assign(values, words, "rollout.agent.max_turns=20")
    plain = [name for name, section in values.items() if not isinstance(section, dict)]
    if misplaced := sorted({*plain, *(values.keys() - {"rollout", "sandbox"})}):
        raise RolloutConfigError(f"--set {misplaced[0]}...: write rollout.KEY=VALUE or sandbox.KEY=VALUE")
    rollout: dict[str, Any] = values["rollout"]
    if fixed := sorted(_FIXED.keys() & rollout.keys()):
        name = fixed[0]
        raise RolloutConfigError(f"--set rollout.{name}: it is {_FIXED[name]!r} for a trial by hand: leave it out")
    try:
        settings = RolloutSettings.model_validate(_task_clock(task, rollout) | rollout | _FIXED)
        return _talkative(settings), _SANDBOX.validate_python(values["sandbox"])
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place_of = ".".join(str(part) for part in first["loc"])
        raise RolloutConfigError(f"setting {place_of}: {first['msg']}") from error


def _talkative(settings: RolloutSettings) -> RolloutSettings:
    agent = settings.agent
    if not isinstance(agent, CommandAgentSettings):
        return settings
    unset = {name: value for name, value in _TALK.items() if name not in agent.model_fields_set}
    return settings.model_copy(update={"agent": agent.model_copy(update=unset)})


def _task_clock(task: Path | None, given: dict[str, Any]) -> dict[str, float]:
    """The clock that lets agent and tests have what the task gives them; nothing for what is no task."""
    if task is None or not (task / CONFIG).is_file():
        return {}
    try:
        config = tomllib.loads((task / CONFIG).read_text(encoding="utf-8"))
        agent = float(config.get("agent", {}).get("timeout_sec", AGENT_SECONDS))
        tests = float(config.get("verifier", {}).get("timeout_sec", TESTS_SECONDS))
        grading = float(given.get("grading_seconds", seconds_for(tests)))
        start = float(given.get("start_seconds", RolloutSettings().start_seconds))
    except (AttributeError, TypeError, ValueError) as error:
        raise RolloutConfigError(f"{task / CONFIG}, or what was set of the clock, cannot be read: {error}") from error
    return {"grading_seconds": grading, "deadline_seconds": start + agent + grading}


async def run_by_hand(order: ByHand, build_image: BuildImage, say: Say) -> Report:
    """Run it and leave its folder. Raises AgenticError when it cannot even start."""
    if not (order.task / CONFIG).is_file():
        raise RolloutConfigError(f"{order.task} is no task: it has no {CONFIG} (see docs/tasks.md)")
    say(f"task {order.task.name}, agent {order.settings.agent.kind}, sandbox {order.sandbox.provider}")
    with tempfile.TemporaryDirectory(prefix="agentic-by-hand-") as scratch:
        renderer, engine = await asyncio.to_thread(_model, order, Path(scratch))
        began = time.monotonic()
        await build_image(order.task, order.images, order.sandbox)
        say(f"image ready after {time.monotonic() - began:.1f} s")
        async with _serving(order, engine, renderer) as (proxy, runner):
            trials = _Told(runner, proxy.sessions, say)
            result = await run_rollout(_request(order), order.settings, _ToldProxy(proxy, say), trials)
    folders = leave_folders(result, order.settings, renderer.decode)
    return Report(result, folders[0] if folders else None)


def _model(order: ByHand, scratch: Path) -> tuple[Renderer, Engine]:
    """What answers, and the text that its tokens stand for."""
    from agentic.proxy import make_renderer
    from agentic.proxy.engines.kinds import make_http_engine
    from agentic.proxy.errors import ProxyError
    from agentic.rollout.scripted_model import byte_renderer, read_script, scripted_engine

    try:
        if order.model.startswith(SCRIPTED):
            replies = read_script(Path(order.model.removeprefix(SCRIPTED)))
            renderer = make_renderer(order.tokenizer) if order.tokenizer else byte_renderer(scratch)
            return renderer, scripted_engine(replies, renderer)
        if order.tokenizer is None:
            raise RolloutConfigError("--model URL needs --tokenizer DIR: the Hugging Face folder of the served model")
        key = os.environ.get(order.key_variable) if order.key_variable else None
        if order.key_variable and not key:
            raise RolloutConfigError(f"--key-env {order.key_variable}: that environment variable is not set")
        renderer = make_renderer(order.tokenizer)
        return renderer, make_http_engine(order.model, "auto", order.model_name, 0, key)
    except ProxyError as error:
        raise RolloutConfigError(f"--model {order.model}: {error}") from error


@contextlib.asynccontextmanager
async def _serving(order: ByHand, engine: Engine, renderer: Renderer) -> AsyncIterator[tuple[TimedProxy, TrialRunner]]:
    settings = advertised(proxy_settings(order.settings, order.sandbox, order.run_id))
    timed = TimedEngine(engine)
    proxy = ProxyServer(settings, timed, renderer)
    prepare_folder(proxy.unix_socket)
    await proxy.start()
    try:
        runner = sandboxed_runner(order.run_id, order.images, order.sandbox, concurrency=1)
        try:
            yield TimedProxy(proxy, timed), runner
        finally:
            await runner.close()
    finally:
        await proxy.stop()


def _request(order: ByHand) -> RolloutRequest:
    proxy = proxy_settings(order.settings, order.sandbox, order.run_id)
    return RolloutRequest(
        rollout_id=f"{order.task.name}-{order.run_id.removeprefix('by-hand-')}",
        phase=Phase.EVALUATE,
        step=0,
        task=order.task.name,
        split="by-hand",
        task_dir=str(order.task),
        trials_dir=str(order.out),
        sampling=Sampling(temperature=order.temperature, max_tokens=order.settings.max_call_tokens),
        prompt_tokens=order.prompt_tokens,
        response_tokens=order.response_tokens,
        environment=sandbox_environment(order.settings.agent, proxy),
    )


class _ToldProxy:
    """The proxy's control side, saying what a session is about to become."""

    def __init__(self, proxy: TimedProxy, say: Say) -> None:
        self._proxy, self._say = proxy, say

    async def open(self, spec: SessionSpec) -> SessionHandle:
        handle = await self._proxy.open(spec)
        self._say(f"session {spec.session_id} at {handle.base_url}")
        return handle

    async def seal(self, session_id: str) -> SealedSession:
        return await self._proxy.seal(session_id)

    async def drop(self, session_id: str) -> None:
        await self._proxy.drop(session_id)

    async def finish(self, session_id: str) -> tuple[SealedSession, float]:
        return await self._proxy.finish(session_id)


class _Told:
    """A trial runner that says, twice a second and when the trial is over, how far the model has got."""

    def __init__(self, runner: TrialRunner, sessions: Callable[[], Awaitable[list[SessionInfo]]], say: Say) -> None:
        self._runner, self._sessions, self._say = runner, sessions, say
        self._began, self._told = time.monotonic(), ""

    async def run(self, request: TrialRequest) -> TrialResult:
        self._began = time.monotonic()
        telling = asyncio.create_task(self._keep_telling())
        try:
            return await self._runner.run(request)
        finally:
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await telling
            await self._tell()

    async def cancel(self, trial_id: str) -> None:
        await self._runner.cancel(trial_id)

    async def _keep_telling(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            await self._tell()

    async def _tell(self) -> None:
        """Nothing, where nothing has changed."""
        for info in await self._sessions():
            line = f"{info.calls} calls, {info.sampled_tokens} tokens sampled"
            if line != self._told:
                self._say(f"{time.monotonic() - self._began:.0f} s: {line}")
                self._told = line


def exit_code_of(error: AgenticError) -> int:
    """Of a run that could not start."""
    from agentic.errors import PermanentError

    return REFUSED if isinstance(error, PermanentError) else LOST
