"""Whatever a policy samples, an agent of ours goes on or ends by itself: no reply can have its rollout left out."""

import asyncio
import contextlib
import tempfile
from pathlib import Path

import pytest
from client_models import make_model
from harbor.agents.installed.base import NonZeroAgentExitCodeError
from harbor.environments.base import ExecResult
from harbor.models.agent.context import AgentContext
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agentic.proxy import (
    ProxyServer,
    ProxySettings,
    Sampling,
    ScriptedEngine,
    ScriptedReply,
    SessionSpec,
    make_renderer,
)
from agentic.rollout.agents.chat import ChatEndpoint
from agentic.rollout.agents.code_interpreter import CodeInterpreterAgent
from agentic.rollout.agents.shell import ShellAgent
from agentic.rollout.agents.tool_shell import ToolShellAgent

type Kind = type[ShellAgent | ToolShellAgent | CodeInterpreterAgent]

OPTIONS = {"max_turns": 4, "max_tokens": 400, "command_timeout_seconds": 2.5, "output_characters": 200}
END = 258
DEEP = '{"name": "bash", "arguments": {"command": ' + "[" * 1200 + "]" * 1200 + "}}"
PIECES = (
    *("```bash\n", "\n```", "ls", "\0", "<tool_call>\n", "\n</tool_call>", "{", "}", '"', "\\", "\n", "[" * 1200),
    *('{"name": "bash", "arguments": {"command": "ls"}}', '{"name": "bash", "arguments": "ls"}', '{"name": 3}'),
    *('{"name": "code_interpreter", "arguments": {"code": "1\\u0000"}}', '{"name": "bash"}', DEEP),
    *('{"name": "bash", "arguments": {"command": "echo \\ud800"}}', '{"arguments": {}}', "null", "<think>", "</think>"),
)


def ids_of(text: str) -> tuple[int, ...]:
    """A token a byte."""
    from proxy_tokens import make_tokenizer

    return tuple(make_tokenizer().encode(text).ids)


tokens = st.one_of(st.sampled_from(PIECES).map(ids_of), st.integers(0, END - 1).map(lambda token: (token,)))
replies = st.lists(tokens, max_size=6).map(lambda parts: tuple(token for part in parts for token in part))


class Machine:
    """Stands where Harbor's environment does: takes what a kernel takes."""

    async def exec(self, *, command: str, timeout_sec: int) -> ExecResult:
        if "\0" in command:
            raise ValueError("embedded null byte")
        command.encode()
        return ExecResult(stdout="ok\n", return_code=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), thinks=False).path


async def talk(kind: Kind, model: Path, said: list[tuple[int, ...]]):
    script = ScriptedEngine([ScriptedReply((*ids, END)) for ids in said])
    server = ProxyServer(ProxySettings(), script, make_renderer(model))
    await server.start()
    try:
        spec = SessionSpec(
            session_id="one",
            sampling=Sampling(temperature=1.0, max_tokens=OPTIONS["max_tokens"]),
            max_prompt_tokens=4000,
            max_response_tokens=20_000,
            max_calls=len(said),
        )
        handle = await server.open(spec)
        with tempfile.TemporaryDirectory() as logs:
            agent = kind(logs_dir=Path(logs), **OPTIONS)
            agent.connect(ChatEndpoint(handle.base_url, handle.api_key))
            await agent.run("Repair it.", Machine(), AgentContext())
    finally:
        await server.stop()


@pytest.mark.parametrize("kind", [ShellAgent, ToolShellAgent, CodeInterpreterAgent])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(replies, min_size=4, max_size=4))
@example([()] * 4)
@example([ids_of(f"<tool_call>\n{DEEP}\n</tool_call>")] * 4)
@example([ids_of("```bash\necho a\0b\n```")] * 4)
def test_no_reply_loses_a_rollout(model: Path, kind: Kind, said: list[tuple[int, ...]]) -> None:
    with contextlib.suppress(NonZeroAgentExitCodeError):  # After which Harbor grades what is there.
        asyncio.run(talk(kind, model, said))
