"""The package from outside: what importing it loads, the command line, and the whole way to doubles of engines."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest
from fake_sglang import FakeSglang
from fake_vllm import FakeVllm
from proxy_rig import a_spec, ids_of, user

import agentic.proxy
from agentic.proxy import ControlClient, ProxySettings, ScriptedEngine
from agentic.proxy.actor import ProxyServerActor

HEAVY = ("torch", "ray", "vllm", "verl", "transformers", "harbor", "renderers", "agentic.errors", "agentic.settings")


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout))


def test_a_fresh_import_of_everything_exported_loads_no_ml_package_and_nothing_of_ours() -> None:
    loaded = loaded_after("from agentic.proxy import *")
    assert not loaded & set(HEAVY)
    assert {name for name in loaded if name.startswith("agentic.")} <= {
        n for n in loaded if n.startswith("agentic.proxy")
    }


def test_settings_need_pydantic_only() -> None:
    assert not loaded_after("import agentic.proxy.settings") & {"aiohttp", "jinja2", "tokenizers"}


def test_every_exported_name_exists() -> None:
    assert all(getattr(agentic.proxy, name) is not None for name in agentic.proxy.__all__)


def test_help_has_examples_and_is_quick() -> None:
    started = time.monotonic()
    command = [sys.executable, "-m", "agentic.proxy", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    spent = time.monotonic() - started
    assert "examples:" in result.stdout
    # The bound is for an idle machine; half a second of imports leaves room for a busy one.
    assert spent < 5 * loaded_seconds()


def loaded_seconds() -> float:
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import pydantic, aiohttp"], check=True)
    return time.monotonic() - started


def test_bad_input_is_one_line_and_exit_code_78(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agentic.proxy", "--engine", "http://127.0.0.1:9", "--tokenizer", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 78
    assert "no tokenizer.json" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("double", [FakeVllm, FakeSglang])
async def test_the_command_serves_an_engine_s_server_until_it_is_asked_to_stop(
    tiny_folder: Path, double: type[FakeVllm] | type[FakeSglang]
) -> None:
    ids = list(ids_of("hello<|im_end|>"))
    async with double(ids).serving() as engine:
        arguments = [
            "-m",
            "agentic.proxy",
            "--engine",
            engine.url,
            "--tokenizer",
            str(tiny_folder),
            "--policy-version",
            "4",
        ]
        environment = {**os.environ, "AGENTIC_PROXY_CONTROL_KEY": ""}
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, env=environment
        )
        assert process.stdout is not None
        where = json.loads(await process.stdout.readline())
        async with ControlClient(where["control_url"], where["control_key"]) as control:
            handle = await control.open(a_spec())
            url, key = f"{handle.base_url}/chat/completions", {"Authorization": f"Bearer {handle.api_key}"}
            body = {"messages": [user("hi")]}
            async with aiohttp.ClientSession() as http, http.post(url, json=body, headers=key) as response:
                answer = await response.json()
            sealed = await control.seal("rollout-1")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert answer["choices"][0]["message"]["content"] == "hello"
    (only,) = sealed.trajectories
    assert (only.response_ids, set(only.versions), sealed.complete) == (ids, {4}, True)
    said = engine.logprobs if isinstance(engine, FakeVllm) else [-0.25 * token for token in ids]
    assert only.response_logprobs == said


async def test_the_actor_s_class_opens_and_seals_like_the_server(tiny_folder: Path) -> None:
    actor = ProxyServerActor(ProxySettings(), lambda: ScriptedEngine([]), tiny_folder)
    where = await actor.start()
    handle = await actor.open(a_spec())
    assert handle.base_url.startswith(where["agent_url"])
    assert (await actor.seal("rollout-1")).calls == 0
    await actor.drop("rollout-1")
    await actor.stop()
