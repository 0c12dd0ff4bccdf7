"""The command's options: every setting is one, what is wrong is named, and what is given has its effect."""

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from fake_vllm import FakeVllm
from proxy_rig import a_spec, ids_of, user

from agentic.proxy import ControlClient, ProxyError, ProxySettings
from agentic.proxy.__main__ import parse_arguments
from agentic.proxy.engines.kinds import find_kind, make_http_engine
from agentic.proxy.engines.vllm_http import VllmHttpEngine
from agentic.proxy.errors import EngineError
from agentic.proxy.options import read_settings

GIVEN: dict[str, tuple[list[str], Any]] = {
    "host": (["--host", "0.0.0.0"], "0.0.0.0"),
    "port": (["--port", "8100"], 8100),
    "advertised_host": (["--advertised-host", "proxy"], "proxy"),
    "control_host": (["--control-host", "::1"], "::1"),
    "control_port": (["--control-port", "8101"], 8101),
    "unix_socket": (["--unix-socket", "agents.sock"], Path("agents.sock")),
    "max_body_bytes": (["--max-body-bytes", "4096"], 4096),
    "request_timeout_seconds": (["--request-timeout-seconds", "60"], 60.0),
    "abandon_grace_seconds": (["--abandon-grace-seconds", "0"], 0.0),
    "write_timeout_seconds": (["--write-timeout-seconds", "2.5"], 2.5),
    "read_timeout_seconds": (["--read-timeout-seconds", "3"], 3.0),
    "session_lifetime_seconds": (["--session-lifetime-seconds", "1e3"], 1000.0),
    "session_idle_seconds": (["--session-idle-seconds", "30"], 30.0),
    "sealed_retention_seconds": (["--sealed-retention-seconds", "1"], 1.0),
    "max_sessions": (["--max-sessions", "5"], 5),
    "journal_directory": (["--journal", "journal"], Path("journal")),
    "journal_fsync": (["--fsync"], True),
    "owner_wait_seconds": (["--owner-wait-seconds", "0.5"], 0.5),
    "own_port": (["--own-port", "0"], 0),
    "tracing": (["--tracing"], True),
}


def parsed(*more: str) -> argparse.Namespace:
    return parse_arguments(["--engine", "http://127.0.0.1:9", "--tokenizer", "model", *more])


@pytest.mark.parametrize("name", ProxySettings.model_fields)
def test_every_setting_is_an_option(name: str) -> None:
    arguments, value = GIVEN[name]
    assert read_settings(parsed(*arguments)) == ProxySettings.model_validate({name: value})


def test_without_options_settings_have_their_defaults() -> None:
    assert read_settings(parsed()) == ProxySettings()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--port", "99999"], r"^--port 99999: .*65535"),
        (["--max-sessions", "many"], r"^--max-sessions many: .*integer"),
        (["--session-idle-seconds", "0"], r"^--session-idle-seconds 0: .*greater than 0"),
    ],
)
def test_a_value_that_cannot_be_is_told_by_its_option(arguments: list[str], told: str) -> None:
    with pytest.raises(ProxyError, match=told):
        read_settings(parsed(*arguments))


def test_help_tells_each_setting_in_the_words_of_its_field_and_the_keys_variables() -> None:
    command = [sys.executable, "-m", "agentic.proxy", "--help"]
    shown = " ".join(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    for field in ProxySettings.model_fields.values():
        assert " ".join((field.description or "?").replace("`", "").split()) in shown
    assert "AGENTIC_PROXY_ENGINE_KEY" in shown
    assert "AGENTIC_PROXY_CONTROL_KEY" in shown


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.timeout(180)
async def test_the_command_expires_idle_sessions_and_logs_lines_with_time_and_logger(
    tiny_folder: Path, processes: int
) -> None:
    async with FakeVllm(list(ids_of("hello<|im_end|>"))).serving() as vllm:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agentic.proxy", "--engine", vllm.url, "--tokenizer", str(tiny_folder)),
            *("--session-idle-seconds", "0.2", "--processes", str(processes)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "AGENTIC_PROXY_CONTROL_KEY": ""},
        )
        assert process.stdout is not None
        where = json.loads(await process.stdout.readline())
        async with ControlClient(where["control_url"], where["control_key"]) as control:
            await control.open(a_spec())
            await control.pause()
            async with asyncio.timeout(30):
                while {info.ending for info in await control.list()} != {"expired"}:
                    await asyncio.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, log = await process.communicate()
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    lines = log.decode().splitlines()
    assert all(re.match(rf"{time} (INFO|WARNING) agentic\.proxy\.\w+: ", line) for line in lines), lines
    assert any(
        line.endswith("WARNING agentic.proxy.sessions: session rollout-1 expired: nobody sealed it") for line in lines
    )
    assert sum("INFO agentic.proxy.sessions: sampling is paused" in line for line in lines) == processes


def guarded(key: str) -> Any:
    """What a server does that was started with a key: every path wants it."""

    @web.middleware
    async def check(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    return check


async def test_an_engine_that_wants_a_key_gets_it_from_the_environment(tiny_folder: Path) -> None:
    async with FakeVllm(list(ids_of("hello<|im_end|>"))).serving(before=[guarded("secret")]) as vllm:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agentic.proxy", "--engine", vllm.url, "--tokenizer", str(tiny_folder)),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "AGENTIC_PROXY_CONTROL_KEY": "", "AGENTIC_PROXY_ENGINE_KEY": "secret"},
        )
        assert process.stdout is not None
        where = json.loads(await process.stdout.readline())
        async with ControlClient(where["control_url"], where["control_key"]) as control:
            handle = await control.open(a_spec())
            assert await answered(handle.base_url, handle.api_key) == "hello"
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_a_missing_key_is_told_at_once_and_a_given_one_asks_the_server_what_it_is() -> None:
    async with FakeVllm([]).serving(before=[guarded("secret")]) as vllm:
        with pytest.raises(EngineError, match="answered 401: give the API key"):
            await asyncio.to_thread(find_kind, vllm.url)
        engine = await asyncio.to_thread(make_http_engine, vllm.url, "auto", None, 0, "secret")
        assert isinstance(engine, VllmHttpEngine)


async def answered(base_url: str, key: str) -> str:
    headers, body = {"Authorization": f"Bearer {key}"}, {"messages": [user("hi")]}
    url = f"{base_url}/chat/completions"
    async with aiohttp.ClientSession() as http, http.post(url, json=body, headers=headers) as response:
        answer = await response.json()
    return str(answer["choices"][0]["message"]["content"])
