"""What a worker of a fleet knows when it is started again: the weights' version, and whether sampling is paused."""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import aiohttp
import fleet_parts
import pytest
from proxy_rig import a_spec, user

from agentic.proxy import ControlClient, ProxySettings, SessionHandle, make_renderer
from agentic.proxy.errors import ControlError
from agentic.proxy.fleet import ProxyFleet
from agentic.proxy.fleet.ownership import owner_of

pytestmark = pytest.mark.timeout(180)
KILLED = next(f"s{n}" for n in range(99) if owner_of(f"s{n}", 2) == 0)
OTHER = next(f"s{n}" for n in range(99) if owner_of(f"s{n}", 2) == 1)


def a_fleet(folder: Path, journal: Path) -> ProxyFleet:
    settings = ProxySettings(journal_directory=journal, owner_wait_seconds=0)
    return ProxyFleet(settings, fleet_parts.make_engine, partial(make_renderer, folder), 2)


async def ask(handle: SessionHandle) -> int:
    headers, body = {"Authorization": f"Bearer {handle.api_key}"}, {"messages": [user("hi")]}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{handle.base_url}/chat/completions", json=body) as response,
    ):
        return response.status


async def until_up(control: ControlClient) -> None:
    """Until both workers answer."""
    async with asyncio.timeout(90):
        while True:
            try:
                await control.metrics()
            except ControlError:
                await asyncio.sleep(0.05)
            else:
                return


async def refused_pause(control: ControlClient) -> int:
    """The status of a pause that a worker answers; one that reaches the dying one has none, and is asked again."""
    while True:
        with pytest.raises(ControlError) as refused:
            await control.pause()
        if refused.value.status:
            return refused.value.status


async def versions_of(control: ControlClient, name: str) -> set[int]:
    sealed = await control.seal(name)
    return {version for t in sealed.trajectories for version in t.versions if version >= 0}


async def test_a_worker_that_is_started_again_samples_with_the_fleet_s_version(
    tiny_folder: Path, tmp_path: Path
) -> None:
    async with (
        a_fleet(tiny_folder, tmp_path) as fleet,
        ControlClient(fleet.control_url, fleet.control_key) as control,
    ):
        handles = [await control.open(a_spec(name)) for name in (KILLED, OTHER)]
        await control.pause()
        await control.resume(7)
        os.kill(fleet.pids[0], signal.SIGKILL)
        await until_up(control)
        assert [await ask(handle) for handle in handles] == [200, 200]
        assert [await versions_of(control, name) for name in (KILLED, OTHER)] == [{7}, {7}]
        with pytest.raises(ControlError, match="never decrease"):
            await control.resume(6)


@pytest.mark.parametrize("when", ["after the pause", "before the pause"])
async def test_a_worker_that_is_started_again_while_sampling_is_paused_waits_like_the_other(
    tiny_folder: Path, tmp_path: Path, when: str
) -> None:
    async with (
        a_fleet(tiny_folder, tmp_path) as fleet,
        ControlClient(fleet.control_url, fleet.control_key) as control,
    ):
        handle = await control.open(a_spec(KILLED))
        if when == "after the pause":
            await control.pause()
            os.kill(fleet.pids[0], signal.SIGKILL)
        else:
            os.kill(fleet.pids[0], signal.SIGKILL)
            assert await refused_pause(control) == 503  # It reached the other worker only.
        await until_up(control)
        assert (await control.metrics()).paused == 2
        asking = asyncio.create_task(ask(handle))
        await asyncio.sleep(0.5)
        assert not asking.done()
        await control.resume(3)
        assert await asking == 200
        assert await versions_of(control, KILLED) == {3}
