"""Harbor's own trials over our sandboxes."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from kube_rig import KINDS, memory_rig

from agentic.images.local import build_images
from agentic.images.settings import ImageSettings
from agentic.sandbox.base import SandboxProvider
from agentic.sandbox.errors import ImageMissingError, SandboxLostError, SandboxSetupError
from agentic.sandbox.images import ImageSource, StoredImages, open_images
from agentic.sandbox.local.bubblewrap import BubblewrapProvider
from agentic.sandbox.rootfs import RootfsStore
from agentic.sandbox.settings import BubblewrapSandbox
from agentic.sandbox.task_sandbox import TaskSandbox, read_task_sandbox

pytestmark = pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning")
"""Harbor's own."""

SOLVE = "#!/bin/sh\nsed -i 's/a - b/a + b/' calc.py\n"
TEST = """#!/bin/sh
cd /app
if python3 -S -E -c 'from calc import add; assert add(2, 3) == 5'; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "tasks" / "calc"
    for name in ("environment/repo", "solution", "tests"):
        (folder / name).mkdir(parents=True)
    (folder / "environment/Dockerfile").write_text("FROM agentic/base:local\nWORKDIR /app\nCOPY repo/ .\n")
    (folder / "environment/repo/calc.py").write_text("def add(a, b):\n    return a - b\n")
    (folder / "solution/solve.sh").write_text(SOLVE)
    (folder / "tests/test.sh").write_text(TEST)
    (folder / "instruction.md").write_text("Make add work.")
    (folder / "task.toml").write_text('version = "1.0"\n[agent]\ntimeout_sec = 60\n[verifier]\ntimeout_sec = 60\n')
    return folder


@pytest.fixture(autouse=True)
def quiet_harbor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARBOR_TELEMETRY", "0")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")


async def run_trial(task: Path, provider: SandboxProvider, images: ImageSource, agent: str, **kwargs: Any) -> Any:
    from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
    from harbor.trial.trial import Trial

    from agentic.sandbox.harbor_environment import IMPORT_PATH, SandboxScope, sandbox_scope

    config = TrialConfig(
        task=TaskConfig(path=task),
        trials_dir=task.parent.parent / "trials",
        agent=AgentConfig(name=agent),
        environment=EnvironmentConfig(import_path=IMPORT_PATH, kwargs=kwargs),
    )
    with sandbox_scope(SandboxScope(provider, images, "harbor-test")):
        trial = await Trial.create(config)
        return await trial.run()


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1), ("nop", 0)])
async def test_a_trial_is_graded_by_what_happened_in_its_sandbox(
    task: Path, provider: BubblewrapProvider, store: RootfsStore, agent: str, reward: int
) -> None:
    results = await build_images([task], store, ImageSettings(), BubblewrapSandbox())
    assert [result.status for result in results] in (["built"], ["cached"])
    result = await run_trial(task, provider, StoredImages(store), agent)
    assert result.exception_info is None
    assert result.verifier_result.rewards == {"reward": reward}
    written = json.loads(next((task.parent.parent / "trials").glob("*/config.json")).read_text())
    assert written["environment"]["import_path"].endswith(":SandboxEnvironment")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1), ("nop", 0)])
async def test_a_trial_runs_in_a_pod_from_an_image_that_the_task_only_names(
    task: Path, store: RootfsStore, kind: str, agent: str, reward: int
) -> None:
    shutil.rmtree(task / "environment/repo")
    (task / "environment/Dockerfile").unlink()
    with (task / "task.toml").open("a") as handle:
        handle.write('[environment]\ndocker_image = "agentic/base:local"\nworkdir = "/app"\n')
    (task / "solution/solve.sh").write_text("#!/bin/sh\necho 42 > /app/answer\n")
    verdict = "if grep -q 42 /app/answer; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"
    (task / "tests/test.sh").write_text(f"#!/bin/sh\n{verdict}\n")
    async with memory_rig(kind) as rig:
        result = await run_trial(task, rig.provider, open_images(rig.settings, store), agent)
        assert result.exception_info is None
        assert result.verifier_result.rewards == {"reward": reward}
        assert await rig.pods("agentic-rl/sandbox") == ()


READ_ONLY = '[metadata.sandbox]\nread_only_root = true\nwritable_paths = ["/app"]\n'


@pytest.mark.parametrize("kind", ["bubblewrap", *KINDS])
async def test_a_task_that_allows_a_read_only_root_gets_one_and_is_graded_in_it(
    task: Path, provider: BubblewrapProvider, store: RootfsStore, kind: str
) -> None:
    image = 'docker_image = "agentic/base:local"\n' if kind != "bubblewrap" else ""
    if image:
        shutil.rmtree(task / "environment/repo")
        (task / "environment/Dockerfile").unlink()
    with (task / "task.toml").open("a") as handle:
        handle.write(f'{READ_ONLY}[environment]\n{image}workdir = "/app"\n')
    (task / "solution/solve.sh").write_text("#!/bin/sh\necho x > /usr/answer\necho 42 > /app/answer\n")
    verdict = "grep -q 42 /app/answer && [ ! -e /usr/answer ] && echo 1 || echo 0"
    (task / "tests/test.sh").write_text(f"#!/bin/sh\n{{ {verdict}; }} > /logs/verifier/reward.txt\n")
    if kind == "bubblewrap":
        await build_images([task], store, ImageSettings(), BubblewrapSandbox())
        result = await run_trial(task, provider, StoredImages(store), "oracle")
    else:
        async with memory_rig(kind) as rig:
            result = await run_trial(task, rig.provider, open_images(rig.settings, store), "oracle")
    assert result.exception_info is None
    assert result.verifier_result.rewards == {"reward": 1}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ('writable_paths = ["app"]', "metadata.sandbox.writable_paths.0: Value error, 'app' is no folder inside"),
        ('writable_paths = ["/"]', "'/' is no folder inside"),
        ('writable_paths = ["/app/../usr"]', "'/app/../usr' is no folder inside"),
        ("read_only = true", "metadata.sandbox.read_only: Extra inputs are not permitted"),
    ],
)
def test_what_a_task_says_wrongly_of_its_sandbox_is_named(task: Path, said: str, words: str) -> None:
    assert read_task_sandbox(task) == TaskSandbox()
    with (task / "task.toml").open("a") as handle:
        handle.write(f"[metadata.sandbox]\n{said}\n")
    with pytest.raises(SandboxSetupError, match=re.escape(words)):
        read_task_sandbox(task)


async def test_an_image_that_was_not_built_fails_the_trial_by_name(
    task: Path, provider: BubblewrapProvider, store: RootfsStore
) -> None:
    (task / "environment/repo/calc.py").write_text("# never built\n")
    result = await run_trial(task, provider, StoredImages(store), "nop")
    assert result.exception_info.exception_type == ImageMissingError.__name__
    assert "run build_images" in result.exception_info.exception_message


async def make_environment(task: Path, provider: SandboxProvider, store: RootfsStore, **kwargs: Any) -> Any:
    from harbor.models.task.config import EnvironmentConfig
    from harbor.models.trial.paths import TrialPaths

    from agentic.sandbox.harbor_environment import SandboxEnvironment, SandboxScope, sandbox_scope

    await build_images([task], store, ImageSettings(), BubblewrapSandbox())
    with sandbox_scope(SandboxScope(provider, StoredImages(store), "harbor-test")):
        return SandboxEnvironment(
            environment_dir=task / "environment",
            environment_name="calc",
            session_id="calc/one__env",
            trial_paths=TrialPaths(task.parent / "trial"),
            task_env_config=EnvironmentConfig(env={"FROM_TASK": "yes"}, memory_mb=96, cpus=1),
            **kwargs,
        )


async def test_exec_returns_124_in_time_trouble_and_raises_when_the_sandbox_is_lost(
    task: Path, provider: BubblewrapProvider, store: RootfsStore
) -> None:
    environment = await make_environment(task, provider, store)
    await environment.start(force_build=False)
    assert (await environment.exec("sleep 30", timeout_sec=1)).return_code == 124
    result = await environment.exec("pwd; echo $FROM_TASK $MORE", env={"MORE": "more"})
    assert result.stdout == "/app\nyes more\n"
    await environment.stop(delete=True)
    with pytest.raises(SandboxLostError):
        await environment.exec("true")


async def test_sockets_of_the_kwargs_are_bound(
    task: Path, provider: BubblewrapProvider, store: RootfsStore, tmp_path: Path
) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s.sock"))
        server.listen()
        environment = await make_environment(task, provider, store, sockets={str(tmp_path / "s.sock"): "/run/p.sock"})
        await environment.start(force_build=False)
        code = "import socket; socket.socket(socket.AF_UNIX).connect('/run/p.sock')"
        assert (await environment.exec(f'python3 -c "{code}"')).return_code == 0
        await environment.stop(delete=True)


def test_a_trial_outside_of_a_scope_says_what_is_missing(task: Path) -> None:
    from agentic.sandbox.harbor_environment import SandboxEnvironment

    with pytest.raises(SandboxSetupError, match="sandbox_scope"):
        SandboxEnvironment(environment_dir=task / "environment")
