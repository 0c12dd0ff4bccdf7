"""Runs Harbor trials, one per rollout attempt, and reports the facts about each.

Owns the trial's clock, its folder and its end. Every trial is bounded three ways: the agent by what the deadline leaves
it, the verifier by `grading_seconds`, and the whole by `deadline_seconds`, which also covers what Harbor's own timeouts
do not (creating the trial, collecting logs, stopping the sandbox). Cancelling a trial, or the deadline, ends its
sandbox too: Harbor stops it on the way out, and this module waits for that, but not for ever.

Never decides an outcome (see `outcomes.py`) and never raises for what happens inside a trial: a rollout worker gets
facts. Imports Harbor only when a trial is run, after the environment variables that keep it quiet are set.
"""

import asyncio
import contextlib
import importlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from agentic.rollout.agents.names import AGENTS
from agentic.rollout.grading.report import Failure, GradingReport, read_failure, read_report
from agentic.rollout.outcomes import CaptureFacts, Keep, TrialFacts, decide, is_kept
from agentic.rollout.pacing import Pacer
from agentic.rollout.settings import AgentSettings
from agentic.sandbox.settings import SandboxSettings

if TYPE_CHECKING:
    from harbor.models.trial.config import TrialConfig
    from harbor.models.trial.result import TimingInfo
    from harbor.models.trial.result import TrialResult as HarborResult
    from harbor.trial.trial import Trial

    from agentic.rollout.known_tasks import KnownTasks
    from agentic.sandbox.harbor_environment import SandboxScope

_log = logging.getLogger(__name__)

CLEANUP_SECONDS = 20.0
"""How long a cancelled trial may take to stop its sandbox before it is given up; a sweeper then has to end the sandbox.
Stopping takes well under a second unless the machine is in trouble."""

REPORT_LIST_BYTES = 12 * 1024
"""Of each list of names in a grading report that goes along with a result, as JSON."""

_CANCELLED = TrialFacts(exception="CancelledError", message="cancelled on request")

_HARBOR_LOGGER = "harbor.utils.logger"
"""Above all of Harbor's; it says everything, at every level."""

_TRIAL_LOGGERS = f"{_HARBOR_LOGGER}.harbor.trial.trial."
"""Harbor's prefix of the names of a trial's loggers; the trial's own name follows."""

_FORGOTTEN = 64
"""Trials whose loggers are removed at a time."""

_VERIFIER = "agentic.rollout.grading.verifier:FreshVerifier"


class EnvironmentSpec(BaseModel):
    """Which Harbor environment a trial runs in, as Harbor imports it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    import_path: str = "agentic.rollout.environment:LoglessEnvironment"
    """`module:Class` of a Harbor environment."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Its keyword arguments; plain data, since Harbor writes them to the trial's folder."""


class TrialPlan(BaseModel):
    """What one trial is, wherever it runs; plain data."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trial_id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=200)
    """Unique for who runs it; the sandbox's name derives from it."""
    agent: AgentSettings
    base_url: str
    """Where the agent's model answers: the session's endpoint."""
    api_key: str = Field(repr=False)
    """The session's key."""
    environment: EnvironmentSpec = EnvironmentSpec()
    deadline_seconds: float = Field(gt=0)
    start_seconds: float = Field(gt=0)
    grading_seconds: float = Field(gt=0)
    keep: Keep = "infra"

    @property
    def agent_seconds(self) -> float:
        """What the agent may use of the deadline."""
        return self.deadline_seconds - self.start_seconds - self.grading_seconds


class TrialRequest(TrialPlan):
    """A trial, and the folders of the machine that runs it."""

    task_dir: str
    """The task's folder in Harbor's format, as the trial runner sees it."""
    trials_dir: str
    """Where Harbor's folder of this trial is made."""


@dataclass(frozen=True, slots=True)
class TrialSeconds:
    """Where a trial's time went; a phase that was not reached is 0."""

    total: float = 0.0
    start: float = 0.0
    agent: float = 0.0
    grade: float = 0.0


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The facts about one trial."""

    trial_id: str
    facts: TrialFacts
    turns: int = 0
    """Replies that the agent asked for, as the agent counts them."""
    seconds: TrialSeconds = field(default_factory=TrialSeconds)
    grading: GradingReport | None = None
    """What grading did and measured; None when it did not come to an end."""


class TrialControl(Protocol):
    """Who runs trials: this process, an actor, or a server elsewhere."""

    async def run(self, request: TrialRequest) -> TrialResult:
        """Run it to its end. Never raises for what happens inside the trial. An id that is running is refused; one that
        has ended must not be used again, which only those who remember it refuse. Cancelling the caller ends the trial,
        and waits, within bounds, for its sandbox to stop."""

    async def cancel(self, trial_id: str) -> None:
        """End a running trial and its sandbox; its `run` returns with an infra fact. Unknown or ended: nothing."""


class TrialRunner:
    """Runs trials in this process, at most `concurrency` at once.

    Their sandboxes come from `sandboxes`; a runner without it serves environments that need none.
    """

    def __init__(
        self, concurrency: int, sandboxes: "SandboxScope | None" = None, cleanup_seconds: float = CLEANUP_SECONDS
    ) -> None:
        _quieten_harbor()
        self._sandboxes = sandboxes
        self._cleanup_seconds = cleanup_seconds
        self._slots = asyncio.Semaphore(concurrency)
        self._pacer = Pacer()
        self._imported: set[str] = set()
        self._tasks: KnownTasks | None = None
        self._ended: set[str] = set()
        self._running: dict[str, asyncio.Task[TrialResult]] = {}
        self._cancelled: dict[str, TrialFacts] = {}

    async def run(self, request: TrialRequest) -> TrialResult:
        """See `TrialControl.run`. Cancelling the caller cancels the trial, and waits for its sandbox to stop."""
        if request.trial_id in self._running:
            return lost(request.trial_id, "DuplicateTrial", f"trial {request.trial_id!r} is already running")
        work = asyncio.create_task(self._admitted(request), name=f"trial-{request.trial_id}")
        self._running[request.trial_id] = work
        try:
            return await work
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            return TrialResult(request.trial_id, self._cancelled.get(request.trial_id, _CANCELLED))
        finally:
            del self._running[request.trial_id]
            self._cancelled.pop(request.trial_id, None)
            self._forget_loggers(request.trial_id)

    async def cancel(self, trial_id: str, facts: TrialFacts = _CANCELLED) -> None:
        """See `TrialControl.cancel`; `facts` are what its `run` returns."""
        if work := self._running.get(trial_id):
            self._cancelled[trial_id] = facts
            work.cancel()

    async def sweep(self) -> None:
        """Remove what sandboxes a killed process of the same run left behind."""
        if self._sandboxes is not None:
            await self._sandboxes.provider.sweep(self._sandboxes.run_id)

    async def expect(self, task_dirs: Iterable[Path]) -> None:
        """Tasks that trials will be about, in about this order: their images are brought closer where they are far."""
        from agentic.sandbox.images import PullsAhead, images_of

        scope = self._sandboxes
        if scope is not None and isinstance(scope.provider, PullsAhead):
            await scope.provider.expect(scope.run_id, images_of(scope.images, task_dirs))

    async def close(self) -> None:
        """End all trials and their sandboxes."""
        running = list(self._running.values())
        for work in running:
            work.cancel()
        if running:
            await asyncio.wait(running)
        if self._sandboxes is not None:
            await self._sandboxes.provider.close()

    async def _admitted(self, request: TrialRequest) -> TrialResult:
        facts = _CANCELLED
        async with self._slots:
            try:
                result = await self._bounded(request)
                facts = result.facts
            finally:
                # The capture is not known here: whether it went well, or may have, is told from the trial alone.
                if not is_kept(decide(facts, CaptureFacts(complete=True, calls=1, unanswered=1)).outcome, request.keep):
                    folder = Path(request.trials_dir) / request.trial_id
                    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return result

    async def _bounded(self, request: TrialRequest) -> TrialResult:
        started = time.monotonic()
        trial = asyncio.create_task(self._pacer.run(self._trial(request, started)))
        try:
            await asyncio.wait({trial}, timeout=request.deadline_seconds)
            if trial.done():
                return trial.result()
        finally:
            await _end(trial, request.trial_id, self._cleanup_seconds)
        return TrialResult(
            request.trial_id,
            TrialFacts(deadline_passed=True, message=f"cut after {request.deadline_seconds:g} s"),
            seconds=TrialSeconds(total=time.monotonic() - started),
        )

    async def _trial(self, request: TrialRequest, started: float) -> TrialResult:
        try:
            with self._scope():
                trial = await self._create(request)
                harbor = await trial.run()
            folder = trial.paths.verifier_dir
            failure = read_failure(folder) if harbor.verifier_result is None else None
            report = _bounded_report(read_report(folder))
            return _result(request.trial_id, harbor, report, failure, time.monotonic() - started)
        except Exception as error:  # noqa: BLE001 - whatever a trial raises is a fact about it, and costs one rollout
            _log.warning("trial %s failed: %s: %s", request.trial_id, type(error).__name__, error)
            facts = TrialFacts(exception=type(error).__name__, message=_one_line(str(error)))
            return TrialResult(request.trial_id, facts, seconds=TrialSeconds(total=time.monotonic() - started))

    def _scope(self) -> contextlib.AbstractContextManager[None]:
        if self._sandboxes is None:
            return contextlib.nullcontext()
        from agentic.sandbox.harbor_environment import sandbox_scope

        return sandbox_scope(self._sandboxes)

    async def _create(self, request: TrialRequest) -> "Trial":
        await self._import(request)
        from agentic.rollout.agents.chat import ChatEndpoint, Connectable
        from agentic.rollout.known_tasks import KnownTasks

        self._tasks = self._tasks or KnownTasks()
        trial = await self._tasks.make_trial(_harbor_config(request))
        if isinstance(trial.agent, Connectable):
            trial.agent.connect(ChatEndpoint(request.base_url, request.api_key))
        return trial

    async def _import(self, request: TrialRequest) -> None:
        """What Harbor would import at its first trial, a third of a second and more, in a thread."""
        names = {"agentic.rollout.known_tasks", "agentic.rollout.agents.chat"}
        paths = (AGENTS[request.agent.kind].import_path, request.environment.import_path, _VERIFIER)
        names |= {path.partition(":")[0] for path in paths}
        if not names <= self._imported:
            with contextlib.suppress(ImportError):  # Harbor says it better.
                await asyncio.to_thread(_import_all, sorted(names))
            self._imported |= names

    def _forget_loggers(self, trial_id: str) -> None:
        """Harbor names eight loggers after each trial, and `logging` keeps every name for ever: about 10 KB a trial.
        Many at a time, since finding them takes a look at all."""
        self._ended.add(trial_id)
        if len(self._ended) < _FORGOTTEN and self._running:
            return
        names = logging.Logger.manager.loggerDict
        for name in [name for name in names if name.startswith(_TRIAL_LOGGERS)]:
            words = name.removeprefix(_TRIAL_LOGGERS).split(".")
            if any(".".join(words[:end]) in self._ended for end in range(1, len(words) + 1)):
                del names[name]
        self._ended.clear()


def sandboxed_runner(run_id: str, store_dir: Path, sandbox: SandboxSettings, concurrency: int) -> TrialRunner:
    """A runner whose trials get their sandboxes as these settings say. Call it within the event loop that it will use,
    and close it there."""
    _quieten_harbor()
    from agentic.sandbox.harbor_environment import SandboxScope
    from agentic.sandbox.images import open_images
    from agentic.sandbox.providers import make_provider, open_store

    store = open_store(store_dir, sandbox)
    images = open_images(sandbox, store, run_id)
    return TrialRunner(concurrency, SandboxScope(make_provider(sandbox, store), images, run_id))


def _quieten_harbor() -> None:
    """Before Harbor's first import: no telemetry, and no download of a price list (1.5 s, or a hang offline). What it
    says of a trial goes into the trial's folder alone: three lines a trial through Ray's logs cost processor time in
    three processes, and hide what a run has to say."""
    os.environ["HARBOR_TELEMETRY"] = "0"
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    logging.getLogger(_HARBOR_LOGGER).propagate = False


def import_early() -> None:
    """What the first trial needs whatever its agent is, ten seconds of processor time when nothing is cached. For a
    thread of who will run trials."""
    _quieten_harbor()
    modules = ("known_tasks", "environment", "grading.verifier", "agents.chat")
    with contextlib.suppress(ImportError):  # The first trial says it better.
        _import_all(f"agentic.rollout.{module}" for module in modules)


def _import_all(names: Iterable[str]) -> None:
    for name in names:
        importlib.import_module(name)


def _harbor_config(request: TrialRequest) -> "TrialConfig":
    from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig, VerifierConfig

    return TrialConfig(
        task=TaskConfig(path=Path(request.task_dir)),
        trial_name=request.trial_id,
        trials_dir=Path(request.trials_dir),
        agent=AgentConfig(
            import_path=AGENTS[request.agent.kind].import_path,
            kwargs=request.agent.model_dump(exclude={"kind"}),
            override_timeout_sec=request.agent_seconds,
            override_setup_timeout_sec=request.start_seconds,
        ),
        environment=EnvironmentConfig(
            import_path=request.environment.import_path, kwargs=request.environment.kwargs, delete=True
        ),
        verifier=VerifierConfig(
            import_path=_VERIFIER,
            override_timeout_sec=request.grading_seconds,
            kwargs={"grading_seconds": request.grading_seconds},
        ),
    )


async def _end(trial: "asyncio.Task[TrialResult]", trial_id: str, cleanup_seconds: float) -> None:
    """Cancel what still runs and wait until its sandbox has stopped, or give it up."""
    if trial.done():
        return
    trial.cancel()
    await asyncio.wait({trial}, timeout=cleanup_seconds)
    if not trial.done():
        _log.error("trial %s did not stop its sandbox within %g s: left to the sweeper", trial_id, cleanup_seconds)


def _result(
    trial_id: str,
    harbor: "HarborResult",
    report: GradingReport | None,
    failure: Failure | None,
    total_seconds: float,
) -> TrialResult:
    """What kept a trial from a verdict goes before how its agent ended, which Harbor names first."""
    error = harbor.exception_info
    ended = failure or (Failure(error.exception_type, error.exception_message) if error else None)
    verdict = harbor.verifier_result
    metadata = (harbor.agent_result.metadata if harbor.agent_result else None) or {}
    return TrialResult(
        trial_id,
        TrialFacts(
            rewards=_numbers(verdict.rewards) if verdict else None,
            exception=ended.exception if ended else None,
            message=_one_line(ended.message) if ended else "",
        ),
        turns=int(metadata.get("turns", 0)),
        seconds=TrialSeconds(
            total=total_seconds,
            start=_span(harbor.environment_setup) + _span(harbor.agent_setup),
            agent=_span(harbor.agent_execution),
            grade=_span(harbor.verifier),
        ),
        grading=report,
    )


def _bounded_report(report: GradingReport | None) -> GradingReport | None:
    """What goes along with a result: agents choose names and how many there are, and a result crosses processes and
    lines of streams. The file in the trial's folder has more."""
    if report is None:
        return None
    texts = {name: _one_line(getattr(report, name)) for name in ("reason", "refused")}
    names = {name: _fitting(getattr(report, name)) for name in ("changed", "undone", "left_out", "lost")}
    return report.model_copy(update={**texts, **names})


def _fitting(names: tuple[str, ...]) -> tuple[str, ...]:
    """The first of them, and how many were left out."""
    left_bytes = REPORT_LIST_BYTES
    for number, name in enumerate(names):
        left_bytes -= len(json.dumps(name))
        if left_bytes < 0:
            return (*names[:number], f"and {len(names) - number} more")
    return names


def lost(trial_id: str, exception: str, message: str) -> TrialResult:
    """The result of a trial that was given up."""
    return TrialResult(trial_id, TrialFacts(exception=exception, message=message))


def _numbers(rewards: Mapping[str, float] | None) -> dict[str, float] | None:
    return None if rewards is None else {name: float(value) for name, value in rewards.items()}


def _span(timing: "TimingInfo | None") -> float:
    started: datetime | None = timing.started_at if timing else None
    finished: datetime | None = timing.finished_at if timing else None
    return (finished - started).total_seconds() if started and finished else 0.0


def _one_line(text: str) -> str:
    return " ".join(text.split())[:400]
