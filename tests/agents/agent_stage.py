"""One real trial of an agent by name: real proxy, real sandbox, Harbor's trial and verifier; the policy is scripted."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from client_models import Script, make_model
from client_oracle import branches, causes, check_capture
from client_witness import WitnessEngine

from agentic.images.local import build_images
from agentic.images.settings import ImageSettings
from agentic.proxy import ProxyServer, Sampling, ScriptedEngine, SealedSession, make_renderer
from agentic.rollout.outcomes import Outcome
from agentic.rollout.proxy_socket import prepare_folder, proxy_settings, sandbox_environment
from agentic.rollout.records import Phase
from agentic.rollout.rollouts import RolloutRequest, RolloutResult, run_rollout
from agentic.rollout.settings import AgentSettings, RolloutSettings
from agentic.rollout.trial import sandboxed_runner
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
    prompts: list[str]
    starts: list[int]
    """Calls that began a branch."""
    trial_dir: Path

    @property
    def sealed(self) -> SealedSession:
        assert self.result.sealed is not None
        return self.result.sealed

    def causes(self, known: Mapping[str, str]) -> list[str]:
        """Why each branch began, by a text that its prompt holds."""
        return causes(self.starts, self.prompts, known)

    def __str__(self) -> str:
        logs = sorted(path for path in self.trial_dir.rglob("*") if path.is_file() and path.suffix in (".txt", ".log"))
        parts = [f"--- {path.relative_to(self.trial_dir)}\n{path.read_text(errors='replace')[-3000:]}" for path in logs]
        return "\n".join([f"{self.result.verdict} {self.result.trial}", *parts])


async def play(
    folder: Path, agent: AgentSettings, turns: Sequence[str], asides: Mapping[str, str] | None = None
) -> Played:
    """Roll out once; `folder` is the test's own. Checks what has to hold for every agent: solved, and captured whole,
    each sampled token once."""
    model = make_model(folder / "models", thinks=False)
    witness, renderer = WitnessEngine(ScriptedEngine(Script(model, turns, asides or {}))), make_renderer(model.path)
    settings = RolloutSettings(
        agent=agent, infra_retries=0, deadline_seconds=240, start_seconds=60, grading_seconds=60, keep_trials="all"
    )
    serving = proxy_settings(settings, SANDBOX, str(folder))
    prepare_folder(serving.unix_socket)
    server = ProxyServer(serving, witness, renderer)
    import time; began = time.monotonic()
    await build(folder)
    build_seconds = time.monotonic() - began
    trials = sandboxed_runner("agents", folder / "images", SANDBOX, concurrency=1)
    await server.start()
    try:
        result = await run_rollout(_request(folder, settings, sandbox_environment(agent, serving)), settings, server, trials)
    finally:
        await server.stop()
        await trials.close()
    import sys; sys.stderr.write(f"{result.trial} {result.seconds} {build_seconds}\n")
    prompts = [renderer.decode(ids) for ids in witness.prompts]
    played = Played(result, prompts, branches(witness.prompts, witness.sampled), folder / "trials" / "rollout-1")
    assert (result.verdict.outcome, result.reward) == (Outcome.SOLVED, 1.0), str(played)
    check_capture(played.sealed, witness.prompts, witness.sampled)
    return played


async def build(folder: Path) -> None:
    """The image of the task."""
    (built,) = await build_images([TASK], open_store(folder / "images", SANDBOX), ImageSettings(), SANDBOX)
    assert built.status != "failed", built.reason


def _request(folder: Path, settings: RolloutSettings, environment: object) -> RolloutRequest:
    return RolloutRequest(
        rollout_id="rollout",
        phase=Phase.TRAIN,
        step=1,
        task=TASK.name,
        split="train",
        task_dir=str(TASK),
        trials_dir=str(folder / "trials"),
        environment=environment,  # type: ignore[arg-type]
        sampling=Sampling(temperature=1.0, max_tokens=settings.max_call_tokens),
        prompt_tokens=400_000,
        response_tokens=400_000,
    )


def trajectory_steps(played: Played) -> int:
    """Replies of the model in the trajectory that Harbor keeps (ATIF)."""
    steps = json.loads((played.trial_dir / "agent" / "trajectory.json").read_text())["steps"]
    return sum(1 for step in steps if step["source"] == "agent")
