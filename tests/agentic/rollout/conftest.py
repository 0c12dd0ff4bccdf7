"""A hand-written repair task, the environment double to run it in, and a proxy whose policy is scripted."""

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentic.images.local import build_images
from agentic.images.settings import ImageSettings
from agentic.proxy import ProxyServer, ProxySettings, ScriptedEngine, ScriptedReply, make_renderer
from agentic.rollout.settings import ScriptedAgentSettings
from agentic.rollout.trial import EnvironmentSpec, TrialRequest
from agentic.sandbox.providers import open_store

DOUBLES = str(Path(__file__).parents[2] / "doubles")
if DOUBLES not in sys.path:
    sys.path.append(DOUBLES)

import proxy_tokens  # noqa: E402 - the path has to be there first

TASK_TOML = """\
schema_version = "1.4"
[task]
name = "repair/calc"
[agent]
timeout_sec = 60.0
[verifier]
timeout_sec = 60.0
[environment]
"""
TEST_SH = """\
#!/bin/sh
if [ "$(cat "$ROOT/testbed/calc.txt")" = "1 + 2" ]; then echo 1; else echo 0; fi > "$ROOT/logs/verifier/reward.txt"
"""


def _write_task(folder, test_sh=TEST_SH):
    """A task that is solved when calc.txt holds `1 + 2`."""
    for name in ("environment", "tests"):
        (folder / name).mkdir(parents=True)
    (folder / "task.toml").write_text(TASK_TOML)
    (folder / "instruction.md").write_text("Fix calc.txt.\n")
    (folder / "environment" / "Dockerfile").write_text("FROM base\nWORKDIR /testbed\nCOPY calc.txt .\n")
    (folder / "environment" / "calc.txt").write_text("1 - 2\n")
    (folder / "tests" / "test.sh").write_text(test_sh)
    (folder / "tests" / "test.sh").chmod(0o755)
    return folder


@pytest.fixture
def write_task():
    return _write_task


@pytest.fixture
def build_tasks():
    """Tasks of these names in `data_dir/tasks`, and the images that real sandboxes need for them."""

    async def build(data_dir, sandbox, *names, store_dir=None):
        tasks = [_write_task(data_dir / "tasks" / name) for name in names]
        for task in tasks:
            dockerfile = task / "environment" / "Dockerfile"
            dockerfile.write_text(dockerfile.read_text().replace("FROM base", "FROM agentic/base:local"))
        store = open_store(store_dir or data_dir / "images", sandbox)
        results = await build_images(tasks, store, ImageSettings(), sandbox)
        assert [result.status for result in results] == ["built"] * len(names)
        return tasks

    return build


@pytest.fixture
def task_dir(tmp_path):
    return _write_task(tmp_path / "tasks" / "calc")


class Gate:
    """An agent's command that says when it runs, and goes on when it is let."""

    def __init__(self, folder):
        self._begun, self._open = folder / "begun", folder / "open"
        self.command = f"touch {self._begun}; while [ ! -e {self._open} ]; do sleep 0.02; done"

    async def begun(self):
        async with asyncio.timeout(30):
            while not self._begun.exists():
                await asyncio.sleep(0.02)

    def open(self):
        self._open.touch()


@pytest.fixture
def gate(tmp_path):
    """What a test is about happens between `begun` and `open`, however slow the machine is."""
    made = Gate(tmp_path)
    yield made
    made.open()


@pytest.fixture
def environment():
    def make(**kwargs):
        return EnvironmentSpec(import_path="process_environment:ProcessEnvironment", kwargs=kwargs)

    return make


@pytest.fixture
def trial_for(tmp_path, task_dir, environment):
    def make(*commands, trial_id="trial-1", keep="all", environment_kwargs=None, **changes):
        values = {
            "trial_id": trial_id,
            "task_dir": str(task_dir),
            "trials_dir": str(tmp_path / "trials"),
            "agent": ScriptedAgentSettings(commands=commands),
            "base_url": "http://127.0.0.1:9/v1",
            "api_key": "secret-key",
            "environment": environment(**(environment_kwargs or {})),
            "deadline_seconds": 30,
            "start_seconds": 5,
            "grading_seconds": 10,
            "keep": keep,
        }
        return TrialRequest(**{**values, **changes})

    return make


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    return proxy_tokens.write_model_folder(tmp_path_factory.mktemp("model"), proxy_tokens.TINY_TEMPLATE)


class ScriptedPolicy:
    """Says, in the n-th turn of any conversation, the n-th of its replies; a reply may be a failure of the engine."""

    def __init__(self, *replies, version=5):
        self._tokenizer = proxy_tokens.make_tokenizer()
        self._replies = replies
        self._version = version
        self.engine = ScriptedEngine(self._reply)

    def _reply(self, prompt_ids, sampling, request_id):
        turn = self._tokenizer.decode(list(prompt_ids), skip_special_tokens=False).count("<|im_start|>assistant")
        reply = self._replies[turn - 1]
        if isinstance(reply, ScriptedReply):
            return reply
        return ScriptedReply((*self._tokenizer.encode(reply).ids, proxy_tokens.END), version=self._version)


@pytest.fixture
def policy():
    return ScriptedPolicy


@pytest.fixture
def serve(model_dir):
    """A running proxy in front of a policy."""

    @asynccontextmanager
    async def running(policy):
        proxy = ProxyServer(ProxySettings(), policy.engine, make_renderer(model_dir))
        await proxy.start()
        try:
            yield proxy
        finally:
            await proxy.stop()

    return running


@pytest.fixture(autouse=True)
def _no_environment_is_left():
    yield
    double = sys.modules.get("process_environment")
    assert double is None or not double.ProcessEnvironment.live, "a sandbox outlived its test"
