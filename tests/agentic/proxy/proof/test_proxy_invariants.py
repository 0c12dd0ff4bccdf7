"""The eleven invariants of docs/architecture.md, one test each, named by their numbers.

Each is a short scenario in which breaking the invariant shows; `make proxy-mutants` breaks each on purpose and sees its
test fail. The state machine beside this file looks for the scenarios that nobody thought of.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from proxy_rig import Rig, a_spec, ids_of, numbered, running, says, text_of, until, user
from proxy_tokens import QWEN_LIKE_TEMPLATE, write_model_folder

from agentic.proxy import (
    CallSampling,
    Chunk,
    FileJournal,
    ProxyServer,
    ProxySettings,
    Sampling,
    ScriptedEngine,
    ScriptedReply,
    SealedSession,
    SessionHandle,
    make_renderer,
)
from agentic.proxy.errors import JournalError, SessionSealed
from agentic.proxy.events import Committed, Overflowed, Started
from agentic.proxy.journal import decode_records, encode_record
from agentic.proxy.sessions import replay

RUN = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]
CALLS = '<think>hm</think>\n<tool_call>\n{"name": "run", "arguments": {"b": 1,  "a": 2}}\n</tool_call>'


def trained(sealed: SealedSession) -> list[str]:
    """The texts that train, one for each run of trained tokens, sorted."""
    runs: list[list[int]] = [[]]
    for trajectory in sealed.trajectories:
        for token, mask in zip(trajectory.response_ids, trajectory.response_mask, strict=True):
            if mask:
                runs[-1].append(token)
            else:
                runs.append([])
        runs.append([])
    return sorted(text_of(run) for run in runs if run)


async def talk(rig: Rig, handle: SessionHandle, *texts: str) -> list[dict[str, Any]]:
    """A conversation of several turns; gives its messages."""
    messages: list[dict[str, Any]] = []
    for text in texts:
        messages.append(user(text))
        messages.append((await rig.ask(handle, messages)).message)
    return messages


async def test_invariant_01_prompt_ids_are_the_concatenation_of_the_paths_deltas(tiny_folder: Path) -> None:
    async with running(tiny_folder) as rig:
        handle = await rig.server.open(a_spec())
        messages = await talk(rig, handle, "one", "two", "three")
        await rig.ask(handle, [*messages[:2], user("another two")])
        await rig.ask(handle, [user("summary"), {"role": "assistant", "content": "noted"}, user("go on")])
        await rig.ask(handle, [user("one")])  # encoded whole again, and found in what is held
        sealed = await rig.server.seal("rollout-1")
    assert rig.engine.received[-1].prompt_ids == rig.engine.received[0].prompt_ids
    wholes = [tuple(t.prompt_ids + t.response_ids) for t in sealed.trajectories]
    for number, call in enumerate(rig.engine.received):
        sampled = ids_of(f"answer rollout-1/{number}<|im_end|>")
        assert sum(whole[: len(call.prompt_ids + sampled)] == call.prompt_ids + sampled for whole in wholes) >= 1
    turns = [text_of(ids) for ids in (call.prompt_ids for call in rig.engine.received)]
    assert turns[2] == (
        "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\nanswer rollout-1/0<|im_end|>\n"
        "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\nanswer rollout-1/1<|im_end|>\n"
        "<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("lacking", [(-0.5, None, -0.5), (-0.5, float("nan"), -0.5), (-0.5, -0.5)])
async def test_invariant_02_lists_are_equally_long_and_a_missing_logprob_is_never_zero(
    tiny_folder: Path, tmp_path: Path, lacking: tuple[float | None, ...]
) -> None:
    script = [ScriptedReply(ids_of("ab<|im_end|>"), logprobs=lacking)]
    async with running(tiny_folder, script, journal_directory=tmp_path / "journal") as rig:
        handle = await rig.server.open(a_spec())
        await talk(rig, handle, "one")
        events, _ = decode_records((tmp_path / "journal" / "rollout-1.journal").read_bytes())
        sealed = await rig.server.seal("rollout-1")
    (committed,) = (event for event in events if isinstance(event, Committed))
    assert 0.0 not in committed.logprobs
    assert (sealed.complete, "logprob" in str(sealed.incomplete_reason)) == (False, True)
    for t in sealed.trajectories:
        lengths = {len(t.response_ids), len(t.response_mask), len(t.response_logprobs), len(t.versions)}
        assert (len(lengths), any(t.response_mask)) == (1, False)


async def test_invariant_03_each_token_that_a_client_received_trains_exactly_once(tiny_folder: Path) -> None:
    def script(*asked: Any) -> ScriptedReply:
        gone = text_of(asked[0]).endswith("gone<|im_end|>\n<|im_start|>assistant\n")
        return says("nobody hears", chunk_tokens=6, hang_after=1) if gone else numbered(*asked)

    async with running(tiny_folder, script, abandon_grace_seconds=0) as rig:
        handle = await rig.server.open(a_spec())
        first = await talk(rig, handle, "one")
        for text in ("left", "right"):
            await rig.ask(handle, [*first, user(text)])
        await asyncio.gather(*(rig.ask(handle, [*first, user("twins")]) for _ in range(2)))
        await rig.hang_up(handle, [*first, user("gone")])
        await until(lambda: bool(rig.engine.aborted))
        sealed = await rig.server.seal("rollout-1")
    assert len(sealed.trajectories) == 5
    assert trained(sealed) == sorted(f"answer rollout-1/{n}<|im_end|>" for n in range(5))
    assert (sealed.complete, sealed.undelivered_tokens) == (True, len(ids_of("nobody")))


async def test_invariant_03_of_a_reply_that_nobody_waited_for_nothing_trains(tiny_folder: Path) -> None:
    slow = says("nobody hears", chunk_tokens=4, delay_seconds=0.01)
    async with running(tiny_folder, [slow], abandon_grace_seconds=60) as rig:
        await rig.hang_up(await rig.server.open(a_spec()), [user("hi")])
        async with asyncio.timeout(5):
            while (await rig.server.metrics()).calls_answered == 0:
                await asyncio.sleep(0.001)
        sealed = await rig.server.seal("rollout-1")
    assert (sealed.complete, trained(sealed)) == (True, [])
    assert sealed.undelivered_tokens == sealed.sampled_tokens == len(ids_of("nobody hears<|im_end|>"))


async def test_invariant_04_sampled_tokens_survive_clients_that_strip_thinking_and_reorder_json(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, QWEN_LIKE_TEMPLATE, merges=[("h", "m")])
    sampled = tuple(token for letter in CALLS for token in ids_of(letter)) + ids_of("<|im_end|>")  # never the merge
    async with running(folder, [ScriptedReply(sampled), says("done")]) as rig:
        handle = await rig.server.open(a_spec(sampling=Sampling(temperature=1, max_tokens=200)))
        (call,) = (await rig.ask(handle, [user("hi")], tools=RUN)).message["tool_calls"]
        call["id"] = "another"
        call["function"]["arguments"] = json.dumps({"a": 2, "b": 1}, indent=1)
        turn = {"role": "assistant", "content": "", "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "another", "content": "ok"}
        await rig.ask(handle, [user("hi"), turn, result], tools=RUN)
        sealed = await rig.server.seal("rollout-1")
    first, second = rig.engine.received
    assert second.prompt_ids[: len(first.prompt_ids) + len(sampled)] == first.prompt_ids + sampled
    assert trained(sealed) == sorted([f"{CALLS}<|im_end|>", "done<|im_end|>"])


@pytest.mark.parametrize("headers", [{"Idempotency-Key": "k"}, {"x-stainless-retry-count": "1"}, {}])
async def test_invariant_05_a_retry_samples_nothing_and_records_nothing(
    tiny_folder: Path, tmp_path: Path, headers: dict[str, str]
) -> None:
    slow = ScriptedReply(ids_of("once<|im_end|>"), chunk_tokens=1, delay_seconds=0.01)
    async with running(tiny_folder, [slow], journal_directory=tmp_path / "journal") as rig:
        handle = await rig.server.open(a_spec())
        is_keyed = "Idempotency-Key" in headers
        if headers:
            await rig.ask(handle, [user("hi")], headers=headers if is_keyed else None)
        else:
            await rig.hang_up(handle, [user("hi")])
            await asyncio.sleep(0.005)
        again = await rig.ask(handle, [user("hi")], headers=headers)
        sealed = await rig.server.seal("rollout-1")
        events, _ = decode_records((tmp_path / "journal" / "rollout-1.journal").read_bytes())
    assert (again.text, len(rig.engine.received), sealed.calls) == ("once", 1, 1)
    assert [sum(isinstance(event, kind) for event in events) for kind in (Started, Committed)] == [1, 1]
    assert trained(sealed) == ["once<|im_end|>"]


async def test_invariant_06_versions_never_decrease_within_a_generation(tiny_folder: Path) -> None:
    text = ids_of("abcdef<|im_end|>")

    def rest(prompt: Any, *_: Any) -> ScriptedReply:
        given = len(prompt) - len(rig.engine.received[0].prompt_ids)
        return ScriptedReply(text[given:], chunk_tokens=2, hang_after=None if given else 2)

    async with running(tiny_folder, rest) as rig:
        handle = await rig.server.open(a_spec())
        asking = asyncio.create_task(rig.ask(handle, [user("hi")]))
        await until(lambda: bool(rig.engine.received))
        await asyncio.sleep(0.01)
        assert (await rig.server.pause()).interrupted == 1
        await rig.server.resume(3)
        assert (await asking).text == "abcdef"
        sealed = await rig.server.seal("rollout-1")
    (only,) = sealed.trajectories
    assert (tuple(only.response_ids), only.versions) == (text, [0] * 4 + [3] * 3)


class GoesBack(ScriptedEngine):
    """Samples the second half of a reply by older weights than the first."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: CallSampling, request_id: str
    ) -> AsyncIterator[Chunk]:
        yield Chunk(ids_of("ab"), (-0.5, -0.5), 5)
        yield Chunk(ids_of("c<|im_end|>"), (-0.5, -0.5), 4, "stop")


async def test_invariant_06_of_an_engine_that_breaks_it_nothing_trains(tiny_folder: Path) -> None:
    engine = GoesBack([])
    server = ProxyServer(ProxySettings(), engine, make_renderer(tiny_folder))
    await server.start()
    async with aiohttp.ClientSession() as http:
        rig, handle = Rig(server, engine, http), await server.open(a_spec())
        assert (await rig.ask(handle, [user("hi")])).text == "abc"
    sealed = await server.seal("rollout-1")
    await server.stop()
    assert (sealed.complete, trained(sealed)) == (False, [])
    assert "versions decrease" in str(sealed.incomplete_reason)


async def test_invariant_07_nothing_commits_after_seal_which_is_idempotent(tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "journal" / "rollout-1.journal"
    hangs = ScriptedReply(ids_of("cut short<|im_end|>"), chunk_tokens=3, hang_after=1)
    async with running(tiny_folder, [says("whole"), hangs], journal_directory=tmp_path / "journal") as rig:
        handle = await rig.server.open(a_spec())
        messages = await talk(rig, handle, "one")
        asking = asyncio.create_task(rig.ask(handle, [*messages, user("two")]))
        await until(lambda: len(rig.engine.received) == 2)
        await asyncio.sleep(0.01)
        sealed, twice = await asyncio.gather(rig.server.seal("rollout-1"), rig.server.seal("rollout-1"))
        assert (await asking).status == 410
        assert (await rig.ask(handle, [user("late")])).status == 410
        assert sealed == twice == await rig.server.seal("rollout-1") == await rig.server.fetch("rollout-1")
    events, whole = decode_records(path.read_bytes())
    assert (whole, events[-1].kind, [event.kind for event in events].count("sealed")) == (
        path.stat().st_size,
        "sealed",
        1,
    )
    assert (len(sealed.digest), sealed.cut, sealed.undelivered_tokens) == (64, {"sealed": 1}, 3)
    session = replay(events)
    assert session is not None
    for event in events[1:]:
        with pytest.raises(JournalError, match="is sealed"):
            session.apply(event)
    with pytest.raises(SessionSealed):
        session.admit_call(session.graph.plan_render([1, 2], 2), None, ())


async def test_invariant_08_lost_capture_masks_the_whole_rollout_and_says_so(tiny_folder: Path) -> None:
    script = [says("good"), ScriptedReply(ids_of("bad<|im_end|>"), logprobs=(-1.0, None, -1.0, -1.0)), says("good")]
    async with running(tiny_folder, script) as rig:
        handle = await rig.server.open(a_spec())
        await talk(rig, handle, "one", "two", "three")
        sealed = await rig.server.seal("rollout-1")
    assert (sealed.complete, sealed.incomplete_reason) == (False, "call 1: a sampled token has no finite logprob")
    assert trained(sealed) == []
    assert sealed.sampled_tokens == len(ids_of("good<|im_end|>bad<|im_end|>good<|im_end|>"))


async def test_invariant_09_sessions_cannot_read_or_write_each_other(tiny_folder: Path) -> None:
    async with running(tiny_folder) as rig:
        mine, other = await rig.server.open(a_spec("mine")), await rig.server.open(a_spec("other"))
        await talk(rig, other, "their secret")
        forged = other.model_copy(update={"api_key": mine.api_key})
        renamed = other.model_copy(update={"api_key": mine.api_key.replace("mine.", "other.", 1)})
        for handle in (forged, renamed):
            assert (await rig.ask(handle, [user("hi")])).status == 401
        same = {"Idempotency-Key": "shared"}
        texts = [(await rig.ask(handle, [user("the same")], headers=same)).text for handle in (mine, other)]
        assert texts == ["answer mine/0", "answer other/1"]
        async with rig.http.post(
            f"{other.base_url}/responses", json={"input": "a"}, headers={"x-api-key": other.api_key}
        ) as response:
            stored = (await response.json())["id"]
        body = {"input": "b", "previous_response_id": stored}
        async with rig.http.post(
            f"{mine.base_url}/responses", json=body, headers={"x-api-key": mine.api_key}
        ) as response:
            assert response.status in (400, 404)
        sealed = await rig.server.seal("mine")
    assert trained(sealed) == ["answer mine/0<|im_end|>"]
    assert all("secret" not in text_of(t.prompt_ids + t.response_ids) for t in sealed.trajectories)


async def test_invariant_10_a_journal_cut_at_any_byte_recovers_a_committed_prefix(
    tiny_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "journal"
    async with running(tiny_folder, journal_directory=folder) as rig:
        handle = await rig.server.open(a_spec())
        acknowledged: list[tuple[int, str]] = []
        messages: list[dict[str, Any]] = []
        for text in ("one", "two", "three"):
            messages.append(user(text))
            messages.append((await rig.ask(handle, messages)).message)
            acknowledged.append(((folder / "rollout-1.journal").stat().st_size, messages[-1]["content"]))
        whole = (folder / "rollout-1.journal").read_bytes()  # as after SIGKILL: nothing was closed or flushed
    ends = [n + 1 for n, byte in enumerate(whole) if byte == 10]
    for begin, end in zip([0, *ends], ends, strict=False):  # a page that the disk never took is no record
        place = whole.rindex(b'"', begin, end) - 1
        damaged = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        assert decode_records(damaged)[1] == begin
    cuts = sorted({*ends, *(end - 1 for end in ends), *range(0, len(whole), 97)})
    for number, cut in enumerate(cuts):
        journal = FileJournal(tmp_path / f"cut-{number}", fsync=False)
        (tmp_path / f"cut-{number}").mkdir()
        path = tmp_path / f"cut-{number}" / "rollout-1.journal"
        path.write_bytes(whole[:cut])
        session = replay(await journal.read("rollout-1"))
        await journal.append("rollout-1", [Overflowed()])
        assert path.read_bytes() == whole[: max([0, *(end for end in ends if end <= cut)])] + encode_record(
            Overflowed()
        )
        if session is None:
            assert cut < ends[0]
            continue
        session.apply(session.seal(9.0))
        kept = [text for size, text in acknowledged if size <= cut]
        assert trained(session.result())[: len(kept)] == [f"{text}<|im_end|>" for text in kept]
        assert len(trained(session.result())) <= len(kept) + 1


VLLM_REPLY = {
    "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage", "prompt_logprobs",
    "prompt_token_ids", "prompt_text", "kv_transfer_params",
}  # fmt: skip
VLLM_CHOICE = {"index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts"}
"""What vLLM 0.24 answers; `test_dialect_vllm.py` compares with vLLM's own models, which take long to import."""


async def test_invariant_11_a_client_that_only_chats_sees_the_fields_of_vllm(tiny_folder: Path) -> None:
    async with running(tiny_folder, numbered) as rig:
        handle = await rig.server.open(a_spec())
        answer = await rig.ask(handle, [user("hi")])
        failed = await rig.ask(handle, [])
    assert set(answer.body) == VLLM_REPLY
    (choice,) = answer.body["choices"]
    assert set(choice) == VLLM_CHOICE
    assert (choice["index"], choice["finish_reason"], answer.body["object"]) == (0, "stop", "chat.completion")
    assert answer.body["usage"]["total_tokens"] == len(rig.engine.received[0].prompt_ids) + len(
        ids_of("answer rollout-1/0<|im_end|>")
    )
    assert set(failed.body["error"]) == {"message", "type", "param", "code"}
