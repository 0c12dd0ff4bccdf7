"""One real client on a scripted model: the proxy, a tap before it, and a sealed box for the client."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from client_box import PORT, Box, Finished
from client_models import ModelFolder, Script, make_model
from client_oracle import branches, causes, check_capture
from client_runs import Run
from client_tap import Tap, tapped

from agentic.proxy import (
    ProxyServer,
    ProxySettings,
    Sampling,
    ScriptedEngine,
    SealedSession,
    SessionSpec,
    make_renderer,
)

SESSION = "rollout-1"


@dataclass
class Stage:
    """Everything set up for one client."""

    server: ProxyServer
    engine: ScriptedEngine
    script: Script
    box: Box
    tap: Tap
    base_url: str
    key: str

    async def play(self, run: Run, seconds: float = 60.0) -> Finished:
        """Run the client to its end: by itself, well, and refused nothing on the way."""
        finished = await self.box.run(run.command, run.environment, seconds)
        assert not self.tap.refused, f"{self.tap.refused}\n{finished}"
        assert finished.code == 0, str(finished)
        return finished

    async def seal(self) -> SealedSession:
        """What was captured, checked against the engine's record."""
        sealed = await self.server.seal(SESSION)
        check_capture(sealed, self.prompts, self.script.sampled)
        return sealed

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        """Prompts that the engine got, in order."""
        return [received.prompt_ids for received in self.engine.received]

    def causes(self, known: Mapping[str, str]) -> list[str]:
        """Why each branch began, by a text that its prompt holds."""
        texts = [self.script.model.text(prompt) for prompt in self.prompts]
        return causes(branches(self.prompts, self.script.sampled), texts, known)


@asynccontextmanager
async def staged(
    folder: Path, turns: Sequence[str], asides: Mapping[str, str] | None = None, thinks: bool = False
) -> AsyncIterator[Stage]:
    """A stage; `folder` is the test's own."""
    model: ModelFolder = make_model(folder / "models", thinks)
    script = Script(model, turns, asides or {})
    engine = ScriptedEngine(script)
    server = ProxyServer(ProxySettings(), engine, make_renderer(model.path))
    await server.start()
    try:
        spec = SessionSpec(
            session_id=SESSION,
            sampling=Sampling(temperature=1.0, max_tokens=4096),
            max_prompt_tokens=400_000,
            max_response_tokens=400_000,
            max_calls=60,
        )
        handle = await server.open(spec)
        box = Box(folder / "box")
        async with tapped(box.socket, server.agent_url) as tap:
            base_url = handle.base_url.replace(server.agent_url, f"http://127.0.0.1:{PORT}")
            yield Stage(server, engine, script, box, tap, base_url, handle.api_key)
    finally:
        await server.stop()
