import json
import stat
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from harbor.agents.installed.base import (
    ContextWindowExceededError,
    NetworkConnectionError,
    NonZeroAgentExitCodeError,
)
from harbor.environments.base import ExecResult
from harbor.models.agent.context import AgentContext
from hypothesis import given
from hypothesis import strategies as st

from agentic.rollout.agents import inside_program
from agentic.rollout.agents.chat import ChatClient, ChatEndpoint
from agentic.rollout.agents.inside_program import cut_middle, output_text
from agentic.rollout.agents.inside_shell import InsideShellAgent
from agentic.rollout.agents.shell import ShellAgent
from agentic.rollout.agents.tool_shell import ToolShellAgent
from agentic.rollout.errors import AgentProgramError, ModelUnavailableError, RolloutConfigError

OPTIONS = {"max_turns": 4, "max_tokens": 48, "command_timeout_seconds": 2.5, "output_characters": 200}


class ChatModel:
    """A chat completions endpoint that gives scripted answers and keeps what it was asked."""

    def __init__(self, answers):
        self._answers = list(answers)
        self.requests = []
        self.keys = []

    async def __aenter__(self):
        app = web.Application()
        app.router.add_post("/s/one/v1/chat/completions", self._answer)
        self._server = TestServer(app)
        await self._server.start_server()
        self.endpoint = ChatEndpoint(str(self._server.make_url("/s/one/v1")), "secret")
        return self

    async def __aexit__(self, *error):
        await self._server.close()

    async def _answer(self, request):
        self.requests.append(await request.json())
        self.keys.append(request.headers.get("Authorization"))
        answer = self._answers[len(self.requests) - 1]
        if isinstance(answer, web.Response):
            return answer
        message = (
            {"role": "assistant", **answer} if isinstance(answer, dict) else {"role": "assistant", "content": answer}
        )
        return web.json_response({"choices": [{"message": message, "finish_reason": "stop"}]})


class Shell:
    """Stands where Harbor's environment does: scripted results, commands kept."""

    def __init__(self, *results):
        self._results = list(results)
        self.commands = []

    async def exec(self, *, command, timeout_sec):
        self.commands.append((command, timeout_sec))
        return self._results[len(self.commands) - 1]


class Inside:
    """Stands where the environment of an agent inside does: keeps what is shipped, and ends the program as told."""

    def __init__(self, return_code, stdout="", stderr=""):
        self._result = ExecResult(stdout=stdout, stderr=stderr, return_code=return_code)
        self.shipped = {}

    async def upload_dir(self, source_dir, target_dir):
        for path in Path(source_dir).rglob("*"):
            content = path.read_text() if path.is_file() else None
            self.shipped[f"{target_dir}/{path.relative_to(source_dir)}"] = (stat.S_IMODE(path.stat().st_mode), content)

    async def exec(self, *, command, timeout_sec):
        self.command, self.timeout_seconds = command, timeout_sec
        return self._result


def fenced(command, note="Look."):
    return f"{note}\n```bash\n{command}\n```"


def call(command, name="bash", number=0):
    arguments = command if isinstance(command, str) else json.dumps(command)
    return {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def refusal(status, code):
    body = {"error": {"message": f"refused: {code}", "type": "x", "code": code}}
    return web.json_response(body, status=status)


async def run(agent_class, model, shell, tmp_path, **options):
    agent = agent_class(logs_dir=tmp_path, **{**OPTIONS, **options})
    agent.connect(model.endpoint)
    context = AgentContext()
    await agent.run("\nFix calc.py.\n", shell, context)
    return context


async def test_the_shell_agent_shows_each_commands_output_and_stops_at_submit(tmp_path):
    shell = Shell(ExecResult(stdout="1 a\n", stderr="note\n", return_code=0), ExecResult(return_code=0))
    async with ChatModel([fenced("cat calc.py"), fenced("sed -i 's/-/+/' calc.py"), fenced("submit")]) as model:
        context = await run(ShellAgent, model, shell, tmp_path)
    assert shell.commands == [("cat calc.py", 3), ("sed -i 's/-/+/' calc.py", 3)]
    assert model.requests[-1]["messages"] == [
        {"role": "user", "content": "Fix calc.py."},
        {"role": "assistant", "content": fenced("cat calc.py")},
        {"role": "user", "content": "1 a\nnote"},
        {"role": "assistant", "content": fenced("sed -i 's/-/+/' calc.py")},
        {"role": "user", "content": "ok"},
    ]
    assert model.requests[0]["max_tokens"] == 48
    assert set(model.keys) == {"Bearer secret"}
    assert context.metadata == {"turns": 3}


async def test_a_silent_failure_reads_error_and_a_reply_without_a_fence_no_command(tmp_path):
    shell = Shell(ExecResult(return_code=1), ExecResult(return_code=124))
    answers = [fenced("false"), "I do not know.", "```bash\n\n```", fenced("sleep 9")]
    async with ChatModel(answers) as model:
        await run(ShellAgent, model, shell, tmp_path)
    seen = [message["content"] for message in model.requests[-1]["messages"] if message["role"] == "user"]
    assert seen == ["Fix calc.py.", "error", "no command", "no command"]
    assert shell.commands[-1] == ("sleep 9", 3), "the last turn's command counts although nobody reads its output"


async def test_turns_are_bounded(tmp_path):
    shell = Shell(*[ExecResult(stdout="x", return_code=0)] * 2)
    async with ChatModel([fenced("ls")] * 3) as model:
        context = await run(ShellAgent, model, shell, tmp_path, max_turns=2)
    assert len(model.requests) == 2
    assert context.metadata == {"turns": 2}


async def test_the_tool_agent_answers_every_call_of_a_reply_and_runs_the_first(tmp_path):
    shell = Shell(ExecResult(stdout="done\n", return_code=0))
    answers = [
        {"content": None, "tool_calls": [call({"command": "ls"}, number=1), call({"command": "rm -r ."}, number=2)]},
        {"content": "hm", "tool_calls": [call("{not json", number=3)]},
        {"content": "no call"},
        {"content": None, "tool_calls": [call({"command": "submit"}, number=4)]},
    ]
    async with ChatModel(answers) as model:
        await run(ToolShellAgent, model, shell, tmp_path)
    assert [command for command, _ in shell.commands] == ["ls"]
    assert model.requests[0]["tools"][0]["function"]["name"] == "bash"
    replies = [message for message in model.requests[-1]["messages"][1:] if message["role"] != "assistant"]
    assert replies == [
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
        {"role": "tool", "tool_call_id": "c2", "content": "not run: one command a turn"},
        {"role": "tool", "tool_call_id": "c3", "content": "no command"},
        {"role": "user", "content": "no command"},
    ]


async def test_a_spent_context_is_harbors_own_exception(tmp_path):
    async with ChatModel([refusal(400, "context_length_exceeded")]) as model:
        with pytest.raises(ContextWindowExceededError, match="refused"):
            await run(ShellAgent, model, Shell(), tmp_path)


@pytest.mark.parametrize(
    "answer",
    [
        refusal(502, "generation_failed"),
        refusal(400, "invalid_request"),
        refusal(410, "session_sealed"),
        web.Response(status=503, text="<html>"),
        web.json_response({"choices": []}),
        web.json_response(["context_length_exceeded"], status=400),
    ],
    ids=["engine", "request", "sealed", "no json", "no message", "no object"],
)
async def test_any_other_refusal_means_that_the_model_was_unavailable(tmp_path, answer):
    async with ChatModel([answer]) as model:
        with pytest.raises(ModelUnavailableError):
            await run(ShellAgent, model, Shell(), tmp_path)


async def test_an_endpoint_that_nobody_listens_at_is_an_unavailable_model():
    async with ChatClient(ChatEndpoint("http://127.0.0.1:9/v1", "key")) as chat:
        with pytest.raises(ModelUnavailableError, match="no answer"):
            await chat.complete([], max_tokens=1)


@pytest.mark.parametrize(
    ("return_code", "raised"),
    [
        (inside_program.DONE, None),
        (inside_program.CONTEXT_SPENT, ContextWindowExceededError),
        (inside_program.NO_ANSWER, NetworkConnectionError),
        (137, None),
        (127, AgentProgramError),
        (1, NonZeroAgentExitCodeError),
    ],
    ids=["done", "spent", "no answer", "killed by its commands", "no python", "broken"],
)
async def test_how_the_program_inside_ended_says_what_the_trial_learns(tmp_path, return_code, raised):
    agent = InsideShellAgent(logs_dir=tmp_path, **OPTIONS)
    agent.connect(ChatEndpoint("http://127.0.0.1:9/s/one/v1", "secret"))
    report = json.dumps({"turns": 3, "message": "as told"}) if return_code != 137 else ""
    context = AgentContext()
    with pytest.raises(raised, match=r"as told|no such") if raised else nullcontext():
        await agent.run("Fix it.", Inside(return_code, report, "sh: python3: no such file"), context)
    assert context.metadata == {"turns": 0 if return_code == 137 else 3, "exit_code": return_code}


@pytest.mark.parametrize(
    ("report", "turns"),
    [
        ('{"turns": "x"}', 0),
        ('{"turns": null}', 0),
        ('{"turns": 1e400}', 0),
        ('{"turns": true}', 0),
        ('{"turns": 1000000}', OPTIONS["max_turns"]),
        ('{"turns": -3}', 0),
        ("[" * 100_000, 0),
    ],
)
async def test_what_a_policy_writes_in_the_programs_place_ends_no_trial(tmp_path, report, turns):
    agent = InsideShellAgent(logs_dir=tmp_path, **OPTIONS)
    agent.connect(ChatEndpoint("http://127.0.0.1:9/s/one/v1", "secret"))
    context = AgentContext()
    await agent.run("Fix it.", Inside(137, report), context)
    assert context.metadata == {"turns": turns, "exit_code": 137}


async def test_the_program_inside_is_told_its_job_by_a_file_that_it_can_remove(tmp_path):
    agent = InsideShellAgent(logs_dir=tmp_path, **OPTIONS)
    agent.connect(ChatEndpoint("http://127.0.0.1:9/s/one/v1", "secret"))
    inside = Inside(inside_program.DONE)
    await agent.run("Fix it.", inside, AgentContext())
    (mode, content) = inside.shipped["/run/agentic/agent/job.json"]
    job = inside_program.Job(**json.loads(content))
    assert (job.socket, job.url_path) == ("/run/agentic/proxy.sock", "/s/one/v1/chat/completions")
    assert (job.api_key, job.instruction, job.max_turns) == ("secret", "Fix it.", 4)
    assert (mode, inside.shipped["/run/agentic/agent"][0]) == (0o644, 0o777)
    assert "secret" not in inside.command
    assert not list(Path(tempfile.gettempdir()).glob("agentic-job-*")), "nothing of it stays on this side"


async def test_an_agent_that_was_not_connected_says_so(tmp_path):
    with pytest.raises(RolloutConfigError, match="connect"):
        await ShellAgent(logs_dir=tmp_path, **OPTIONS).run("x", SimpleNamespace(), AgentContext())


def test_the_key_is_in_no_representation():
    assert "secret" not in repr(ChatEndpoint("http://host/v1", "secret"))


@given(st.text(max_size=400), st.integers(80, 300))
def test_cut_output_fits_its_limit_and_keeps_both_ends(text, limit):
    cut = cut_middle(text, limit)
    assert len(cut) <= limit
    if len(text) <= limit:
        assert cut == text
    else:
        assert cut[:10] == text[:10]
        assert cut[-10:] == text[-10:]
        assert "characters cut" in cut


def test_output_is_stripped():
    assert output_text(" a\nb\n", 1, 100) == "a\nb"
