"""One real trial of an agent by name: real proxy, real sandbox, Harbor's trial and verifier; the policy is scripted."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent_search import SEARCH, Search
from client_models import ModelFolder, Script, make_model
from client_oracle import branches, causes, check_capture
from client_witness import WitnessEngine

from agentic.images.local import build_images
from agentic.images.settings import ImageSettings
from agentic.proxy import ProxyServer, Sampling, ScriptedEngine, SealedSession, make_renderer
from agentic.proxy.engines.scripted import Script as ScriptOfEngine
from agentic.rollout.outcomes import Outcome
from agentic.rollout.proxy_socket import prepare_folder, proxy_settings, sandbox_environment
from agentic.rollout.records import Phase
from agentic.rollout.rollouts import RolloutRequest, RolloutResult, run_rollout
from agentic.rollout.settings import AgentSettings, RolloutSettings
from agentic.rollout.trial import EnvironmentSpec, TrialControl, TrialRequest, TrialResult, sandboxed_runner
from agentic.sandbox.providers import open_store
from agentic.sandbox.settings import BubblewrapSandbox

TASK = Path(__file__).resolve().parents[2] / "tasks" / "business-days"
SANDBOX = BubblewrapSandbox(memory_mb=2048, scratch_mb=512)

LOOK = "cat workdays.py"
REPAIR = f"echo {base64.b64encode((TASK / 'solution/solve.sh').read_bytes()).decode()} | base64 -d | sh"
TRY = "python3 -c 'import workdays; print(workdays.__name__)'"
DONE = "Done: business days are counted."


@dataclass(frozen=True, slots=True)
class Played:
    """How a rollout went, and what the engine saw of it."""

    result: RolloutResult
    witness: WitnessEngine
    prompts: list[str]
    trial_dir: Path

    @property
    def sealed(self) -> SealedSession:
        assert self.result.sealed is not None
        return self.result.sealed

    def causes(self, known: Mapping[str, str]) -> list[str]:
        """Why each branch began, by a text that its prompt holds."""
        return causes(branches(self.witness.prompts, self.witness.sampled), self.prompts, known)

    def __str__(self) -> str:
        logs = sorted(path for path in self.trial_dir.rglob("*") if path.is_file() and path.suffix in (".txt", ".log"))
        parts = [f"--- {path.relative_to(self.trial_dir)}\n{path.read_text(errors='replace')[-3000:]}" for path in logs]
        return "\n".join([f"{self.result.verdict} {self.result.trial}", *parts])


class _Watched:
    """Trials of another, with the key of each known to the search in its sandbox."""

    def __init__(self, trials: TrialControl, search: Search) -> None:
        self._trials = trials
        self._search = search

    async def run(self, request: TrialRequest) -> TrialResult:
        self._search.key = request.api_key
        SEARCH.set(self._search)
        environment = request.environment.model_copy(update={"import_path": "agent_search:SearchedEnvironment"})
        return await self._trials.run(request.model_copy(update={"environment": environment}))

    async def cancel(self, trial_id: str) -> None:
        await self._trials.cancel(trial_id)


async def play(
    folder: Path,
    agent: AgentSettings,
    turns: Sequence[str],
    asides: Mapping[str, str] | None = None,
    task: Path = TASK,
) -> Played:
    """Roll out once; `folder` is the test's own. Checks what has to hold for every agent: solved, captured whole with
    each sampled token once, nothing left of the key, nothing left running."""
    model = make_model(folder / "models", thinks=False)
    played = await roll_out(folder, agent, model, Script(model, turns, asides or {}), task)
    assert (played.result.verdict.outcome, played.result.reward) == (Outcome.SOLVED, 1.0), str(played)
    check_capture(played.sealed, played.witness.prompts, played.witness.sampled)
    return played


async def roll_out(
    folder: Path,
    agent: AgentSettings,
    model: ModelFolder,
    script: ScriptOfEngine,
    task: Path = TASK,
    response_tokens: int = 400_000,
) -> Played:
    """Roll out once, however it ends; nothing of the key and nothing running is left where it came to grading."""
    witness, renderer = WitnessEngine(ScriptedEngine(script)), make_renderer(model.path)
    settings = RolloutSettings(
        agent=agent, infra_retries=0, deadline_seconds=240, start_seconds=60, grading_seconds=60, keep_trials="all"
    )
    serving = proxy_settings(settings, SANDBOX, str(folder))
    prepare_folder(serving.unix_socket)
    server = ProxyServer(serving, witness, renderer)
    await build(folder, task)
    trials = sandboxed_runner("agents", folder / "images", SANDBOX, concurrency=1)
    search = Search()
    request = replace(
        _request(folder, task, settings, sandbox_environment(agent, serving)), response_tokens=response_tokens
    )
    await server.start()
    try:
        result = await run_rollout(request, settings, server, _Watched(trials, search))
    finally:
        await server.stop()
        await trials.close()
    prompts = [renderer.decode(ids) for ids in witness.prompts]
    played = Played(result, witness, prompts, folder / "trials" / "rollout-1")
    if result.verdict.outcome is not Outcome.INFRA:
        _check_leavings(search, played.trial_dir)
    return played


def _check_leavings(search: Search, trial_dir: Path) -> None:
    assert search.files == [], search.files
    processes, _, devices = search.alive.strip().rpartition("\n")
    assert devices.split(":")[0].strip() == "lo", search.alive
    assert len(processes.split("\n\n")) <= 3, f"more than process 1 and the search itself:\n{processes}"
    kept = [path for path in trial_dir.rglob("*") if path.is_file()]
    assert kept
    assert [path for path in kept if search.key.encode() in path.read_bytes()] == []


async def build(folder: Path, task: Path) -> None:
    """The image of the task."""
    (built,) = await build_images([task], open_store(folder / "images", SANDBOX), ImageSettings(), SANDBOX)
    assert built.status != "failed", built.reason


def _request(folder: Path, task: Path, settings: RolloutSettings, environment: EnvironmentSpec) -> RolloutRequest:
    return RolloutRequest(
        rollout_id="rollout",
        phase=Phase.TRAIN,
        step=1,
        task=task.name,
        split="train",
        task_dir=str(task),
        trials_dir=str(folder / "trials"),
        environment=environment,
        sampling=Sampling(temperature=1.0, max_tokens=settings.max_call_tokens),
        prompt_tokens=400_000,
        response_tokens=400_000,
    )


def trajectory_steps(played: Played) -> int:
    """Replies of the model in the trajectory that Harbor keeps (ATIF)."""
    steps = json.loads((played.trial_dir / "agent" / "trajectory.json").read_text())["steps"]
    return sum(1 for step in steps if step["source"] == "agent")
