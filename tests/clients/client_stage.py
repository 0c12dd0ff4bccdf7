"""One real client on one model: the proxy, a tap before it, and a sealed box for the client."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from client_box import PORT, Box, Finished
from client_models import Script, make_model
from client_oracle import branches, causes, check_capture
from client_runs import Run
from client_tap import Tap, tapped
from client_witness import WitnessEngine

from agentic.proxy import (
    ProxyServer,
    ProxySettings,
    Sampling,
    ScriptedEngine,
    SealedSession,
    SessionSpec,
    make_renderer,
)
from agentic.proxy.engines.base import Engine
from agentic.proxy.renderers import Renderer

SESSION = "rollout-1"

ROOMY = SessionSpec(
    session_id=SESSION,
    sampling=Sampling(temperature=1.0, max_tokens=4096),
    max_prompt_tokens=400_000,
    max_response_tokens=400_000,
    max_calls=60,
)


@dataclass
class Stage:
    """Everything set up for one client."""

    server: ProxyServer
    witness: WitnessEngine
    renderer: Renderer
    box: Box
    tap: Tap
    base_url: str
    key: str

    async def play(self, run: Run, seconds: float = 150.0) -> Finished:
        """Run the client to its end: by itself, well, and refused nothing on the way."""
        finished = await self.box.run(run.command, run.environment, seconds)
        assert not self.tap.refused, f"{self.tap.refused}\n{finished}"
        assert finished.code == 0, str(finished)
        return finished

    async def seal(self) -> SealedSession:
        """What was captured, checked against what the engine saw."""
        sealed = await self.server.seal(SESSION)
        check_capture(sealed, self.witness.prompts, self.witness.sampled)
        return sealed

    @property
    def prompts(self) -> list[str]:
        """The text of each prompt that the engine got, in order."""
        return [self.renderer.decode(ids) for ids in self.witness.prompts]

    def causes(self, known: Mapping[str, str]) -> list[str]:
        """Why each branch began, by a text that its prompt holds."""
        return causes(branches(self.witness.prompts, self.witness.sampled), self.prompts, known)


@asynccontextmanager
async def scripted(
    folder: Path, turns: Sequence[str], asides: Mapping[str, str] | None = None, thinks: bool = False
) -> AsyncIterator[Stage]:
    """A stage whose model says what it is told to; `folder` is the test's own."""
    model = make_model(folder / "models", thinks)
    async with staged(folder, ScriptedEngine(Script(model, turns, asides or {})), model.path, ROOMY) as stage:
        yield stage


@asynccontextmanager
async def staged(folder: Path, engine: Engine, model: Path, spec: SessionSpec) -> AsyncIterator[Stage]:
    """A stage on any engine; the engine is closed at the end."""
    witness, renderer, box = WitnessEngine(engine), make_renderer(model), Box(folder / "box")
    server = ProxyServer(ProxySettings(), witness, renderer)
    await server.start()
    try:
        handle = await server.open(spec)
        async with tapped(box.socket, server.agent_url) as tap:
            base_url = handle.base_url.replace(server.agent_url, f"http://127.0.0.1:{PORT}")
            yield Stage(server, witness, renderer, box, tap, base_url, handle.api_key)
    finally:
        await server.stop()
