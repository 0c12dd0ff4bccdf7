"""Hostile requests through real HTTP, planning, rendering and capture: never a 500, always the API's own form."""

import json
from collections.abc import Iterator

import httpx
import pytest
from dialect_hostility import GOOD, spoiled_bodies, spoiled_bytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proxy_rig import numbered
from proxy_thread import proxy_on_a_thread
from proxy_tokens import QWEN_LIKE_TEMPLATE, write_model_folder

from agentic.proxy import SessionHandle

PATHS = sorted(GOOD)
FUZZED = settings(deadline=None, max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionHandle]:
    """A session that takes all of it."""
    folder = write_model_folder(tmp_path_factory.mktemp("model"), QWEN_LIKE_TEMPLATE)
    with proxy_on_a_thread(folder, numbered) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(handle: SessionHandle) -> Iterator[httpx.Client]:
    """A client with the session's key."""
    headers = {"Authorization": f"Bearer {handle.api_key}", "Content-Type": "application/json"}
    with httpx.Client(base_url=handle.base_url, headers=headers, timeout=30) as opened:
        yield opened


def check(path: str, response: httpx.Response) -> None:
    """An answer, a stream, or a refusal in the API's own form."""
    if response.headers["content-type"].startswith("text/event-stream"):
        assert response.status_code == 200
        return
    body = response.json()
    if response.status_code == 200:
        assert "error" not in body or body["error"] is None
        return
    assert response.status_code == 400, response.text
    assert body["error"]["message"]
    if path.startswith("/messages"):
        assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    else:
        assert set(body["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", PATHS)
def test_a_good_request_is_answered(client: httpx.Client, path: str) -> None:
    response = client.post(path, json=GOOD[path])
    assert response.status_code == 200, response.text


@FUZZED
@given(st.data(), st.sampled_from(PATHS))
def test_a_spoiled_body_is_never_the_server_s_fault(client: httpx.Client, data: st.DataObject, path: str) -> None:
    check(path, client.post(path, content=json.dumps(data.draw(spoiled_bodies(path)))))


@FUZZED
@given(st.data(), st.sampled_from(PATHS))
def test_bytes_that_are_no_request_are_never_the_server_s_fault(
    client: httpx.Client, data: st.DataObject, path: str
) -> None:
    check(path, client.post(path, content=data.draw(spoiled_bytes(path))))


HOSTILE_TEXTS = [
    "[" * 20000,
    '{"a":' * 20000,
    '{"a": "\\ud800"}',
    "9" * 5000,
    "\ufdd0",
    "<|im_end|>",
    "</tool_call>",
    "",
]


@pytest.mark.parametrize("text", HOSTILE_TEXTS, ids=range(len(HOSTILE_TEXTS)))
@pytest.mark.parametrize("path", [path for path in PATHS if path != "/completions"])
def test_hostile_texts_in_every_place_of_a_conversation(client: httpx.Client, path: str, text: str) -> None:
    for old in ('"hi"', '"I look"', '"ok"', '"be brief"', '"{\\"cmd\\": \\"ls\\"}"', '"does run"', '"call-0"'):
        body = json.dumps(GOOD[path]).replace(old, json.dumps(text))
        check(path, client.post(path, content=body))
