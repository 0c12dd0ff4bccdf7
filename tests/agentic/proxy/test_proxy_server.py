"""The server over HTTP: what agents and the control side can rely on."""

import asyncio
import json
import socket
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from proxy_rig import Rig, a_spec, ids_of, running, says, text_of, until, user
from proxy_tokens import QWEN_LIKE_TEMPLATE, write_model_folder

from agentic.proxy import (
    CallSampling,
    ControlClient,
    ProxyError,
    ProxyFleet,
    ProxyServer,
    ProxySettings,
    Sampling,
    ScriptedEngine,
    ScriptedReply,
    Trajectory,
    make_renderer,
)
from agentic.proxy.errors import ControlError, SessionConflict, UnknownSession

TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]


def runs(trajectory: Trajectory) -> list[str]:
    """The texts of the trained stretches, in order."""
    texts: list[list[int]] = [[]]
    for token, mask in zip(trajectory.response_ids, trajectory.response_mask, strict=True):
        if mask:
            texts[-1].append(token)
        elif texts[-1]:
            texts.append([])
    return [text_of(ids) for ids in texts if ids]


async def test_many_turns_become_one_trajectory_whose_tokens_are_those_sent_and_sampled(tiny_folder: Path) -> None:
    async with running(tiny_folder) as rig:
        handle = await rig.server.open(a_spec())
        messages = [user("hi")]
        for _ in range(3):
            answer = await rig.ask(handle, messages)
            messages += [answer.message, user("more")]
        sealed = await rig.server.seal("rollout-1")
    (only,) = sealed.trajectories
    assert runs(only) == [f"answer rollout-1/{n}<|im_end|>" for n in range(3)]
    whole = only.prompt_ids + only.response_ids
    for call in rig.engine.received:
        assert tuple(whole[: len(call.prompt_ids)]) == call.prompt_ids
    assert (sealed.complete, sealed.calls, sealed.undelivered_tokens) == (True, 3, 0)
    assert sealed.sampled_tokens == sum(only.response_mask)


async def test_the_session_owns_sampling_and_counts_what_it_overrides(tiny_folder: Path) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=5, max_tokens=20, seed=3)
    async with running(tiny_folder) as rig:
        handle = await rig.server.open(a_spec(sampling=sampling))
        await rig.ask(handle, [user("a")], temperature=0.0, top_p=0.9, stop=["x"], presence_penalty=0, max_tokens=999)
        await rig.ask(handle, [user("b")], temperature=0.1, max_completion_tokens=5)
        sealed = await rig.server.seal("rollout-1")
    first, second = (call.sampling for call in rig.engine.received)
    assert (first.temperature, first.top_p, first.top_k, first.seed) == (0.7, 0.9, 5, 3)
    assert (first.max_tokens, second.max_tokens) == (20, 5)
    assert sealed.overridden == {"max_tokens": 1, "stop": 1, "temperature": 2}


async def test_a_branch_keeps_both_ends_and_trains_the_shared_turn_once(tiny_folder: Path) -> None:
    async with running(tiny_folder) as rig:
        handle = await rig.server.open(a_spec())
        first = await rig.ask(handle, [user("hi")])
        for text in ("left", "right"):
            await rig.ask(handle, [user("hi"), first.message, user(text)])
        sealed = await rig.server.seal("rollout-1")
    trained = [runs(trajectory) for trajectory in sealed.trajectories]
    shared, left, right = (f"answer rollout-1/{n}<|im_end|>" for n in range(3))
    assert trained == [[shared, left], [right]]


async def test_tool_calls_keep_their_tokens_when_the_client_rewrites_their_json(tmp_path: Path) -> None:
    call = 'I look.\n<tool_call>\n{"name": "run", "arguments": {"b": 1, "a": [2]}}\n</tool_call>'
    folder = write_model_folder(tmp_path, QWEN_LIKE_TEMPLATE)
    async with running(folder, [says(call), says("done")]) as rig:
        handle = await rig.server.open(a_spec(sampling=Sampling(temperature=1, max_tokens=200)))
        answer = await rig.ask(handle, [user("hi")], tools=TOOLS)
        choice = answer.body["choices"][0]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "I look.\n")
        (made,) = choice["message"]["tool_calls"]
        assert json.loads(made["function"]["arguments"]) == {"b": 1, "a": [2]}
        made["function"]["arguments"] = '{"a":[2],"b":1}'
        turn = {"role": "assistant", "content": "I look.", "tool_calls": [made]}
        result = {"role": "tool", "tool_call_id": made["id"], "content": "ok"}
        await rig.ask(handle, [user("hi"), turn, result], tools=TOOLS)
        sealed = await rig.server.seal("rollout-1")
    (only,) = sealed.trajectories
    assert runs(only) == [f"{call}<|im_end|>", "done<|im_end|>"]


async def test_thinking_that_the_client_strips_keeps_its_tokens(tiny_folder: Path) -> None:
    async with running(tiny_folder, [says("<think>hm</think>\nyes"), says("no")]) as rig:
        handle = await rig.server.open(a_spec())
        await rig.ask(handle, [user("hi")])
        await rig.ask(handle, [user("hi"), {"role": "assistant", "content": "yes"}, user("sure?")])
        sealed = await rig.server.seal("rollout-1")
    (only,) = sealed.trajectories
    assert runs(only) == ["<think>hm</think>\nyes<|im_end|>", "no<|im_end|>"]


async def test_a_cut_turn_is_closed_with_tokens_that_do_not_train(tiny_folder: Path) -> None:
    async with running(tiny_folder, [says("a long answer"), says("ok")]) as rig:
        handle = await rig.server.open(a_spec())
        answer = await rig.ask(handle, [user("hi")], max_tokens=6)
        assert (answer.text, answer.body["choices"][0]["finish_reason"]) == ("a long", "length")
        await rig.ask(handle, [user("hi"), answer.message, user("go on")])
        sealed = await rig.server.seal("rollout-1")
    (only,) = sealed.trajectories
    assert text_of(only.response_ids).startswith("a long<|im_end|>\n<|im_start|>user\ngo on")
    assert runs(only) == ["a long", "ok<|im_end|>"]


async def test_a_call_gets_what_room_is_left_and_then_overflows(tiny_folder: Path) -> None:
    rambling = ScriptedReply(ids_of("x" * 500))
    async with running(tiny_folder, lambda *_: rambling) as rig:
        handle = await rig.server.open(a_spec(max_response_tokens=100, sampling=Sampling(temperature=1, max_tokens=40)))
        messages = [user("hi")]
        statuses = []
        for _ in range(4):
            answer = await rig.ask(handle, messages)
            statuses.append(answer.status)
            if answer.status != 200:
                break
            messages += [answer.message, user("m")]
        sealed = await rig.server.seal("rollout-1")
    assert statuses == [200, 200, 400]
    error = answer.body["error"]
    assert (error["code"], error["type"]) == ("context_length_exceeded", "invalid_request_error")
    (only,) = sealed.trajectories
    assert len(only.response_ids) <= 100
    assert (sealed.overflowed, sealed.complete) == (True, True)


async def test_a_prompt_longer_than_its_room_overflows_before_anything_is_sampled(tiny_folder: Path) -> None:
    async with running(tiny_folder) as rig:
        handle = await rig.server.open(a_spec(max_prompt_tokens=50))
        answer = await rig.ask(handle, [user("x" * 60)])
        sealed = await rig.server.seal("rollout-1")
    assert (answer.status, answer.body["error"]["code"]) == (400, "context_length_exceeded")
    assert (sealed.overflowed, sealed.calls, sealed.trajectories) == (True, 0, [])


async def test_calls_beyond_the_limit_are_refused_but_retries_are_not_calls(tiny_folder: Path) -> None:
    async with running(tiny_folder) as rig:
        handle = await rig.server.open(a_spec(max_calls=1))
        assert (await rig.ask(handle, [user("hi")])).status == 200
        refused = await rig.ask(handle, [user("other")])
        again = await rig.ask(handle, [user("hi")], headers={"x-stainless-retry-count": "1"})
    assert (refused.status, refused.body["error"]["code"], again.status) == (400, "call_limit_reached", 200)


@pytest.mark.parametrize(
    "headers", [{"Idempotency-Key": "k1"}, {"x-stainless-retry-count": "1"}], ids=["idempotency key", "SDK retry"]
)
async def test_a_retry_gets_the_same_answer_and_samples_nothing(tiny_folder: Path, headers: dict[str, str]) -> None:
    async with running(tiny_folder) as rig:
        handle = await rig.server.open(a_spec())
        first = await rig.ask(handle, [user("hi")], headers={"Idempotency-Key": "k1"} if "Idem" in str(headers) else {})
        again = await rig.ask(handle, [user("hi")], headers=headers)
        assert again.body == first.body
        sealed = await rig.server.seal("rollout-1")
    assert (len(rig.engine.received), sealed.calls) == (1, 1)


async def test_two_live_identical_requests_are_two_samples(tiny_folder: Path) -> None:
    def slow(_prompt: Any, _sampling: CallSampling, request_id: str) -> ScriptedReply:
        return says(request_id, delay_seconds=0.02)

    async with running(tiny_folder, slow) as rig:
        handle = await rig.server.open(a_spec())
        answers = await asyncio.gather(*(rig.ask(handle, [user("hi")]) for _ in range(2)))
        sealed = await rig.server.seal("rollout-1")
    assert {answer.text for answer in answers} == {"rollout-1/0", "rollout-1/1"}
    assert sum(sum(t.response_mask) for t in sealed.trajectories) == sealed.sampled_tokens


async def test_the_same_body_after_a_hang_up_gets_the_generation_under_way(tiny_folder: Path) -> None:
    async with running(tiny_folder, [says("once", delay_seconds=0.1)]) as rig:
        handle = await rig.server.open(a_spec())
        await rig.hang_up(handle, [user("hi")])
        answer = await rig.ask(handle, [user("hi")])
        sealed = await rig.server.seal("rollout-1")
    assert answer.text == "once"
    (only,) = sealed.trajectories
    assert (runs(only), sealed.undelivered_tokens) == (["once<|im_end|>"], 0)


async def test_what_nobody_came_back_for_is_kept_without_loss_and_the_session_goes_on(tiny_folder: Path) -> None:
    async with running(tiny_folder, [says("lost", delay_seconds=0.01), says("kept")]) as rig:
        handle = await rig.server.open(a_spec())
        await rig.hang_up(handle, [user("hi")])
        await asyncio.sleep(0.05)
        assert (await rig.ask(handle, [user("other")])).text == "kept"
        sealed = await rig.server.seal("rollout-1")
    assert sealed.complete
    assert sealed.undelivered_tokens == len(ids_of("lost<|im_end|>"))
    assert sorted(runs(trajectory) for trajectory in sealed.trajectories) == [[], ["kept<|im_end|>"]]


async def test_an_engine_failure_is_a_502_and_the_sdk_retry_samples_anew(tiny_folder: Path) -> None:
    script = [says("half an answer", chunk_tokens=4, fail_after=1), says("whole")]
    async with running(tiny_folder, script) as rig:
        handle = await rig.server.open(a_spec())
        failed = await rig.ask(handle, [user("hi")])
        again = await rig.ask(handle, [user("hi")], headers={"x-stainless-retry-count": "1"})
        sealed = await rig.server.seal("rollout-1")
    assert (failed.status, failed.body["error"]["type"]) == (502, "server_error")
    assert again.text == "whole"
    assert (sealed.complete, sealed.undelivered_tokens) == (True, 4)


async def test_a_generation_that_takes_too_long_is_aborted(tiny_folder: Path) -> None:
    script = [says("slow answer", chunk_tokens=4, delay_seconds=0.15)]
    async with running(tiny_folder, script, request_timeout_seconds=0.25) as rig:
        handle = await rig.server.open(a_spec())
        answer = await rig.ask(handle, [user("hi")])
        sealed = await rig.server.seal("rollout-1")
    assert answer.status == 502
    assert "request_timeout_seconds" in answer.body["error"]["message"]
    assert (rig.engine.aborted, sealed.undelivered_tokens) == (["rollout-1/0"], 4)


async def test_a_missing_logprob_masks_the_whole_session_and_says_so(tiny_folder: Path) -> None:
    ids = ids_of("ab<|im_end|>")
    script = [says("fine"), ScriptedReply(ids, logprobs=(-0.1, None, -0.1))]
    async with running(tiny_folder, script) as rig:
        handle = await rig.server.open(a_spec())
        await rig.ask(handle, [user("hi")])
        await rig.ask(handle, [user("ho")])
        sealed = await rig.server.seal("rollout-1")
    assert not sealed.complete
    assert "logprob" in str(sealed.incomplete_reason)
    assert not any(trajectory.has_loss for trajectory in sealed.trajectories)


async def test_seal_aborts_what_is_under_way_and_nothing_commits_afterwards(tiny_folder: Path) -> None:
    script = [says("done"), says("never finished", chunk_tokens=2, delay_seconds=0.02)]
    async with running(tiny_folder, script) as rig:
        handle = await rig.server.open(a_spec())
        await rig.ask(handle, [user("hi")])
        waiting = asyncio.create_task(rig.ask(handle, [user("ho")]))
        await until(lambda: len(rig.engine.received) == 2)
        sealed, twin = await asyncio.gather(rig.server.seal("rollout-1"), rig.server.seal("rollout-1"))
        refused, late = await waiting, await rig.ask(handle, [user("late")])
        assert sealed == twin == await rig.server.seal("rollout-1")
    assert (refused.status, late.status) == (410, 410)
    assert late.body["error"]["code"] == "session_sealed"
    assert rig.engine.aborted == ["rollout-1/1"]
    assert [runs(t) for t in sealed.trajectories if t.has_loss] == [["done<|im_end|>"]]


async def test_opening_again_gives_the_same_handle_and_a_changed_spec_is_refused(tiny_folder: Path) -> None:
    async with running(tiny_folder) as rig:
        assert await rig.server.open(a_spec()) == await rig.server.open(a_spec())
        with pytest.raises(SessionConflict, match="rollout-1"):
            await rig.server.open(a_spec(max_calls=3))
        await rig.server.drop("rollout-1")
        await rig.server.drop("rollout-1")
        with pytest.raises(UnknownSession):
            await rig.server.seal("rollout-1")


async def _status(rig: Rig, url: str, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with rig.http.post(url, json={"messages": [user("hi")]}, headers=headers) as response:
        return response.status


async def test_a_key_opens_its_own_session_only(tiny_folder: Path) -> None:
    async with running(tiny_folder) as rig:
        mine, other = [await rig.server.open(a_spec(name)) for name in ("mine", "other")]
        chat = "/chat/completions"
        bare = f"{rig.server.agent_url}/v1{chat}"
        forged = f"other.{mine.api_key.rpartition('.')[2]}"
        assert await _status(rig, mine.base_url + chat, mine.api_key) == 200
        assert await _status(rig, bare, mine.api_key) == 200
        for key in ("", "nonsense", mine.api_key, forged, rig.server.control_key):
            assert await _status(rig, other.base_url + chat, key) == 401
        assert await _status(rig, f"{rig.server.control_url}/sessions/mine/seal", mine.api_key) == 401
        assert await _status(rig, f"{rig.server.agent_url}/sessions/mine/seal", rig.server.control_key) == 404
        assert (await rig.server.seal("other")).calls == 0
        assert (await rig.server.seal("mine")).calls == 2


async def test_the_control_plane_over_http_does_what_the_object_does(tiny_folder: Path) -> None:
    async with running(tiny_folder) as rig:
        async with ControlClient(rig.server.control_url, rig.server.control_key) as control:
            handle = await control.open(a_spec("remote"))
            assert handle == await rig.server.open(a_spec("remote"))
            assert await control.fetch("remote") is None
            await rig.ask(handle, [user("hi")])
            sealed = await control.seal("remote")
            assert sealed == await control.fetch("remote") == await rig.server.seal("remote")
            with pytest.raises(ControlError, match="another specification"):
                await control.open(a_spec("remote", max_calls=1))
            await control.drop("remote")
            with pytest.raises(ControlError, match="remote"):
                await control.seal("remote")
        async with ControlClient(rig.server.control_url, "wrong") as stranger:
            with pytest.raises(ControlError, match="control key"):
                await stranger.open(a_spec("x"))


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_socket_file_that_somebody_listens_on_is_not_taken_away(
    tiny_folder: Path, tmp_path: Path, processes: int
) -> None:
    settings = ProxySettings(unix_socket=tmp_path / "proxy.sock")
    make = partial(make_renderer, tiny_folder)
    async with running(tiny_folder, unix_socket=settings.unix_socket):
        other = (
            ProxyServer(settings, ScriptedEngine([]), make())
            if processes == 1
            else ProxyFleet(settings, partial(ScriptedEngine, []), make, processes)
        )
        with pytest.raises(ProxyError, match=r"another process listens on .*proxy.sock: choose another"):
            await other.start()
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(settings.unix_socket))) as inside:
            assert (await inside.get("http://proxy/health")).status == 200


async def test_a_socket_file_that_a_killed_process_left_is_replaced(tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "proxy.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    async with (
        running(tiny_folder, unix_socket=path),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as inside,
    ):
        assert (await inside.get("http://proxy/health")).status == 200


async def test_agents_reach_the_proxy_through_the_unix_socket(tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "proxy.sock"
    async with running(tiny_folder, unix_socket=path) as rig:
        handle = await rig.server.open(a_spec())
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as inside:
            async with inside.get("http://proxy/health") as response:
                assert (response.status, await response.json()) == (200, {"status": "ok"})
            key = {"Authorization": f"Bearer {handle.api_key}"}
            body = {"messages": [user("hi")]}
            async with inside.post("http://proxy/v1/chat/completions", json=body, headers=key) as response:
                assert response.status == 200
    assert not path.exists()


async def test_start_and_stop_may_be_repeated_and_stop_closes_the_engine(tiny_folder: Path) -> None:
    async with running(tiny_folder) as rig:
        url = rig.server.agent_url
        await rig.server.start()
        assert rig.server.agent_url == url
        await rig.server.stop()
        await rig.server.stop()
        assert rig.engine.closed


async def test_a_body_that_is_too_large_gets_a_json_error(tiny_folder: Path) -> None:
    async with running(tiny_folder, max_body_bytes=1000) as rig:
        handle = await rig.server.open(a_spec())
        answer = await rig.ask(handle, [user("x" * 2000)])
    assert (answer.status, answer.body["error"]["type"]) == (413, "invalid_request_error")
