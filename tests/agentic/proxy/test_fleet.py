"""Several proxy processes behind one port: real processes, real kills."""

import asyncio
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import fleet_parts
import pytest
from fake_vllm import FakeVllm
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from proxy_rig import a_spec, ids_of, text_of, user
from yarl import URL

from agentic.proxy import ControlClient, Engine, ProxyError, ProxySettings, Sampling, SessionHandle, make_renderer
from agentic.proxy.errors import ControlError
from agentic.proxy.fleet import ProxyFleet
from agentic.proxy.fleet.ownership import owner_of, redistribute, slot_directory

RETRIED = (502, 503)
pytestmark = pytest.mark.timeout(180)
"""Each test starts up to seven Python processes, which takes a while on a busy machine."""


@asynccontextmanager
async def a_fleet(
    folder: Path, processes: int = 3, make_engine: Callable[[], Engine] = fleet_parts.make_engine, **settings: Any
) -> AsyncIterator[ProxyFleet]:
    """Started, and stopped at the end."""
    make = partial(make_renderer, folder)
    async with ProxyFleet(ProxySettings(**settings), make_engine, make, processes) as fleet:
        yield fleet


class Agent:
    """Asks turn after turn, as an SDK would: what fails on the way is asked again and says so."""

    def __init__(self, handle: SessionHandle) -> None:
        self.handle = handle
        self.acknowledged: list[str] = []
        self.retries = 0
        self._messages = [user("hi")]

    async def talk(self, turns: int) -> None:
        """Whole turns, each on a connection of its own."""
        for _ in range(turns):
            message = await self._ask()
            self.acknowledged.append(message["content"])
            self._messages += [{"role": "assistant", "content": message["content"]}, user("more")]

    async def _ask(self) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.handle.api_key}"}
        for attempt in range(100):
            retry = {"x-stainless-retry-count": str(attempt)} if attempt else {}
            try:
                async with aiohttp.ClientSession() as http:
                    url, body = f"{self.handle.base_url}/chat/completions", {"messages": self._messages}
                    async with http.post(url, json=body, headers=headers | retry) as response:
                        if response.status == 200:
                            answer = await response.json()
                            return dict(answer["choices"][0]["message"])
                        assert response.status in RETRIED, await response.text()
            except aiohttp.ClientError:
                pass
            self.retries += 1
            await asyncio.sleep(0.05)
        raise AssertionError(f"{self.handle.session_id} got no answer")


async def open_agents(control: ControlClient, count: int) -> list[Agent]:
    return [Agent(await control.open(a_spec(f"rollout-{number}"))) for number in range(count)]


def by_owner(agents: list[Agent], slots: int) -> dict[int, list[Agent]]:
    owners: dict[int, list[Agent]] = {}
    for agent in agents:
        owners.setdefault(owner_of(agent.handle.session_id, slots), []).append(agent)
    return owners


async def captured(control: ControlClient, agent: Agent) -> str:
    """All text that trains, of a complete session."""
    sealed = await control.seal(agent.handle.session_id)
    assert sealed.complete, sealed.incomplete_reason
    trained = [
        token
        for trajectory in sealed.trajectories
        for token, mask in zip(trajectory.response_ids, trajectory.response_mask, strict=True)
        if mask
    ]
    return text_of(trained)


async def status_with(mine: SessionHandle, other: SessionHandle) -> int:
    """What another session answers to my key."""
    async with aiohttp.ClientSession() as http:
        headers, body = {"Authorization": f"Bearer {mine.api_key}"}, {"messages": [user("hi")]}
        async with http.post(f"{other.base_url}/chat/completions", json=body, headers=headers) as response:
            return response.status


async def until_alive(pid: int, alive: bool) -> None:
    async with asyncio.timeout(20):
        while Path(f"/proc/{pid}").exists() is not alive:
            await asyncio.sleep(0.02)


async def test_a_kill_under_load_loses_no_acknowledged_call_of_any_session(tiny_folder: Path, tmp_path: Path) -> None:
    async with (
        a_fleet(tiny_folder, journal_directory=tmp_path / "journal") as fleet,
        ControlClient(fleet.control_url, fleet.control_key) as control,
    ):
        agents = await open_agents(control, 60)
        victim = fleet.pids[1]
        talks = asyncio.gather(*(agent.talk(4) for agent in agents))
        while sum(len(agent.acknowledged) for agent in agents) < 60:
            await asyncio.sleep(0.01)
        os.kill(victim, signal.SIGKILL)
        await talks
        assert fleet.pids[1] != victim
        for agent in agents:
            trained = await captured(control, agent)
            assert trained.count("answer") == len(set(agent.acknowledged)) == 4
            assert all(trained.count(f"{text}<|im_end|>") == 1 for text in agent.acknowledged)
    owners = by_owner(agents, 3)
    assert set(owners) == {0, 1, 2}
    assert any(agent.retries for agent in owners[1])


async def test_calls_that_land_on_any_worker_reach_their_session_and_no_other_s(tiny_folder: Path) -> None:
    async with a_fleet(tiny_folder) as fleet, ControlClient(fleet.control_url, fleet.control_key) as control:
        agents = await open_agents(control, 12)
        await asyncio.gather(*(agent.talk(2) for agent in agents))
        assert all(agent.handle.base_url.startswith(fleet.agent_url) for agent in agents)
        assert all(agent.retries == 0 for agent in agents)
        assert {await status_with(agents[0].handle, other.handle) for other in agents[1:]} == {401}
        for agent in agents:
            assert await captured(control, agent) == "".join(f"{text}<|im_end|>" for text in agent.acknowledged)


async def test_sessions_with_an_own_port_are_told_their_owner_s_and_reached_at_every_port(
    tiny_folder: Path, tmp_path: Path
) -> None:
    settings = {"own_port": 0, "journal_directory": tmp_path}
    async with (
        a_fleet(tiny_folder, **settings) as fleet,
        ControlClient(fleet.control_url, fleet.control_key) as control,
    ):
        agents = await open_agents(control, 12)
        owners = by_owner(agents, 3)
        told = {slot: {URL(agent.handle.base_url).port for agent in owned} for slot, owned in owners.items()}
        assert all(len(ports) == 1 for ports in told.values())
        assert len(set.union(*told.values()) | {URL(fleet.agent_url).port}) == len(owners) + 1
        await asyncio.gather(*(agent.talk(2) for agent in agents))
        first, *others = (agent for owned in owners.values() for agent in owned[:1])
        for port in (URL(fleet.agent_url).port, URL(others[0].handle.base_url).port):
            elsewhere = str(URL(first.handle.base_url).with_port(port))
            moved = Agent(first.handle.model_copy(update={"base_url": elsewhere}))
            await moved.talk(1)
        os.kill(fleet.pids[owner_of(first.handle.session_id, 3)], signal.SIGKILL)
        await asyncio.gather(*(agent.talk(2) for agent in agents))
        for agent in (first, *others):
            assert await captured(control, agent)


async def test_a_stream_comes_through_another_worker_piece_by_piece_and_a_hang_up_reaches_the_owner(
    tiny_folder: Path,
) -> None:
    async with (
        a_fleet(tiny_folder, 2, fleet_parts.make_slow_engine) as fleet,
        ControlClient(fleet.control_url, fleet.control_key) as control,
    ):
        agents = await open_agents(control, 6)
        for agent in agents:
            async with aiohttp.ClientSession() as http:
                headers = {"Authorization": f"Bearer {agent.handle.api_key}"}
                url, body = f"{agent.handle.base_url}/chat/completions", {"messages": [user("hi")], "stream": True}
                async with http.post(url, json=body, headers=headers) as response:
                    assert response.content_type == "text/event-stream"
                    assert b"[DONE]" not in await response.content.readany()
        for agent in agents:
            sealed = await control.seal(agent.handle.session_id)
            assert (sealed.complete, sealed.undelivered_tokens > 0) == (True, True)
    assert set(by_owner(agents, 2)) == {0, 1}


async def test_the_list_the_metrics_and_a_pause_are_of_all_workers(tiny_folder: Path) -> None:
    async with a_fleet(tiny_folder, 2) as fleet, ControlClient(fleet.control_url, fleet.control_key) as control:
        agents = await open_agents(control, 12)
        await asyncio.gather(*(agent.talk(1) for agent in agents))
        assert {info.session_id for info in await control.list()} == {agent.handle.session_id for agent in agents}
        metrics = await control.metrics()
        assert (metrics.sessions_open, metrics.calls_answered) == (12, 12)
        by_slot = await answered_by_slot(fleet)
        assert by_slot == {str(slot): len(owned) for slot, owned in by_owner(agents, 2).items()}
        assert (await control.pause()).paused
        assert (await control.metrics()).paused == 2
        talks = asyncio.gather(*(agent.talk(1) for agent in agents))
        await asyncio.sleep(0.2)
        assert all(len(agent.acknowledged) == 1 for agent in agents)
        assert not (await control.resume(version=4)).paused
        await talks
        sealed = [await control.seal(agent.handle.session_id) for agent in agents]
    assert sum(one.complete for one in sealed) == 12


async def answered_by_slot(fleet: ProxyFleet) -> dict[str, float]:
    """What Prometheus would read of the answered calls."""
    headers = {"Authorization": f"Bearer {fleet.control_key}"}
    async with aiohttp.ClientSession() as http, http.get(f"{fleet.control_url}/metrics", headers=headers) as response:
        families = text_string_to_metric_families(await response.text())
    (family,) = [one for one in families if one.name == "agentic_proxy_calls_answered"]
    assert family.type == "counter"
    return {sample.labels["slot"]: sample.value for sample in family.samples}


async def test_a_pause_that_not_all_workers_heard_says_so_and_holds_for_the_one_that_comes_back(
    tiny_folder: Path,
) -> None:
    async with (
        a_fleet(tiny_folder, 2, owner_wait_seconds=0.0) as fleet,
        ControlClient(fleet.control_url, fleet.control_key) as control,
    ):
        os.kill(fleet.pids[1], signal.SIGKILL)
        with pytest.raises(ControlError, match=r"slot 1: .*being restarted.*; done by slot 0: ask again") as told:
            await control.pause()
        assert told.value.status == 503
        async with asyncio.timeout(60):
            while await paused_workers(control) is None:
                await asyncio.sleep(0.1)
        assert await paused_workers(control) == 2


async def paused_workers(control: ControlClient) -> int | None:
    """How many are; None while one does not answer."""
    try:
        return (await control.metrics()).paused
    except ControlError:
        return None


async def test_a_resume_that_some_workers_refuse_says_which_have_the_new_version(tiny_folder: Path) -> None:
    async with (
        a_fleet(tiny_folder, 2, fleet_parts.make_slow_engine) as fleet,
        ControlClient(fleet.control_url, fleet.control_key) as control,
    ):
        owners = by_owner(await open_agents(control, 8), 2)
        talk = asyncio.create_task(owners[1][0].talk(1))
        while (await control.metrics()).calls_running == 0:
            await asyncio.sleep(0.02)
        with pytest.raises(
            ControlError, match=r"slot 1: .*pause before the weights change; done by slot 0: ask"
        ) as told:
            await control.resume(version=3)
        assert told.value.status == 400
        await control.pause()
        await control.resume(version=3)
        with pytest.raises(ControlError, match=r"resume: version: 2 is lower than 3: versions never decrease$"):
            await control.resume(version=2)
        await talk


async def test_keys_and_sessions_outlive_the_whole_fleet_and_a_change_of_its_size(
    tiny_folder: Path, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    async with a_fleet(tiny_folder, 1, journal_directory=journal) as fleet:
        port = int(fleet.agent_url.rpartition(":")[2])
        async with ControlClient(fleet.control_url, fleet.control_key) as control:
            agents = await open_agents(control, 6)
            await asyncio.gather(*(agent.talk(1) for agent in agents))
    async with (
        a_fleet(tiny_folder, 2, journal_directory=journal, port=port) as fleet,
        ControlClient(fleet.control_url, fleet.control_key) as control,
    ):
        await asyncio.gather(*(agent.talk(1) for agent in agents))
        for agent in agents:
            assert await captured(control, agent) == "".join(f"{text}<|im_end|>" for text in agent.acknowledged)


async def test_while_a_worker_is_down_its_sessions_calls_get_503_with_retry_after(tiny_folder: Path) -> None:
    async with (
        a_fleet(tiny_folder, 2, owner_wait_seconds=0.0) as fleet,
        ControlClient(fleet.control_url, fleet.control_key) as control,
    ):
        owners = by_owner(await open_agents(control, 8), 2)
        os.kill(fleet.pids[1], signal.SIGSTOP)  # The other's sessions do not depend on it ...
        await asyncio.gather(*(agent.talk(1) for agent in owners[0]))
        os.kill(fleet.pids[1], signal.SIGKILL)  # ... and then it is gone.
        async with aiohttp.ClientSession() as http:
            handle = owners[1][0].handle
            headers = {"Authorization": f"Bearer {handle.api_key}"}
            url, body = f"{handle.base_url}/chat/completions", {"messages": [user("hi")]}
            async with http.post(url, json=body, headers=headers) as response:
                answer = await response.json()
                assert (response.status, response.headers["Retry-After"]) == (503, "1")
                assert answer["error"]["code"] == "worker_unavailable"


async def test_stopping_ends_every_worker_and_closes_the_ports(tiny_folder: Path) -> None:
    async with a_fleet(tiny_folder, 2) as fleet:
        pids, url = fleet.pids, fleet.agent_url
    for pid in pids:
        await until_alive(pid, False)
    async with aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get(f"{url}/health")


async def test_a_worker_that_cannot_be_made_fails_the_start_with_its_reason(tiny_folder: Path) -> None:
    fleet = ProxyFleet(ProxySettings(), fleet_parts.make_broken_engine, partial(make_renderer, tiny_folder), 2)
    with pytest.raises(ProxyError, match="this engine has no server"):
        await fleet.start()
    assert fleet.pids == []


def test_ports_of_their_own_that_there_are_not_are_refused_at_once(tiny_folder: Path) -> None:
    parts = (fleet_parts.make_broken_engine, partial(make_renderer, tiny_folder))
    ProxyFleet(ProxySettings(own_port=65533), *parts, 3)
    with pytest.raises(ProxyError, match="own_port is 65533, too high for 4 processes: use 65532 at most"):
        ProxyFleet(ProxySettings(own_port=65533), *parts, 4)


async def test_what_a_worker_s_libraries_print_is_neither_its_report_nor_in_its_way(tiny_folder: Path) -> None:
    async with (
        a_fleet(tiny_folder, 1, fleet_parts.make_talkative_engine) as fleet,
        ControlClient(fleet.control_url, fleet.control_key) as control,
    ):
        (agent,) = await open_agents(control, 1)
        async with asyncio.timeout(60):
            await agent.talk(3)
    assert agent.retries == 0


async def test_a_worker_that_cannot_be_started_for_a_while_comes_back_when_it_can(
    tiny_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_fleet(tiny_folder, 2) as fleet, ControlClient(fleet.control_url, fleet.control_key) as control:
        agents = by_owner(await open_agents(control, 8), 2)[1]
        victim = fleet.pids[1]
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            os.kill(victim, signal.SIGKILL)
            async with asyncio.timeout(30):
                while "worker 1 cannot be started" not in caplog.text:
                    await asyncio.sleep(0.02)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        async with asyncio.timeout(60):
            while (await control_status(fleet, agents[0].handle)) == 503:
                await asyncio.sleep(0.1)
        assert fleet.pids[1] != victim


async def control_status(fleet: ProxyFleet, handle: SessionHandle) -> int:
    """What the owner of a session answers about it, 503 while there is none."""
    headers = {"Authorization": f"Bearer {fleet.control_key}"}
    url = f"{fleet.control_url}/sessions/{handle.session_id}"
    async with aiohttp.ClientSession() as http, http.get(url, headers=headers) as response:
        return response.status


async def head_answered(fleet: ProxyFleet, handle: SessionHandle, key: str) -> int:
    """The status that a request gets whose body never comes."""
    address = URL(fleet.agent_url)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    path, length = f"/s/{handle.session_id}/v1/chat/completions", 50 * 2**20
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nx-api-key: {key}\r\nContent-Length: {length}\r\n\r\n".encode())
    try:
        async with asyncio.timeout(20):
            return int((await reader.readline()).split()[1])
    finally:
        writer.close()


async def test_whoever_takes_a_call_refuses_a_wrong_key_before_its_body_and_a_body_that_does_not_come(
    tiny_folder: Path,
) -> None:
    async with (
        a_fleet(tiny_folder, 2, read_timeout_seconds=0.5) as fleet,
        ControlClient(fleet.control_url, fleet.control_key) as control,
    ):
        agents = await open_agents(control, 8)
        for agent, other in pairwise(agents):
            good = agent.handle.api_key
            for key in ("", "foreign", good[:-1] + ("0" if good[-1] != "0" else "1"), other.handle.api_key):
                assert await head_answered(fleet, agent.handle, key) == 401
        kept = [await head_answered(fleet, agent.handle, agent.handle.api_key) for agent in agents]
    assert kept == [408] * 8
    assert set(by_owner(agents, 2)) == {0, 1}


def is_hung_up(client: socket.socket) -> bool:
    poll = select.poll()
    poll.register(client, select.POLLHUP)
    return bool(poll.poll(0))


@pytest.mark.parametrize("is_streamed", [True, False], ids=["streamed", "whole"])
async def test_whoever_takes_a_call_closes_on_a_client_that_takes_nothing(
    tiny_folder: Path, tmp_path: Path, is_streamed: bool
) -> None:
    tokens, path = fleet_parts.LONG_TOKENS + 1, tmp_path / "proxy.sock"
    spec = a_spec(sampling=Sampling(temperature=1, max_tokens=tokens), max_response_tokens=tokens)
    async with (
        a_fleet(tiny_folder, 2, fleet_parts.make_long_engine, unix_socket=path, write_timeout_seconds=0.5) as fleet,
        ControlClient(fleet.control_url, fleet.control_key) as control,
    ):
        clients = []
        for number in range(8):
            handle = await control.open(spec.model_copy(update={"session_id": f"rollout-{number}"}))
            body = json.dumps({"messages": [user("hi")], "stream": is_streamed, "logprobs": True})
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {handle.api_key}\r\n"
            clients.append(socket.socket(socket.AF_UNIX))
            clients[-1].connect(str(path))
            clients[-1].sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        try:
            async with asyncio.timeout(30):
                while not all(map(is_hung_up, clients)):
                    await asyncio.sleep(0.05)
        finally:
            for client in clients:
                client.close()


async def test_what_cannot_be_sent_to_another_process_is_refused(tiny_folder: Path) -> None:
    fleet = ProxyFleet(ProxySettings(), lambda: fleet_parts.make_engine(), partial(make_renderer, tiny_folder), 2)
    with pytest.raises(ProxyError, match="functions of a module"):
        await fleet.start()


@given(st.text(min_size=1), st.integers(1, 16))
def test_one_more_slot_moves_a_session_to_the_new_slot_or_not_at_all(session_id: str, slots: int) -> None:
    assert owner_of(session_id, slots + 1) in (owner_of(session_id, slots), slots)


def test_slots_share_sessions_evenly() -> None:
    counts = [0] * 4
    for number in range(4000):
        counts[owner_of(f"rollout-{number}", 4)] += 1
    assert all(900 < count < 1100 for count in counts)


def test_journals_follow_their_sessions_to_another_number_of_slots(tmp_path: Path) -> None:
    names = [f"rollout-{number}" for number in range(20)]
    for name in names:
        (tmp_path / f"{name}.journal").write_bytes(name.encode())
    for slots in (1, 3, 2):
        redistribute(tmp_path, slots)
        for name in names:
            home = slot_directory(tmp_path, owner_of(name, slots))
            assert (home / f"{name}.journal").read_bytes() == name.encode()
        assert len(list(tmp_path.rglob("*.journal"))) == len(names)
        assert redistribute(tmp_path, slots) == 0


@asynccontextmanager
async def the_command(
    folder: Path, engine_url: str, *more: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, Any]]:
    """`python -m agentic.proxy --processes 2` and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentic.proxy", "--engine", engine_url, "--tokenizer", str(folder)),
        *("--processes", "2"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "AGENTIC_PROXY_CONTROL_KEY": ""},
    )
    assert process.stdout is not None
    try:
        yield process, json.loads(await process.stdout.readline())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
async def test_the_command_s_workers_serve_and_end_with_it(tiny_folder: Path, number: signal.Signals) -> None:
    async with (
        FakeVllm(list(ids_of("hello<|im_end|>"))).serving() as vllm,
        the_command(tiny_folder, vllm.url) as (process, where),
    ):
        async with ControlClient(where["control_url"], where["control_key"]) as control:
            agents = await open_agents(control, 4)
            await asyncio.gather(*(agent.talk(1) for agent in agents))
        workers = children_of(process.pid)
        process.send_signal(number)
        assert await process.wait() == (0 if number == signal.SIGTERM else -number)
        for worker in workers:
            await until_alive(worker, False)
    assert [agent.acknowledged for agent in agents] == [["hello"]] * 4
    assert len(workers) == 2
