"""The agent with a code tool: what it runs, what the model reads, what it leaves for the checker."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from harbor.environments.base import ExecResult
from harbor.models.agent.context import AgentContext

from agentic.rollout.agents.chat import ChatEndpoint
from agentic.rollout.agents.code_interpreter import CodeInterpreterAgent


class Model:
    """A chat completions endpoint that gives scripted messages and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        message = {"role": "assistant", **self.answers[len(self.requests) - 1]}
        return web.json_response({"choices": [{"message": message, "finish_reason": "stop"}]})


class Folder:
    """Stands where Harbor's environment does: commands are run by bash in a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def exec(self, *, command: str, timeout_sec: int) -> ExecResult:
        child = await asyncio.create_subprocess_exec(
            "bash", "-c", command, cwd=self.path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await child.communicate()
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=child.returncode or 0)


def calls(*codes: Any, name: str = "code_interpreter") -> dict[str, Any]:
    made = [
        {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": json.dumps({"code": code})}}
        for i, code in enumerate(codes)
    ]
    return {"content": "", "tool_calls": made}


@pytest.fixture
async def model() -> AsyncIterator[tuple[Model, ChatEndpoint]]:
    model = Model()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", model.answer)
    async with TestServer(app) as server:
        yield model, ChatEndpoint(str(server.make_url("/v1")), "secret")


async def run(tmp_path: Path, model: tuple[Model, ChatEndpoint], *answers: dict[str, Any]) -> AgentContext:
    options: dict[str, Any] = {"max_turns": 3, "max_tokens": 64, "command_timeout_seconds": 5, "output_characters": 300}
    agent = CodeInterpreterAgent(logs_dir=tmp_path, **options)
    agent.connect(model[1])
    model[0].answers += answers
    context = AgentContext()
    await agent.run("\nWhat is 6*7?\n", Folder(tmp_path), context)
    return context


def read(model: tuple[Model, ChatEndpoint]) -> list[str]:
    """What tools answered."""
    return [message["content"] for message in model[0].requests[-1]["messages"] if message["role"] == "tool"]


async def test_code_is_run_and_the_last_reply_is_left_for_the_checker(
    tmp_path: Path, model: tuple[Model, ChatEndpoint]
) -> None:
    context = await run(tmp_path, model, calls("```py\nx = 6\nx * 7\n```"), {"content": "It is \\boxed{42}."})
    assert read(model) == ["42"]
    assert (tmp_path / "answer.txt").read_text() == "It is \\boxed{42}."
    assert context.metadata == {"turns": 2}
    assert model[0].requests[0]["tools"][0]["function"]["name"] == "code_interpreter"


async def test_a_traceback_goes_back_to_the_model(tmp_path: Path, model: tuple[Model, ChatEndpoint]) -> None:
    await run(tmp_path, model, calls("nosuch"), {"content": "no"})
    assert read(model)[0].endswith("NameError: name 'nosuch' is not defined")


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (calls(7), "Error: code_interpreter needs an argument code that is a string"),
        (calls("1", name="bash"), "Unknown function 'bash'. Available tools: ['code_interpreter']"),
        (calls("#" * 70_000), "Error: the code has more than 60000 bytes"),
    ],
)
async def test_a_wrong_call_is_told(
    tmp_path: Path, model: tuple[Model, ChatEndpoint], reply: dict[str, Any], told: str
) -> None:
    await run(tmp_path, model, reply, {"content": "no"})
    assert read(model) == [told]


async def test_further_calls_of_a_reply_are_not_run(tmp_path: Path, model: tuple[Model, ChatEndpoint]) -> None:
    await run(tmp_path, model, calls("1", "open('made', 'w')"), {"content": "no"})
    assert read(model) == ["1", "not run: one call a turn"]
    assert not (tmp_path / "made").exists()


async def test_the_last_turns_call_is_not_run_and_its_text_is_left_as_the_answer(
    tmp_path: Path, model: tuple[Model, ChatEndpoint]
) -> None:
    last = calls("open('made', 'w')") | {"content": "It is \\boxed{42}."}
    context = await run(tmp_path, model, calls("1"), calls("2"), last)
    assert context.metadata == {"turns": 3}
    assert [path.name for path in tmp_path.iterdir()] == ["answer.txt"]
    assert (tmp_path / "answer.txt").read_text() == "It is \\boxed{42}."


async def test_an_empty_reply_is_left_as_an_empty_file(tmp_path: Path, model: tuple[Model, ChatEndpoint]) -> None:
    await run(tmp_path, model, {"content": None})
    assert (tmp_path / "answer.txt").read_bytes() == b""
