"""The session alone: which requests are retries, what a call may use, and what ends a session."""

from typing import Any

import pytest
from proxy_rig import a_spec

from agentic.proxy.errors import CallLimitReached, ContextOverflow, InvalidRequest, JournalError, SessionSealed
from agentic.proxy.events import Committed, Delivered, Failed, Opened, Started
from agentic.proxy.graph import Plan, Relation
from agentic.proxy.models import Sampling
from agentic.proxy.session import Arrival, Session

PROMPT = (100, 101)


def opened(**fields: Any) -> Session:
    return Session(Opened(spec=a_spec(**fields), at=1.0))


def started(session: Session, body: str, key: str | None = None) -> int:
    number = len(session.calls)
    session.apply(Started(call=number, body_digest=body, idempotency_key=key, overridden=()))
    return number


def committed(session: Session, number: int, delivered: bool = True, **fields: Any) -> None:
    values: dict[str, Any] = {
        "call": number,
        "at": 2.0,
        "anchor": None,
        "context": PROMPT,
        "first_prompt": 2,
        "ids": (300 + number,),
        "logprobs": (-0.5,),
        "versions": (0,),
        "finish": "stop",
        "stop_reason": None,
        "delivered": delivered,
        "answered": True,
        "state_key": None,
        "verbatim": None,
    }
    session.apply(Committed(**(values | fields)))


def retried(session: Session, body: str, key: str | None = None, count: int = 0) -> int | None:
    call = session.find_retried(Arrival(body, key, count))
    return None if call is None else call.number


def test_the_same_body_after_a_delivered_answer_is_a_new_sample() -> None:
    session = opened()
    committed(session, started(session, "b"))
    assert retried(session, "b") is None


def test_an_sdk_retry_of_a_delivered_answer_gets_it_again() -> None:
    session = opened()
    committed(session, started(session, "b"))
    assert retried(session, "b", count=1) == 0
    assert retried(session, "other", count=1) is None


def test_the_same_body_is_a_retry_while_its_first_client_is_gone_and_unanswered() -> None:
    session = opened()
    number = started(session, "b")
    session.calls[number].waiting = 1
    assert retried(session, "b") is None, "the first client is still there: another sample"
    session.calls[number].waiting = 0
    assert retried(session, "b") == number
    committed(session, number, delivered=False)
    assert retried(session, "b") == number
    session.apply(Delivered(call=number, delivered=True))
    assert retried(session, "b") is None


def test_each_of_two_abandoned_samples_is_given_to_one_retry() -> None:
    session = opened()
    numbers = [started(session, "b") for _ in range(2)]
    for number in numbers:
        committed(session, number, delivered=False)
    assert retried(session, "b") == 0
    session.apply(Delivered(call=0, delivered=True))
    assert retried(session, "b") == 1


def test_an_idempotency_key_finds_its_call_and_may_not_change_its_body() -> None:
    session = opened()
    committed(session, started(session, "b", key="k"))
    assert retried(session, "b", key="k") == 0
    assert retried(session, "b", key="other") is None
    with pytest.raises(InvalidRequest, match="another body"):
        retried(session, "changed", key="k")


def test_an_sdk_retry_of_a_failed_call_samples_anew_even_if_a_twin_was_answered() -> None:
    session = opened()
    committed(session, started(session, "b"))
    session.apply(Failed(call=started(session, "b")))
    assert retried(session, "b", count=1) is None
    assert session.find_superseded(Arrival("b", None, 1)) == 1
    session.apply(Started(call=2, body_digest="b", idempotency_key=None, overridden=(), supersedes=1))
    committed(session, 2)
    assert retried(session, "b", count=1) == 2


def test_a_failed_call_that_was_asked_for_anew_hides_the_new_one_from_no_retry() -> None:
    session = opened()
    session.apply(Failed(call=started(session, "b")))
    assert retried(session, "b") is None
    replaced = session.find_superseded(Arrival("b", None, 0))  # the agent's own loop asks again, not its SDK
    session.apply(Started(call=1, body_digest="b", idempotency_key=None, overridden=(), supersedes=replaced))
    session.calls[1].waiting = 1
    assert retried(session, "b", count=1) == 1, "while its first client still counts as there"
    committed(session, 1)
    assert retried(session, "b", count=2) == 1


def test_a_failed_call_is_never_given_to_a_retry() -> None:
    session = opened()
    session.apply(Failed(call=started(session, "b", key="k")))
    assert retried(session, "b", key="k") is None
    assert retried(session, "b", count=2) is None


@pytest.mark.parametrize(
    ("client", "used", "expected"), [(None, 0, 20), (5, 0, 5), (999, 0, 20), (None, 92, 8), (3, 92, 3)]
)
def test_a_call_may_use_the_least_of_cap_room_and_the_client_s_own(
    client: int | None, used: int, expected: int
) -> None:
    session = opened(sampling=Sampling(temperature=1, max_tokens=20), max_response_tokens=100)
    plan = Plan(Relation.EXTEND, None, PROMPT, 2, 2 + used)
    assert session.admit_call(plan, client, (9,)).max_tokens == expected


def test_what_does_not_fit_overflows_and_says_which_limit() -> None:
    session = opened(max_prompt_tokens=10, max_response_tokens=100)
    with pytest.raises(ContextOverflow, match="maximum prompt length is 10 tokens, but the messages have 11"):
        session.admit_call(Plan(Relation.NEW_ROOT, None, PROMPT, 11, 11), None, ())
    with pytest.raises(ContextOverflow, match="maximum context length is 102 tokens, but the messages have 102"):
        session.admit_call(Plan(Relation.EXTEND, None, PROMPT, 2, 102), None, ())


def test_calls_are_counted_until_the_limit() -> None:
    session = opened(max_calls=1)
    started(session, "b")
    with pytest.raises(CallLimitReached, match="all 1 calls"):
        session.admit_call(Plan(Relation.NEW_ROOT, None, PROMPT, 2, 2), None, ())


@pytest.mark.parametrize("cut", ["engine", "restart", "proxy"])
def test_calls_that_fail_by_no_doing_of_the_client_do_not_count_up_to_as_many_again(cut: str) -> None:
    session, plan = opened(max_calls=2), Plan(Relation.NEW_ROOT, None, PROMPT, 2, 2)
    for _ in range(2):
        session.apply(Failed(call=started(session, "b"), cut=cut))
    for _ in range(2):
        session.admit_call(plan, None, ())
        session.apply(Failed(call=started(session, "b"), cut=cut))
    with pytest.raises(CallLimitReached, match="all 2 calls"):
        session.admit_call(plan, None, ())


@pytest.mark.parametrize("cut", ["refused", "abandoned", "timeout", "sealed"])
def test_calls_that_the_client_lost_count(cut: str) -> None:
    session = opened(max_calls=1)
    session.apply(Failed(call=started(session, "b"), cut=cut))
    with pytest.raises(CallLimitReached, match="all 1 calls"):
        session.admit_call(Plan(Relation.NEW_ROOT, None, PROMPT, 2, 2), None, ())


def test_a_sealed_session_takes_nothing_in() -> None:
    session = opened()
    number = started(session, "b")
    session.apply(session.seal(3.0))
    assert session.ending == "sealed"
    with pytest.raises(JournalError, match="is sealed"):
        committed(session, number)
    with pytest.raises(SessionSealed):
        session.admit_call(Plan(Relation.NEW_ROOT, None, PROMPT, 2, 2), None, ())


def test_a_call_commits_once() -> None:
    session = opened()
    number = started(session, "b")
    committed(session, number)
    with pytest.raises(JournalError, match="committed already"):
        committed(session, number)


@pytest.mark.parametrize(
    "fault", [{"logprobs": (None,)}, {"logprobs": ()}, {"ids": (1, 2), "logprobs": (-1.0, -1.0), "versions": (5, 4)}]
)
def test_capture_that_lost_anything_masks_all_and_says_why(fault: dict[str, Any]) -> None:
    session = opened()
    committed(session, started(session, "a"))
    committed(session, started(session, "b"), **fault)
    session.apply(session.seal(3.0))
    sealed = session.result()
    assert not sealed.complete
    assert str(sealed.incomplete_reason).startswith("call 1: ")
    assert not any(trajectory.has_loss for trajectory in sealed.trajectories)


def test_the_digest_is_of_what_was_captured_not_of_when() -> None:
    sessions = [opened() for _ in range(3)]
    for session, ids in zip(sessions, ((300,), (300,), (301,)), strict=True):
        committed(session, started(session, "b"), ids=ids)
    digests = [session.seal(float(n)).digest for n, session in enumerate(sessions)]
    assert digests[0] == digests[1] != digests[2]
