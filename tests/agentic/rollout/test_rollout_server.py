"""The trial server beyond what every control promises: keys, refusals, a full queue, readers that leave, the end."""

import asyncio
import io
import json
import tarfile

import aiohttp
import process_environment
import pytest
from hostile_archives import nested_past_the_longest_path
from trial_server_rig import KEY, PROCESS_ENVIRONMENT, filled, serving

from agentic.rollout.errors import RolloutConfigError, TrialServerRefusal
from agentic.rollout.server.client import TrialServerControl
from agentic.rollout.server.keys import read_keys
from agentic.rollout.server.settings import ServerSettings
from agentic.rollout.server.tasks import digest_of
from agentic.rollout.settings import TrialServerSettings

pytestmark = pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning")

FIX = "echo '1 + 2' > calc.txt"
BEARER = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture
async def control():
    """Clients, closed at the end."""
    made = []

    def make(url, key=KEY, **changes):
        made.append(TrialServerControl(TrialServerSettings(url=url, **changes), key))
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture
async def http():
    async with aiohttp.ClientSession(headers=BEARER) as session:
        yield session


def order_of(request, task, nonce="nonce-of-the-test"):
    values = request.model_dump(mode="json", exclude={"task_dir", "trials_dir"})
    return values | {"task": task, "nonce": nonce}


def packed(**files):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, member in files.items():
            archive.addfile(*member(name) if callable(member) else (_file(name, len(member)), io.BytesIO(member)))
    return stream.getvalue()


def _file(name, size):
    member = tarfile.TarInfo(name)
    member.size = size
    return member


@pytest.mark.parametrize("key", [None, "another-key-0123456789", KEY[:-1]])
async def test_without_one_of_its_keys_the_server_tells_nothing_but_its_health(tmp_path, key, trial_for, control):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with serving(tmp_path / "server") as url, aiohttp.ClientSession(headers=headers) as http:
        for path in ("/v1/capacity", "/v1/trials/trial-1", "/openapi.json", "/v1/trials/trial-1/events"):
            assert (await http.get(url + path)).status == 401, path
        assert (await http.get(f"{url}/health")).status == 200
        with pytest.raises(TrialServerRefusal, match="no key of this server"):
            await control(url, key).run(trial_for())


async def test_a_trial_belongs_to_the_key_that_ordered_it(tmp_path, trial_for, control, http, task_dir):
    other = "another-key-of-the-tests-0123456789"
    place = "/v1/trials/trial-1"

    async def tries(url):
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {other}"}) as stranger:
            for method, path in (
                ("GET", place),
                ("DELETE", place),
                ("GET", f"{place}/events"),
                ("GET", f"{place}/folder"),
            ):
                assert (await stranger.request(method, url + path)).status == 404, (method, path)
            order = order_of(trial_for("sleep 1", FIX), digest_of(task_dir))
            assert (await stranger.put(url + place, json=order)).status == 409, "not even with the same order"

    async with serving(tmp_path / "server", keys=(KEY, other)) as url:
        await upload(http, url, task_dir)
        order = order_of(trial_for("sleep 1", FIX), digest_of(task_dir))
        assert (await http.put(url + place, json=order)).status == 201
        await tries(url)
        assert (await read_events(http, url + place))[-1]["result"]["facts"]["rewards"] == {"reward": 1.0}
        await tries(url)
    async with serving(tmp_path / "server", keys=(KEY, other)) as url:
        await tries(url)
        assert (await http.get(url + place)).status == 200, "also after a restart"


async def test_the_openapi_document_describes_every_route_and_refusal(tmp_path, http):
    async with serving(tmp_path / "server") as url:
        document = await (await http.get(f"{url}/openapi.json")).json()
    assert {"/v1/trials/{trial_id}", "/v1/trials/{trial_id}/events", "/v1/tasks/{task}", "/v1/capacity", "/health"} <= (
        document["paths"].keys()
    )
    assert {"TrialOrder", "TrialStatus", "Refusal", "Capacity"} <= document["components"]["schemas"].keys()


async def test_a_full_server_says_when_to_come_again_and_every_client_gets_its_turn(
    tmp_path, trial_for, control, http, task_dir, gate
):
    async with serving(tmp_path / "server", concurrency=1, queue=1, retry_after_seconds=1) as url:
        trials = control(url)
        running = [asyncio.create_task(trials.run(trial_for(gate.command, FIX, trial_id=f"t{n}"))) for n in range(4)]
        await filled(url)
        refused = await http.put(
            f"{url}/v1/trials/late", json=order_of(trial_for(trial_id="late"), digest_of(task_dir))
        )
        assert (refused.status, refused.headers["Retry-After"], (await refused.json())["code"]) == (429, "1", "busy")
        gate.open()
        assert [(await each).facts.rewards for each in running] == [{"reward": 1.0}] * 4


async def test_a_repeated_order_is_the_same_trial_and_another_one_under_its_id_is_refused(
    tmp_path, trial_for, http, task_dir
):
    async with serving(tmp_path / "server") as url:
        task = digest_of(task_dir)
        place = f"{url}/v1/trials/trial-1"
        ran = tmp_path / "ran"
        order = order_of(trial_for(f"echo x >> {ran}", "sleep 0.5"), task)
        assert (await http.put(place, json=order)).status == 424
        await upload(http, url, task_dir)
        assert [(await http.put(place, json=order)).status for _ in range(3)] == [201, 200, 200]
        assert (await http.put(place, json=order | {"nonce": "another-wish"})).status == 409
        events = await read_events(http, place)
        assert [(event["number"], event["state"]) for event in events] == [
            (1, "accepted"),
            (2, "started"),
            (3, "ended"),
        ]
        assert (await (await http.put(place, json=order)).json())["result"] == events[-1]["result"], "from the record"
        assert ran.read_text() == "x\n"
        assert [event["number"] for event in await read_events(http, place, after=2)] == [3]


async def upload(http, url, folder):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        archive.add(folder, ".")
    answer = await http.put(f"{url}/v1/tasks/{digest_of(folder)}", data=stream.getvalue())
    assert answer.status == 201, await answer.text()


async def read_events(http, place, after=0):
    async with http.get(f"{place}/events", params={"after": after}) as response:
        lines = [json.loads(line) async for line in response.content]
    return [line for line in lines if line["number"]]


async def test_readers_that_break_off_read_on_where_they_were(tmp_path, trial_for, http, task_dir):
    async with serving(tmp_path / "server", stream_seconds=0.2, ping_seconds=0.1) as url:
        await upload(http, url, task_dir)
        place = f"{url}/v1/trials/trial-1"
        await http.put(place, json=order_of(trial_for("sleep 1"), digest_of(task_dir)))
        seen = []
        while not seen or seen[-1]["state"] != "ended":
            seen += await read_events(http, place, after=len(seen))
        assert [event["number"] for event in seen] == [1, 2, 3]


async def test_streams_that_end_before_their_trial_do_not_matter_to_the_client(tmp_path, trial_for, control):
    async with serving(tmp_path / "server", stream_seconds=0.2, ping_seconds=0.1) as url:
        assert (await control(url).run(trial_for("sleep 1", FIX))).facts.rewards == {"reward": 1.0}


async def test_a_trial_that_nobody_asks_for_any_more_is_ended_with_its_sandbox(tmp_path, trial_for, http, task_dir):
    async with serving(tmp_path / "server", lease_seconds=1.5, ping_seconds=0.2, concurrency=1) as url:
        await upload(http, url, task_dir)
        for name in ("runs", "waits"):
            order = order_of(trial_for("sleep 30", trial_id=name), digest_of(task_dir))
            await http.put(f"{url}/v1/trials/{name}", json=order)
        # Somebody asks for the first until the other is given up: else that one would get its place.
        reading = asyncio.create_task(read_events(http, f"{url}/v1/trials/runs"))
        await filled(url, running=1, queued=0)
        reading.cancel()
        await filled(url, running=0, queued=0)
        assert not process_environment.ProcessEnvironment.live
        for name, moves in (("runs", 3), ("waits", 2)):
            status = await (await http.get(f"{url}/v1/trials/{name}")).json()
            assert (status["result"]["facts"]["exception"], status["events"]) == ("ClientGone", moves)


async def test_a_trial_whose_events_are_read_outlives_its_lease(tmp_path, trial_for, control):
    async with serving(tmp_path / "server", lease_seconds=1.5, ping_seconds=0.2) as url:
        assert (await control(url).run(trial_for("sleep 4", FIX))).facts.rewards == {"reward": 1.0}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"import_path": "os:system"}, "environment os:system is not allowed"),
        ({"import_path": PROCESS_ENVIRONMENT, "kwargs": {"sockets": {"/s": "/t"}}}, "sockets"),
        ({"import_path": PROCESS_ENVIRONMENT, "kwargs": {"folders": {"/var": "/mnt"}}}, "'folders' is not an order's"),
        ({"import_path": PROCESS_ENVIRONMENT, "kwargs": {"persistent_env": {"A": "${B}"}}}, "persistent_env"),
    ],
)
async def test_code_sockets_and_arguments_that_the_server_does_not_offer_are_refused_for_good(
    tmp_path, trial_for, control, spec, reason
):
    request = trial_for()
    environment = type(request.environment)(**spec)
    async with serving(tmp_path / "server") as url:
        with pytest.raises(TrialServerRefusal, match=reason):
            await control(url).run(request.model_copy(update={"environment": environment}))


@pytest.mark.parametrize("table", ["verifier.env", "environment.env", "solution.env"])
async def test_a_task_gets_no_variable_of_the_server_but_those_that_are_named(
    tmp_path, trial_for, control, write_task, monkeypatch, table
):
    monkeypatch.setenv("SERVER_SECRET", "hidden")
    monkeypatch.setenv("SERVER_GIVES", "shown")
    curious = {}
    for name in ("SERVER_SECRET", "SERVER_GIVES"):
        curious[name] = write_task(tmp_path / name)
        text = (curious[name] / "task.toml").read_text()
        (curious[name] / "task.toml").write_text(f'{text}\n[{table}]\nX = "${{{name}:-none}}"\n')
    async with serving(tmp_path / "server", task_variables=("SERVER_GIVES",)) as url:
        with pytest.raises(TrialServerRefusal, match="'SERVER_SECRET'"):
            await control(url).run(trial_for(task_dir=str(curious["SERVER_SECRET"])))
        result = await control(url).run(trial_for(FIX, task_dir=str(curious["SERVER_GIVES"])))
    assert result.facts.rewards == {"reward": 1.0}


def test_folders_and_sockets_of_the_machine_cannot_be_opened_to_orders_by_name(tmp_path):
    for name in ("folders", "sockets"):
        with pytest.raises(ValueError, match=f"names '{name}'"):
            ServerSettings(state_dir=tmp_path, store_dir=tmp_path, environment_arguments=(name,))


def link_out(name):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, "/etc"
    return member, None


def device(name):
    member = tarfile.TarInfo(name)
    member.type = tarfile.CHRTYPE
    return member, None


@pytest.mark.parametrize(
    "archive",
    [
        packed(**{"../outside": b"x"}),
        packed(**{"/outside": b"x"}),
        packed(link=link_out),
        packed(device=device),
        packed(task=b"something else"),
        packed(big=b"x" * 70_000),
        packed(task=b"x")[:-12],
        b"no archive",
        b"",
        nested_past_the_longest_path("victim"),
    ],
    ids=[
        *("climbs", "absolute", "leads-out", "device", "other-content", "too-large", "cut", "no-tar", "empty"),
        "outgrows-paths",
    ],
)
async def test_an_archive_that_is_not_the_task_leaves_nothing(tmp_path, http, archive):
    victim = tmp_path / "server" / "tasks" / "victim"
    victim.mkdir(parents=True)
    async with serving(tmp_path / "server", task_limit_bytes=65_536) as url:
        answer = await http.put(f"{url}/v1/tasks/{'0' * 64}", data=archive)
        assert (answer.status, (await answer.json())["code"]) == (422, "bad_task")
        assert (await http.get(f"{url}/v1/tasks/{'0' * 64}")).status == 424
    assert list((tmp_path / "server" / "tasks").iterdir()) == [victim]
    assert not list(tmp_path.rglob("outside"))


def test_a_tasks_digest_covers_names_content_links_and_execute_bits(tmp_path, write_task):
    task = write_task(tmp_path / "task")
    seen = {digest_of(task), digest_of(write_task(tmp_path / "twin"))}
    assert len(seen) == 1
    (task / "tests" / "test.sh").chmod(0o644)
    seen.add(digest_of(task))
    (task / "instruction.md").write_text("Other.\n")
    seen.add(digest_of(task))
    (task / "instruction.md").rename(task / "moved.md")
    seen.add(digest_of(task))
    (task / "link").symlink_to("moved.md")
    seen.add(digest_of(task))
    (task / "empty").mkdir()
    assert len(seen | {digest_of(task)}) == 6


async def test_a_tasks_folder_is_sent_once_for_many_trials(tmp_path, trial_for, control):
    async with serving(tmp_path / "server", concurrency=8) as url:
        trials = control(url)
        results = await asyncio.gather(*(trials.run(trial_for(FIX, trial_id=f"t{n}")) for n in range(6)))
        assert [result.facts.rewards for result in results] == [{"reward": 1.0}] * 6
    assert len(list((tmp_path / "server" / "tasks").iterdir())) == 1


async def test_a_server_that_stops_ends_its_trials_and_says_so(tmp_path, trial_for, control):
    async with serving(tmp_path / "server", concurrency=1) as url:
        trials = control(url, unreachable_seconds=0.5)
        running = asyncio.create_task(trials.run(trial_for("sleep 30", trial_id="runs")))
        await process_environment.a_sandbox_lives()
        waiting = asyncio.create_task(trials.run(trial_for(FIX, trial_id="waits")))
        await filled(url)
    assert not process_environment.ProcessEnvironment.live
    assert (await running).facts.exception == "ServerStopping"
    assert (await waiting).facts.exception == "TrialServerUnavailable"


async def test_what_waited_when_the_server_stopped_runs_on_the_next_one(tmp_path, trial_for, control):
    async with serving(tmp_path / "server", concurrency=1) as url:
        trials, port = control(url), int(url.rpartition(":")[2])
        running = asyncio.create_task(trials.run(trial_for("sleep 30", trial_id="runs")))
        await process_environment.a_sandbox_lives()
        waiting = asyncio.create_task(trials.run(trial_for(FIX, trial_id="waits")))
        await filled(url)
    assert (await running).facts.exception == "ServerStopping"
    async with serving(tmp_path / "server", concurrency=1, port=port):
        assert (await waiting).facts.rewards == {"reward": 1.0}


async def test_a_server_that_is_not_there_is_an_infra_loss(tmp_path, trial_for, control, unused_tcp_port):
    lost = await control(f"http://127.0.0.1:{unused_tcp_port}", unreachable_seconds=0.3).run(trial_for())
    assert (lost.facts.rewards, lost.facts.exception) == (None, "TrialServerUnavailable")


async def test_results_and_folders_are_forgotten_in_time(tmp_path, trial_for, control, http):
    async with serving(tmp_path / "server") as url:
        await control(url).run(trial_for(FIX))
    assert (tmp_path / "server" / "trials" / "trial-1").is_dir()
    await asyncio.sleep(0.3)
    async with serving(tmp_path / "server", record_seconds=0.2) as url:
        answer = await http.get(f"{url}/v1/trials/trial-1")
        assert answer.status == 404
    assert not (tmp_path / "server" / "trials" / "trial-1").exists()
    assert "trial-1" not in (tmp_path / "server" / "journal.jsonl").read_text()


@pytest.mark.parametrize("text", ["", "\n  \n"])
def test_a_file_of_keys_without_a_key_lets_nobody_in(tmp_path, text):
    (tmp_path / "keys").write_text(text)
    with pytest.raises(RolloutConfigError, match="holds no key: write one into it"):
        read_keys(tmp_path / "keys", None)
