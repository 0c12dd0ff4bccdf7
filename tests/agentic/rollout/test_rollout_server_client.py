"""What the client of a trial server makes of a network, a disk and a server that do not do what they should."""

import errno
import logging
import os
import tempfile

import pytest
from aiohttp import web
from trial_server_rig import KEY, serving

from agentic.rollout.grading.report import GradingReport
from agentic.rollout.server.client import TrialServerControl
from agentic.rollout.settings import TrialServerSettings

pytestmark = pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning")

FIX = "echo '1 + 2' > calc.txt"


@pytest.fixture
async def control():
    """Clients, closed at the end."""
    made = []

    def make(url, **changes):
        made.append(TrialServerControl(TrialServerSettings(url=url, **changes), KEY))
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture
async def answering():
    """URLs of servers that are not ours: they take every order, and give what they are told for the rest."""
    runners = []

    async def start(events):
        app = web.Application()

        async def submit(request):
            return web.json_response({}, status=201)

        app.router.add_put("/v1/trials/{trial}", submit)
        app.router.add_delete("/v1/trials/{trial}", submit)
        app.router.add_get("/v1/trials/{trial}/events", events)
        runners.append(web.AppRunner(app))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runners[-1].addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


async def test_a_line_that_is_too_long_loses_the_trial_and_raises_nothing(answering, control, trial_for):
    async def events(request):
        return web.Response(body=b"x" * (5 << 20) + b"\n")

    url = await answering(events)
    lost = await control(url, unreachable_seconds=0.5).run(trial_for())
    assert (lost.facts.rewards, lost.facts.exception) == (None, "TrialServerUnavailable")


async def test_names_that_an_agent_chose_are_bounded_in_what_goes_with_a_result(tmp_path, trial_for, control):
    """Hundreds of files whose names are long and six times as long in JSON."""
    name = "\x01" * 120
    many = f"import os; [open(f'{{n:03}}-{name}', 'w').close() for n in range(300)]"
    (tmp_path / "make.py").write_text(many.replace("\x01", "\\x01"))
    async with serving(tmp_path / "server") as url:
        result = await control(url).run(trial_for(f"python3 {tmp_path}/make.py", FIX))
    assert result.facts.rewards == {"reward": 1.0}
    assert len(result.grading.model_dump_json()) < 64 * 1024
    assert result.grading.changed[-1].startswith("and ")
    report = tmp_path / "trials" / "trial-1" / "verifier" / "grading.json"
    assert len(GradingReport.model_validate_json(report.read_bytes()).changed) > len(result.grading.changed)


async def test_a_folder_that_is_there_already_costs_a_line_in_the_log_and_not_the_result(
    tmp_path, trial_for, control, caplog
):
    (tmp_path / "trials" / "trial-1").mkdir(parents=True)
    async with serving(tmp_path / "server") as url:
        with caplog.at_level(logging.WARNING, "agentic.rollout.server.client"):
            result = await control(url).run(trial_for(FIX))
    assert result.facts.rewards == {"reward": 1.0}
    assert "trial trial-1 leaves no folder here" in caplog.text
    assert "is there already" in caplog.text


async def test_a_place_for_folders_that_takes_nothing_costs_neither_result_nor_step(
    tmp_path, trial_for, control, caplog
):
    (tmp_path / "trials").write_text("no folder")
    async with serving(tmp_path / "server") as url:
        result = await control(url).run(trial_for(FIX))
    assert result.facts.rewards == {"reward": 1.0}
    assert "leaves no folder here" in caplog.text


async def test_a_disk_that_is_full_loses_the_trial_whose_task_cannot_be_packed(
    tmp_path, trial_for, control, monkeypatch
):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    async with serving(tmp_path / "server") as url:
        monkeypatch.setattr(tempfile, "TemporaryFile", full)
        lost = await control(url).run(trial_for(FIX))
    assert (lost.facts.rewards, lost.facts.exception) == (None, "OSError")
    assert "No space left" in lost.facts.message


async def test_a_task_that_cannot_be_read_loses_its_trial(tmp_path, trial_for, control, task_dir):
    os.mkfifo(task_dir / "pipe")
    async with serving(tmp_path / "server") as url:
        lost = await control(url).run(trial_for(FIX))
    assert (lost.facts.rewards, lost.facts.exception) == (None, "TaskFolderError")
