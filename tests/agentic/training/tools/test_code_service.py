"""The code sandbox over HTTP, in real sandboxes: what code gets, what it cannot do, and what clients are told."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agentic.errors import PermanentError, TransientError
from agentic.sandbox.settings import BubblewrapSandbox, PodmanSandbox
from agentic.training.tools.code_service import serve
from agentic.training.tools.settings import CodeSandboxSettings

LIMITS = CodeSandboxSettings(run_seconds=2, memory_mb=128, max_processes=16, output_limit_bytes=2048, concurrency=2)

ULIMITS = ("--ulimit=nofile=20000:20000", "--ulimit=nproc=20000:20000")
"""Podman asks for more than this process may give, where it is confined itself."""


@pytest.fixture(scope="module")
def store_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


@pytest.fixture
async def url(store_dir: Path) -> AsyncIterator[str]:
    async with serve(LIMITS, BubblewrapSandbox(), store_dir) as url:
        yield url


async def ask(url: str, code: str, **more: Any) -> dict[str, Any]:
    async with aiohttp.ClientSession() as client, client.post(url, json={"code": code, **more}) as response:
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
        return answer


async def test_the_answer_has_the_fields_of_the_guide(url: str) -> None:
    answer = await ask(url, "import sys\nprint(6 * 7)\nprint('oh', file=sys.stderr)")
    seconds = answer["run_result"].pop("execution_time")
    assert 0 < seconds < 2
    assert answer == {
        "status": "Success",
        "message": "",
        "run_result": {"status": "Finished", "stdout": "42\n", "stderr": "oh\n", "return_code": 0},
    }


async def test_an_exception_comes_back_as_its_traceback(url: str) -> None:
    answer = await ask(url, "print(sympy.sqrt(3))")
    assert (answer["status"], answer["run_result"]["return_code"]) == ("Failed", 1)
    assert answer["run_result"]["stderr"].endswith("NameError: name 'sympy' is not defined\n")


async def test_sympy_can_be_imported(store_dir: Path) -> None:
    async with serve(LIMITS.model_copy(update={"run_seconds": 40}), BubblewrapSandbox(), store_dir) as url:
        answer = await ask(url, "import sympy\nprint(sympy.sqrt(3))")
    assert answer["run_result"]["stdout"] == "sqrt(3)\n", answer


async def test_what_was_printed_before_the_time_was_over_is_kept(url: str) -> None:
    answer = await ask(url, "print('half')\nwhile True: pass", run_timeout=0.5)
    assert (answer["status"], answer["run_result"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert answer["run_result"]["stdout"] == "half\n"
    assert answer["message"] == "stopped after 0.5 s"


async def test_a_client_cannot_raise_the_time(url: str) -> None:
    started = time.monotonic()
    answer = await ask(url, "import time; time.sleep(60)", run_timeout=60)
    assert answer["run_result"]["status"] == "TimeLimitExceeded"
    assert time.monotonic() - started < 15


async def test_memory_is_bounded(url: str) -> None:
    answer = await ask(url, "x = bytearray(10**9)\nprint(len(x))")
    assert answer["status"] == "Failed"
    assert answer["run_result"]["stdout"] == ""


async def test_processes_are_bounded(url: str) -> None:
    code = "import os, time\nfor _ in range(100):\n    if os.fork() == 0: time.sleep(9)\nprint('all')"
    answer = await ask(url, code)
    assert "BlockingIOError" in answer["run_result"]["stderr"]


async def test_output_is_bounded_and_both_ends_are_kept(url: str) -> None:
    answer = await ask(url, "print('a' * 10**6)\nprint('end')")
    output = answer["run_result"]["stdout"]
    assert len(output) < 3 * LIMITS.output_limit_bytes
    assert (output[:3], output[-4:]) == ("aaa", "end\n")
    assert answer["message"] == "output beyond 2048 bytes was left out"


async def test_there_is_no_network(url: str) -> None:
    port = url.split(":")[2].split("/")[0]
    answer = await ask(url, f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)")
    assert answer["status"] == "Failed"
    assert "Error" in answer["run_result"]["stderr"]


async def test_nothing_of_one_run_is_there_in_the_next(url: str) -> None:
    await ask(url, "open('/tmp/left', 'w').write('x')")
    assert (await ask(url, "import os\nprint(os.listdir('/tmp'))"))["run_result"]["stdout"] == "[]\n"


async def test_no_more_runs_at_once_than_the_settings_say(url: str) -> None:
    code = "import time\nprint(time.time())\ntime.sleep(0.5)\nprint(time.time())"
    answers = await asyncio.gather(*(ask(url, code) for _ in range(5)))
    spans = [tuple(map(float, answer["run_result"]["stdout"].split())) for answer in answers]
    at_once = [sum(begin <= other[0] < end for other in spans) for begin, end in spans]
    assert max(at_once) <= LIMITS.concurrency


async def post(url: str, **request: Any) -> tuple[int, str]:
    async with aiohttp.ClientSession() as client, client.post(url, **request) as response:
        return response.status, (await response.json())["detail"]


async def test_code_that_is_too_long_is_refused(url: str) -> None:
    assert await post(url, json={"code": "#" * 70_000}) == (413, "the code has more than 65536 bytes")
    assert await post(url, data=b"x" * 10**6) == (413, "the request has more than 397312 bytes")


@pytest.mark.parametrize("body", ["", "[]", '{"code": 7}', '{"cod": "1"}', '{"code": "1", "run_timeout": -1}'])
async def test_a_request_of_another_form_is_refused(url: str, body: str) -> None:
    status, detail = await post(url, data=body)
    assert status == 422
    assert detail.startswith("no valid request: ")


async def test_too_many_that_wait_are_told_to_come_again(store_dir: Path) -> None:
    settings = LIMITS.model_copy(update={"concurrency": 1, "waiting": 0})
    async with serve(settings, BubblewrapSandbox(), store_dir) as url:
        running = asyncio.create_task(ask(url, "import time; time.sleep(1)"))
        await asyncio.sleep(0.3)
        status, detail = await post(url, json={"code": "1"})
        assert (status, detail[:20]) == (429, "0 runs wait already:")
        assert (await running)["status"] == "Success"


async def test_a_key_is_asked_for(store_dir: Path) -> None:
    async with serve(LIMITS, BubblewrapSandbox(), store_dir, key="secret") as url:
        assert (await post(url, json={"code": "1"}))[0] == 401
        headers = {"Authorization": "Bearer secret"}
        async with aiohttp.ClientSession(headers=headers) as client, client.post(url, json={"code": "1"}) as response:
            assert response.status == 200


@pytest.mark.timeout(180)
async def test_containers_serve_as_well(tmp_path: Path) -> None:
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed: the code sandbox is not tried with it")
    settings = LIMITS.model_copy(update={"run_seconds": 30})
    podman = PodmanSandbox(runtime="runc" if shutil.which("runc") else None, options=ULIMITS)
    async with serve(settings, podman, tmp_path) as url:
        answer = await ask(url, "import sympy\nprint(sympy.sqrt(12))")
        assert answer["run_result"]["stdout"] == "2*sqrt(3)\n", answer
        answer = await ask(url, "import socket\nsocket.create_connection(('127.0.0.1', 9), 1)")
        assert answer["status"] == "Failed"


async def test_without_a_key_it_listens_on_this_machine_only(store_dir: Path) -> None:
    with pytest.raises(PermanentError, match=r"anybody's code at 0\.0\.0\.0: set AGENTIC_CODE_SANDBOX_KEY"):
        async with serve(LIMITS, BubblewrapSandbox(), store_dir, host="0.0.0.0"):
            pass


async def test_a_taken_port_is_one_line(url: str, store_dir: Path) -> None:
    port = int(url.split(":")[2].split("/")[0])
    with pytest.raises(TransientError, match=f"cannot listen at 127.0.0.1:{port}: Address already in use"):
        async with serve(LIMITS, BubblewrapSandbox(), store_dir, port=port):
            pass


async def test_a_library_that_is_not_installed_is_named(store_dir: Path) -> None:
    settings = LIMITS.model_copy(update={"libraries": ("no_such_library",)})
    with pytest.raises(PermanentError, match="libraries names no_such_library"):
        async with serve(settings, BubblewrapSandbox(), store_dir):
            pass
