"""Whole rollouts of the agent inside a sandbox without network: real proxy, real bubblewrap; the policy is scripted."""

import shutil
import socket
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import proxy_tokens
import pytest

from agentic.proxy import ProxyServer, ProxySettings, Sampling, ScriptedReply, SessionSpec, make_renderer
from agentic.rollout.evaluation import Evaluation, EvaluationTask, evaluate
from agentic.rollout.export import training_rows
from agentic.rollout.outcomes import CaptureFacts, Outcome, decide
from agentic.rollout.proxy_socket import SOCKET_INSIDE, prepare_folder, proxy_settings, sandbox_environment
from agentic.rollout.records import Phase
from agentic.rollout.rollouts import RolloutRequest, make_record, run_rollout
from agentic.rollout.settings import InsideShellAgentSettings, RolloutSettings, ShellAgentSettings
from agentic.rollout.trial import TrialRequest, sandboxed_runner
from agentic.sandbox.settings import BubblewrapSandbox

pytestmark = [
    pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning"),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
]

SANDBOX = BubblewrapSandbox(memory_mb=128, scratch_mb=16)
BOUNDS = {"max_turns": 4, "max_tokens": 600, "command_timeout_seconds": 10.0, "output_characters": 8000}
INSIDE, OUTSIDE = InsideShellAgentSettings(**BOUNDS), ShellAgentSettings(**BOUNDS)


def fenced(command):
    return f"```bash\n{command}\n```"


LOOK, FIX, SUBMIT = fenced("cat calc.txt"), fenced("echo '1 + 2' > calc.txt"), fenced("submit")


def spec(agent, **changes):
    return RolloutSettings(agent=agent, infra_retries=0, deadline_seconds=50, start_seconds=10, **changes)


@pytest.fixture(autouse=True)
def _short_temporary_folder(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture
async def rig(tmp_path, build_tasks, model_dir):
    """Rolls out once with a scripted policy and says how it went; `key` and `text` tell what the policy saw."""
    (task,) = await build_tasks(tmp_path, SANDBOX, "calc")

    class Rig:
        task_dir = task
        trials_dir = tmp_path / "trials"

        @asynccontextmanager
        async def trials(self):
            trials = sandboxed_runner("run", tmp_path / "images", SANDBOX, 2)
            try:
                yield trials
            finally:
                await trials.close()

        async def roll_out(self, policy, settings, response_tokens=30_000):
            serving = proxy_settings(settings, SANDBOX, str(tmp_path))
            proxy = ProxyServer(serving, policy.engine, make_renderer(model_dir))
            prepare_folder(proxy.unix_socket)
            await proxy.start()
            try:
                async with self.trials() as trials:
                    request = self.request(sandbox_environment(settings.agent, serving), response_tokens)
                    result = await run_rollout(request, settings, proxy, trials)
                self.key = (await proxy.open(SessionSpec(**session(result)))).api_key
            finally:
                await proxy.stop()
            assert proxy.unix_socket is None or not proxy.unix_socket.exists()
            return result

        def request(self, environment, response_tokens):
            return RolloutRequest(
                rollout_id="uid_0",
                phase=Phase.TRAIN,
                step=3,
                task="calc",
                split="train",
                task_dir=str(self.task_dir),
                trials_dir=str(self.trials_dir),
                environment=environment,
                sampling=Sampling(temperature=1.0, max_tokens=BOUNDS["max_tokens"]),
                prompt_tokens=200,
                response_tokens=response_tokens,
            )

    return Rig()


def session(result):
    return {
        "session_id": result.sealed.session_id,
        "sampling": result.request.sampling,
        "max_prompt_tokens": 200,
        "max_response_tokens": 200,
        "max_calls": 1,
    }


def text_of(result):
    (row,) = training_rows(result)
    return proxy_tokens.make_tokenizer().decode(list(row.response_ids), skip_special_tokens=False)


async def test_it_solves_the_task_and_its_trajectory_is_that_of_the_agent_outside(rig, policy):
    replies = (LOOK, "Hm.", FIX, SUBMIT)
    inside = await rig.roll_out(policy(*replies), spec(INSIDE))
    outside = await rig.roll_out(policy(*replies), spec(OUTSIDE))
    assert (inside.verdict.outcome, inside.reward) == (Outcome.SOLVED, 1.0), inside.verdict
    assert training_rows(inside) == training_rows(outside)
    assert inside.sealed.sampled_tokens == sum(len(text) + 1 for text in replies)
    assert "user\n1 - 2<" in text_of(inside)
    assert "user\nno command<" in text_of(inside)
    records = [make_record(result) for result in (inside, outside)]
    assert [(record.turns, record.calls) for record in records] == [(4, 4)] * 2
    assert not list(rig.trials_dir.glob("*")), "neither leaves Harbor's folder, where the key could be"


async def test_it_reaches_its_session_and_nothing_else(rig, policy):
    ports = free_ports(2)
    dial = f"for p in {ports[0]} {ports[1]}; do (: < /dev/tcp/127.0.0.1/$p) 2>&1; done; tail -n +3 /proc/net/dev"
    ask = (
        "import http.client as h, socket as s\n"
        "for m, p in ('GET', '/health'), ('POST', '/v1/chat/completions'), ('POST', '/sessions'):\n"
        "    c = h.HTTPConnection('x'); c.sock = s.socket(s.AF_UNIX)\n"
        f"    c.sock.connect('{SOCKET_INSIDE}'); c.request(m, p)\n"
        "    print(p, c.getresponse().status)"
    )
    talk = fenced(f'python3 -I -S -c "\n{ask}\n"')
    proxy = ProxySettings(port=ports[0], control_port=ports[1])
    result = await rig.roll_out(policy(fenced(dial), talk, FIX, SUBMIT), spec(INSIDE, proxy=proxy))
    assert result.verdict.outcome is Outcome.SOLVED, result.verdict
    seen = text_of(result)
    for port in ports:
        assert f"/dev/tcp/127.0.0.1/{port}: Connection refused" in seen
    devices = [line.split(":")[0].strip() for line in seen.splitlines() if ":" in line and line.split()[-1] == "0"]
    assert set(devices) <= {"lo"}
    assert "/health 200" in seen
    assert "/v1/chat/completions 401" in seen, "without the session's key there is nothing to be had"
    assert "/sessions 404" in seen, "the control plane is not on the socket"


async def test_its_key_is_on_no_command_line_in_no_environment_and_in_no_file(rig, policy):
    look = fenced(
        "ls /run/agentic/agent; cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | tr '\\0' '\\n'; "
        "grep -rsl uid_0-1[.] /run /tmp /testbed /root /logs"
    )
    result = await rig.roll_out(policy(look, FIX, SUBMIT), spec(INSIDE))
    assert result.verdict.outcome is Outcome.SOLVED, result.verdict
    seen = text_of(result)
    assert "program.py" in seen, "it does look at the agent's own process"
    assert "job.json\n" not in seen.replace("/run/agentic/agent/job.json", "")
    assert rig.key.startswith("uid_0-1.")
    assert rig.key not in seen


async def test_a_command_out_of_time_is_killed_and_the_agent_goes_on(rig, policy):
    hasty = INSIDE.model_copy(update={"command_timeout_seconds": 1.0})
    slow = fenced("echo begun; timeout 60 sleep 61.5")
    count = fenced("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 61[.]5'")
    result = await rig.roll_out(policy(slow, count, FIX, SUBMIT), spec(hasty))
    assert result.verdict.outcome is Outcome.SOLVED, result.verdict
    assert "user\nbegun<" in text_of(result)
    assert "user\n0<" in text_of(result)


async def test_a_spent_context_is_graded_zero_and_trains_what_was_sampled(rig, policy):
    result = await rig.roll_out(policy(LOOK, "x" * 60, "y" * 60, "z" * 60), spec(INSIDE), response_tokens=120)
    assert (result.verdict.outcome, result.reward, result.attempt) == (Outcome.CONTEXT_OVERFLOW, 0.0, 1)
    assert result.trial.facts.exception == "ContextWindowExceededError"
    (row,) = training_rows(result)
    assert 0 < len(row.response_ids) <= 120


@pytest.mark.parametrize("agent", [INSIDE, OUTSIDE], ids=["inside", "outside"])
async def test_a_context_spent_after_the_work_was_done_takes_no_reward_away(rig, policy, agent):
    result = await rig.roll_out(policy(FIX, "x" * 60, "y" * 60, "z" * 60), spec(agent), response_tokens=160)
    assert result.sealed.overflowed
    assert (result.verdict.outcome, result.reward) == (Outcome.SOLVED, 1.0), result.verdict


@pytest.mark.parametrize("agent", [INSIDE, OUTSIDE], ids=["inside", "outside"])
async def test_a_command_that_no_shell_can_take_loses_no_rollout(rig, policy, agent):
    result = await rig.roll_out(policy(fenced("echo a\0b"), FIX, SUBMIT), spec(agent))
    assert result.verdict.outcome is Outcome.SOLVED, result.verdict


async def test_an_engine_that_fails_is_infra(rig, policy):
    result = await rig.roll_out(policy(LOOK, ScriptedReply((1,), fail_after=0)), spec(INSIDE))
    assert (result.verdict.outcome, result.reward) == (Outcome.INFRA, None)
    assert result.trial.facts.exception == "NetworkConnectionError"


async def test_an_agent_out_of_time_is_graded_by_what_it_left(rig, policy):
    settings = spec(INSIDE.model_copy(update={"command_timeout_seconds": 60.0}))
    settings = settings.model_copy(update={"deadline_seconds": 42.0})
    result = await rig.roll_out(policy(FIX, fenced("sleep 50")), settings)
    assert result.trial.facts.exception == "AgentTimeoutError"
    assert result.verdict.outcome is Outcome.SOLVED


async def test_a_policy_that_kills_its_own_agent_is_graded_by_what_it_left(rig, policy):
    result = await rig.roll_out(policy(fenced("kill -9 $PPID")), spec(INSIDE))
    assert (result.verdict.outcome, result.sealed.calls) == (Outcome.FAILED, 1)


@pytest.mark.parametrize("takes", ["nofile=3", "as=4096"], ids=["its-files", "its-memory"])
async def test_a_policy_that_takes_its_agents_means_away_is_graded_by_what_it_left(rig, policy, takes):
    result = await rig.roll_out(policy(FIX, fenced(f"prlimit --pid $PPID --{takes}"), LOOK), spec(INSIDE))
    assert result.trial.facts.exception is not None
    assert result.verdict.outcome is Outcome.SOLVED, result.verdict


async def test_a_proxy_that_died_is_infra_and_the_key_is_in_no_file_of_the_trial(rig):
    left = Path(tempfile.gettempdir()) / "proxy.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(left))
    request = TrialRequest(
        trial_id="lost",
        task_dir=str(rig.task_dir),
        trials_dir=str(rig.trials_dir),
        agent=INSIDE,
        base_url="http://127.0.0.1:1/s/lost/v1",
        api_key="secret-key",
        environment=sandbox_environment(INSIDE, ProxySettings(unix_socket=left)),
        deadline_seconds=50,
        start_seconds=10,
        grading_seconds=20,
    )
    async with rig.trials() as trials:
        result = await trials.run(request)
    assert (result.facts.exception, result.turns) == ("NetworkConnectionError", 1), result.facts
    verdict = decide(result.facts, CaptureFacts(complete=True, calls=0))
    assert verdict.outcome is Outcome.INFRA
    assert "ConnectionRefusedError" in verdict.infra_reason
    kept = [path for path in rig.trials_dir.rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if b"secret-key" in path.read_bytes()]


@pytest.mark.parametrize(("agent", "found"), [(INSIDE, "proxy.sock"), (OUTSIDE, "No such file")])
async def test_an_evaluation_binds_the_socket_for_agents_inside_alone(
    tmp_path, build_tasks, model_dir, policy, agent, found
):
    await build_tasks(tmp_path / "data", SANDBOX, "calc", store_dir=tmp_path / "images")
    evaluation = Evaluation(
        run_id="run",
        run_dir=tmp_path / "run",
        data_dir=tmp_path / "data",
        store_dir=tmp_path / "images",
        checkpoint="base",
        step=0,
        rollout=spec(agent),
        sandbox=SANDBOX,
        prompt_tokens=400,
        response_tokens=2000,
    )
    scripted = policy(fenced("ls -R /run/agentic"), FIX, SUBMIT)
    tasks = [EvaluationTask("calc", "held-out")]
    (record,) = await evaluate(evaluation, tasks, scripted.engine, make_renderer(model_dir))
    assert (record.outcome, record.turns) == (Outcome.SOLVED, 3), record
    asked = proxy_tokens.make_tokenizer().decode(list(scripted.engine.received[1].prompt_ids))
    assert found in asked
    assert not list(Path(tempfile.gettempdir()).rglob("*.sock")), "it is removed at the end"
    assert bool(list(Path(tempfile.gettempdir()).glob("agentic-*"))) == agent.runs_inside


def free_ports(count):
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports
