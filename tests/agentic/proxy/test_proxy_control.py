"""The control side: keys, budgets, expiry, heartbeat, list, metrics, the OpenAPI document, traces and logs."""

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import aiohttp
import pytest
from fake_vllm import FakeVllm
from proxy_rig import Answer, Rig, a_spec, ids_of, numbered, running, says, until, user
from yarl import URL

from agentic.proxy import ControlClient, ProxyServer, ProxySettings, ScriptedReply, SessionHandle, make_renderer
from agentic.proxy.engines.vllm_http import VllmHttpEngine
from agentic.proxy.errors import ControlError, InvalidRequest, TooManySessions, Unauthorized
from agentic.proxy.keys import KeyClaims, SessionKeys, kept_secret, session_of_key
from agentic.proxy.tracing import trace_headers


def code_of(answer: Answer) -> str:
    return str(answer.body["error"]["code"])


def test_a_key_says_what_it_opens_and_another_secret_does_not_open_it() -> None:
    keys, claims = SessionKeys(b"s" * 32), KeyClaims("a.b~c", "org/model.v1 ü", 0)
    key = keys.key(claims)
    assert (keys.check(key), session_of_key(key)) == (claims, "a.b~c")
    with pytest.raises(Unauthorized, match="opens no session"):
        SessionKeys(b"t" * 32).check(key)


@pytest.mark.parametrize("part", range(4))
def test_a_key_with_any_part_changed_is_refused(part: int) -> None:
    keys = SessionKeys()
    parts = keys.key(KeyClaims("one", "policy", int(time.time()) + 100)).rsplit(".", 3)
    parts[part] = {2: str(int(time.time()) + 10**6)}.get(part, parts[part][:-1] + "A")
    with pytest.raises(Unauthorized, match="opens no session"):
        keys.check(".".join(parts))


@pytest.mark.parametrize("key", ["", "nonsense", "a.b.c.d", "é" * 40, "." * 9])
def test_what_is_no_key_is_refused_not_broken_on(key: str) -> None:
    with pytest.raises(Unauthorized):
        SessionKeys().check(key)


def test_an_expired_key_says_so() -> None:
    keys = SessionKeys()
    with pytest.raises(Unauthorized, match="expired at 1970-01-01"):
        keys.check(keys.key(KeyClaims("one", "policy", 5)))


def test_the_secret_beside_a_journal_is_made_once_and_readable_by_its_user_only(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    assert kept_secret(folder) == kept_secret(folder)
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o077 == 0


async def test_a_key_survives_a_restart_with_a_journal(tiny_folder: Path, tmp_path: Path) -> None:
    async with running(tiny_folder, journal_directory=tmp_path) as rig:
        handle = await rig.server.open(a_spec())
    async with running(tiny_folder, journal_directory=tmp_path) as rig:
        moved = handle.model_copy(update={"base_url": f"{rig.server.agent_url}/s/rollout-1/v1"})
        assert (await rig.ask(moved, [user("hi")])).status == 200
        assert (await rig.server.open(a_spec())).api_key == handle.api_key


async def test_the_key_of_a_dropped_session_does_not_open_its_successor(tiny_folder: Path) -> None:
    async with running(tiny_folder) as rig:
        old = await rig.server.open(a_spec(lifetime_seconds=100))
        await rig.server.drop("rollout-1")
        await rig.server.open(a_spec(lifetime_seconds=200))
        answer = await rig.ask(old, [user("hi")])
    assert (answer.status, "earlier session" in answer.body["error"]["message"]) == (401, True)


async def test_a_session_that_nobody_seals_expires_and_says_so(
    tiny_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tiny_folder, journal_directory=tmp_path) as rig:
        handle = await rig.server.open(a_spec(lifetime_seconds=0.3))
        await rig.ask(handle, [user("hi")])
        late = await _after_expiry(rig, handle)
        (info,) = await rig.server.list()
        sealed = await rig.server.seal("rollout-1")
        metrics = await rig.server.metrics()
    assert (late.status, info.ending, sealed.ending, sealed.complete) == (401, "expired", "expired", True)
    assert (metrics.sessions_expired, metrics.sessions_open) == (1, 0)
    assert "session rollout-1 expired" in caplog.text


async def _after_expiry(rig: Rig, handle: SessionHandle) -> Answer:
    async with asyncio.timeout(20):
        while (await rig.server.metrics()).sessions_expired == 0:
            await asyncio.sleep(0.05)
    await asyncio.sleep(1)  # keys count whole seconds
    return await rig.ask(handle, [user("late")])


async def test_a_heartbeat_keeps_an_idle_session(tiny_folder: Path) -> None:
    async with running(tiny_folder, session_idle_seconds=0.4) as rig:
        for name in ("kept", "left"):
            await rig.server.open(a_spec(name))
        async with asyncio.timeout(20):
            while (await rig.server.metrics()).sessions_expired == 0:
                await rig.server.heartbeat("kept")
                await asyncio.sleep(0.05)
        phases = {info.session_id: info.phase for info in await rig.server.list()}
    assert phases == {"kept": "open", "left": "sealed"}


async def test_a_running_call_keeps_its_session(tiny_folder: Path) -> None:
    script = [says("slow", first_delay_seconds=0.5)]
    async with running(tiny_folder, script, session_idle_seconds=0.1) as rig:
        answer = await rig.ask(await rig.server.open(a_spec()), [user("hi")])
    assert answer.text == "slow"


async def test_sealed_sessions_leave_memory_and_are_read_again_from_the_journal(
    tiny_folder: Path, tmp_path: Path
) -> None:
    async with running(tiny_folder, journal_directory=tmp_path) as rig:
        handle = await rig.server.open(a_spec())
        await rig.ask(handle, [user("hi")])
        sealed = await rig.server.seal("rollout-1")
        assert await rig.server.list() == []
        assert await rig.server.fetch("rollout-1") == sealed == await rig.server.seal("rollout-1")
        assert (await rig.ask(handle, [user("late")])).status == 410
        assert (await rig.server.open(a_spec())).api_key == handle.api_key


async def test_without_a_journal_a_sealed_session_stays_for_a_while(tiny_folder: Path) -> None:
    async with running(tiny_folder, sealed_retention_seconds=0, session_idle_seconds=0.2) as rig:
        await rig.server.open(a_spec())
        sealed = await rig.server.seal("rollout-1")
        assert await rig.server.fetch("rollout-1") == sealed
        async with asyncio.timeout(20):
            while await rig.server.list():
                await asyncio.sleep(0.02)


async def test_a_budget_of_tokens_ends_a_session_s_sampling(tiny_folder: Path) -> None:
    script = [says("x" * 30), says("y" * 30)]
    async with running(tiny_folder, script) as rig:
        handle = await rig.server.open(a_spec(max_sampled_tokens=40))
        first, second, third = [await rig.ask(handle, [user(text)]) for text in "abc"]
        sealed = await rig.server.seal("rollout-1")
    assert (first.status, second.body["choices"][0]["finish_reason"]) == (200, "length")
    assert (third.status, code_of(third)) == (400, "call_limit_reached")
    assert sealed.sampled_tokens == 40


async def test_parallel_calls_and_bodies_have_limits_of_the_session(tiny_folder: Path) -> None:
    async with running(tiny_folder, [says("slow", first_delay_seconds=0.2)]) as rig:
        handle = await rig.server.open(a_spec(max_parallel_calls=1, max_body_bytes=200))
        first = asyncio.create_task(rig.ask(handle, [user("a")]))
        await until(lambda: len(rig.engine.received) == 1)
        second, large = await rig.ask(handle, [user("b")]), await rig.ask(handle, [user("c" * 300)])
        assert (await first).status == 200
    assert (second.status, code_of(second)) == (429, "too_many_calls")
    assert (large.status, code_of(large)) == (413, "request_too_large")


async def test_a_process_holds_as_many_sessions_as_it_may(tiny_folder: Path) -> None:
    async with running(tiny_folder, max_sessions=1) as rig:
        await rig.server.open(a_spec("one"))
        await rig.server.open(a_spec("one"))
        with pytest.raises(TooManySessions, match="max_sessions"):
            await rig.server.open(a_spec("two"))


async def test_the_client_of_the_control_plane_has_every_call_of_the_server(tiny_folder: Path) -> None:
    async with (
        running(tiny_folder, numbered) as rig,
        ControlClient(rig.server.control_url, rig.server.control_key) as control,
    ):
        handle = await control.open(a_spec())
        await rig.ask(handle, [user("hi")])
        assert (await control.heartbeat("rollout-1")).calls == 1
        assert [info.session_id for info in await control.list()] == ["rollout-1"]
        assert await control.describe("rollout-1") == await rig.server.describe("rollout-1")
        assert (await control.pause()).paused
        assert not (await control.resume(3)).paused
        with pytest.raises(ControlError, match="never decrease"):
            await control.resume(2)
        assert await control.metrics() == await rig.server.metrics()
        await control.seal("rollout-1")
        with pytest.raises(ControlError, match="sealed"):
            await control.heartbeat("rollout-1")


async def test_weights_do_not_change_under_a_running_generation(tiny_folder: Path) -> None:
    async with running(tiny_folder, [says("slow", first_delay_seconds=0.3)]) as rig:
        handle = await rig.server.open(a_spec())
        asking = asyncio.create_task(rig.ask(handle, [user("hi")]))
        await until(lambda: len(rig.engine.received) == 1)
        with pytest.raises(InvalidRequest, match="pause before"):
            await rig.server.resume(1)
        assert (await asking).status == 200


async def test_metrics_are_prometheus_text_with_help(tiny_folder: Path) -> None:
    async with running(tiny_folder) as rig:
        await rig.ask(await rig.server.open(a_spec()), [user("hi")])
        key = {"Authorization": f"Bearer {rig.server.control_key}"}
        async with rig.http.get(f"{rig.server.control_url}/metrics", headers=key) as response:
            text = await response.text()
    assert "# HELP agentic_proxy_calls_answered_total Generations that gave a whole reply" in text
    assert "agentic_proxy_calls_answered_total 1.0" in text
    assert "agentic_proxy_sessions_open 1.0" in text


async def test_the_openapi_document_names_every_route_and_its_models(tiny_folder: Path) -> None:
    async with running(tiny_folder) as rig, rig.http.get(f"{rig.server.control_url}/openapi.json") as response:
        document = await response.json()
    operations = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert ("/sessions", "post") in operations
    assert ("/sessions/{session}/seal", "post") in operations
    assert len(operations) == 10
    schemas = document["components"]["schemas"]
    assert {"SessionSpec", "SealedSession", "Trajectory", "SessionHandle", "Paused"} <= set(schemas)
    assert "Room of the first prompt" in schemas["SessionSpec"]["properties"]["max_prompt_tokens"]["description"]
    for name in _references(document):
        assert name in schemas
    summaries = [method["summary"] for methods in document["paths"].values() for method in methods.values()]
    assert all(summaries)


def _references(value: Any) -> set[str]:
    text = json.dumps(value)
    return {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}


async def test_the_trace_of_a_request_is_carried_on_to_the_engine(tiny_folder: Path) -> None:
    told: list[dict[str, str]] = []

    def script(*_: Any) -> ScriptedReply:
        told.append(dict(trace_headers()))
        return says("ok")

    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with running(tiny_folder, script) as rig:
        handle = await rig.server.open(a_spec())
        await rig.ask(handle, [user("a")], headers={"traceparent": trace})
        await rig.ask(handle, [user("b")])
    assert told == [{"traceparent": trace}, {}]


async def test_an_engine_over_http_gets_the_trace_headers(tiny_folder: Path) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with FakeVllm(list(ids_of("ok<|im_end|>"))).serving() as vllm:
        server = ProxyServer(ProxySettings(), VllmHttpEngine(vllm.url), make_renderer(tiny_folder))
        await server.start()
        handle = await server.open(a_spec())
        headers = {"Authorization": f"Bearer {handle.api_key}", "traceparent": trace, "tracestate": "a=1"}
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(f"{handle.base_url}/chat/completions", json={"messages": [user("hi")]}) as response,
        ):
            assert response.status == 200
        await server.stop()
    assert (vllm.headers[0]["traceparent"], vllm.headers[0]["tracestate"]) == (trace, "a=1")


async def test_with_spans_the_engine_is_told_a_span_of_the_agent_s_trace(tiny_folder: Path) -> None:
    pytest.importorskip("opentelemetry.trace")
    told: list[dict[str, str]] = []

    def script(*_: Any) -> ScriptedReply:
        told.append(dict(trace_headers()))
        return says("ok")

    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with running(tiny_folder, script, tracing=True) as rig:
        await rig.ask(await rig.server.open(a_spec()), [user("a")], headers={"traceparent": trace})
    assert told[0]["traceparent"].split("-")[1] == trace.split("-")[1]


async def test_logs_name_the_session_and_hold_neither_text_nor_keys(
    tiny_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def script(*_: Any) -> ScriptedReply:
        raise ValueError("the engine's own bug")

    with caplog.at_level(logging.DEBUG, logger="agentic.proxy"):
        async with running(tiny_folder, script) as rig:
            handle = await rig.server.open(a_spec())
            answer = await rig.ask(handle, [user("my secret text")])
            await rig.ask(handle, [{"role": "wizard", "content": "my secret text"}])
            await rig.server.pause()
    assert answer.status == 502
    assert "rollout-1" in caplog.text
    for hidden in ("my secret text", handle.api_key, rig.server.control_key):
        assert hidden not in caplog.text


async def test_every_api_gives_errors_in_its_own_form(tiny_folder: Path) -> None:
    async with running(tiny_folder) as rig:
        async with rig.http.post(f"{rig.server.agent_url}/v1/chat/completions", json={}) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (401, "invalid_api_key")
        async with rig.http.post(f"{rig.server.agent_url}/v1/messages", json={}) as response:
            body = await response.json()
            assert (response.status, body["type"], body["error"]["type"]) == (401, "error", "authentication_error")
        async with rig.http.get(f"{rig.server.agent_url}/nothing") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (404, "not_found")


SLASHED = ["..%2fother", "..%2f..%2fother", "%2e%2e%2fother", "sub%2fother"]


@pytest.mark.parametrize("name", [*SLASHED, ".other", "o%00ther", "o%0a", "o" * 300, "%c3%b6"])
async def test_a_name_that_no_session_can_have_reaches_no_file(tiny_folder: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "a" / "journal"
    others = [folder / "sub" / "other.journal", folder / ".other.journal", folder.parent / "other.journal"]
    async with running(tiny_folder, journal_directory=folder) as rig:
        for other in others:
            other.parent.mkdir(parents=True, exist_ok=True)
            other.write_bytes(b"not a session's")
        key = {"Authorization": f"Bearer {rig.server.control_key}"}
        calls = [("GET", ""), ("DELETE", ""), ("POST", "/seal"), ("POST", "/heartbeat"), ("GET", "/graph")]
        for method, rest in calls:
            url = URL(f"{rig.server.control_url}/sessions/{name}{rest}", encoded=True)
            async with rig.http.request(method, url, headers=key) as response:
                assert (response.status, "session_id" in await response.text()) == (400, True), (method, rest)
    assert all(other.read_bytes() == b"not a session's" for other in others)


@pytest.mark.parametrize("name", SLASHED)
async def test_a_signed_key_of_such_a_name_reaches_no_file_either(tiny_folder: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "journal"
    async with running(tiny_folder, journal_directory=folder) as rig:
        key = SessionKeys(kept_secret(folder)).key(KeyClaims(unquote(name), "policy", 0))
        (tmp_path / "other.journal").write_bytes(b"not a session's")
        url = URL(f"{rig.server.agent_url}/s/{name}/v1/models", encoded=True)
        async with rig.http.get(url, headers={"Authorization": f"Bearer {key}"}) as response:
            assert response.status == 400
    assert (tmp_path / "other.journal").read_bytes() == b"not a session's"
