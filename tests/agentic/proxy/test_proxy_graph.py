"""The token graph alone. Ids have meaning: 1xx prompt, 2xx observation, 3xx sampled; the tens say which turn."""

import sys
import threading
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.proxy.graph import Generation, Plan, Relation, TokenGraph

PROMPT = [100, 101, 102]


def sampled(*ids: int, version: int = 0) -> Generation:
    return Generation(ids, tuple(-i / 1000 for i in ids), (version,) * len(ids))


def start(graph: TokenGraph, *ids: int, delivered: bool = True) -> int:
    return graph.commit(graph.plan_render(PROMPT, len(PROMPT)), sampled(*ids), delivered)


def test_a_turn_after_a_leaf_extends_its_path() -> None:
    graph = TokenGraph()
    first = start(graph, 310, 311)
    plan = graph.plan_suffix(first, [210])
    assert plan.relation is Relation.EXTEND
    assert list(graph.prompt_ids(plan)) == [*PROMPT, 310, 311, 210], graph.describe()
    graph.commit(plan, sampled(320), True)
    (only,) = graph.trajectories(with_loss=True)
    assert only.response_ids == [310, 311, 210, 320]
    assert only.response_mask == [1, 1, 0, 1], graph.describe()


def test_a_shared_turn_has_its_loss_in_the_first_path_only() -> None:
    graph = TokenGraph()
    first = start(graph, 310)
    for observation, answer in ((210, 320), (211, 321)):
        graph.commit(graph.plan_suffix(first, [observation]), sampled(answer), True)
    masks = [(t.response_ids, t.response_mask) for t in graph.trajectories(with_loss=True)]
    assert masks == [([310, 210, 320], [1, 0, 1]), ([310, 211, 321], [0, 0, 1])], graph.describe()


def test_two_samples_of_one_prompt_share_the_prompt_node() -> None:
    graph = TokenGraph()
    start(graph, 310)
    plan = graph.plan_render(PROMPT, len(PROMPT))
    assert plan.relation is Relation.FORK
    graph.commit(plan, sampled(311), True)
    assert sum(not node.sampled for node in graph.nodes) == 1, graph.describe()
    assert [t.response_ids for t in graph.trajectories(with_loss=True)] == [[310], [311]]


def test_concurrent_samples_planned_before_either_commits_share_the_prompt_node() -> None:
    graph = TokenGraph()
    plans = [graph.plan_render(PROMPT, len(PROMPT)) for _ in range(2)]
    for plan, answer in zip(plans, (310, 311), strict=True):
        graph.commit(plan, sampled(answer), True)
    assert sum(not node.sampled for node in graph.nodes) == 1, graph.describe()


def test_a_rerendered_history_forks_at_the_longest_held_beginning() -> None:
    graph = TokenGraph()
    start(graph, 310, 311)
    plan = graph.plan_render([*PROMPT, 399, 210], len(PROMPT))
    assert (plan.relation, plan.context, plan.first_prompt) == (Relation.FORK, (399, 210), 3), graph.describe()


def test_a_rerendered_history_that_gives_the_sampled_ids_again_reuses_them() -> None:
    graph = TokenGraph()
    first = start(graph, 310, 311)
    plan = graph.plan_render([*PROMPT, 310, 311, 210], len(PROMPT))
    assert (plan.relation, plan.anchor, plan.context) == (Relation.EXTEND, first, (210,)), graph.describe()


def test_a_new_root_with_earlier_turns_keeps_them_out_of_the_first_prompt() -> None:
    graph = TokenGraph()
    graph.commit(graph.plan_render([100, 310, 210], lead=1), sampled(320), True)
    (only,) = graph.trajectories(with_loss=True)
    assert (only.prompt_ids, only.response_ids, only.response_mask) == ([100], [310, 210, 320], [0, 0, 1])


def test_undelivered_tokens_are_kept_without_loss_and_counted() -> None:
    graph = TokenGraph()
    start(graph, 310, 311, delivered=False)
    (only,) = graph.trajectories(with_loss=True)
    assert only.response_ids == [310, 311]
    assert only.response_mask == [0, 0]
    assert only.response_logprobs == [0.0, 0.0]
    assert graph.count_sampled() == (2, 2)


def test_an_incomplete_session_has_no_loss_anywhere() -> None:
    graph = TokenGraph()
    start(graph, 310)
    (only,) = graph.trajectories(with_loss=False)
    assert not only.has_loss


def test_what_is_not_a_faithful_capture_is_named() -> None:
    assert sampled(310).problem() is None
    assert "logprob" in str(Generation((310,), (None,), (0,)).problem())
    assert "logprob" in str(Generation((310,), (float("-inf"),), (0,)).problem())
    assert "2 logprobs" in str(Generation((310,), (-1.0, -1.0), (0,)).problem())
    assert "versions" in str(Generation((310, 311), (-1.0, -1.0), (5, 4)).problem())


@st.composite
def growth(draw: st.DrawFn) -> list[tuple[int, int, bool]]:
    """Steps: which node to continue (modulo what is there; 0 starts anew), which observation, and whether delivered."""
    return draw(st.lists(st.tuples(st.integers(0, 30), st.integers(200, 203), st.booleans()), min_size=1, max_size=25))


@given(growth())
def test_prompts_are_paths_and_every_delivered_token_trains_once(steps: list[tuple[int, int, bool]]) -> None:
    graph = TokenGraph()
    sent: dict[int, list[int]] = {}
    delivered_ids = []
    for number, (choice, observation, delivered) in enumerate(steps):
        nodes = sorted(sent)
        anchor = nodes[choice % (len(nodes) + 1) - 1] if nodes and choice % (len(nodes) + 1) else None
        plan: Plan = graph.plan_render(PROMPT, 3) if anchor is None else graph.plan_suffix(anchor, [observation])
        prompt = list(graph.prompt_ids(plan))
        ids = (1000 + number, 2000 + number)  # unique, so that a token says which generation it is
        node = graph.commit(plan, sampled(*ids, version=number), delivered)
        sent[node] = prompt
        delivered_ids += ids if delivered else ()
        assert plan.total == len(prompt)
        assert list(graph.path_ids(node)) == [*prompt, *ids], graph.describe()
    trained = []
    for trajectory in graph.trajectories(with_loss=True):
        rows = zip(trajectory.response_ids, trajectory.response_mask, trajectory.response_logprobs, strict=True)
        for (token, mask, logprob), version in zip(rows, trajectory.versions, strict=True):
            trained += [token] if mask else []
            assert (logprob != 0.0) == bool(mask)
            assert (version == -1) == (token < 1000)
    assert sorted(trained) == sorted(delivered_ids), graph.describe()


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty_threads")
def test_planning_in_a_thread_sees_whole_paths_while_others_commit() -> None:
    graph = TokenGraph()
    leaf = start(graph, 310)
    wanted = {leaf: [*PROMPT, 310]}
    wrong: list[int] = []
    done = threading.Event()

    def plan() -> None:
        for turn in count():
            if done.is_set():
                return
            nodes = list(wanted)
            node = nodes[turn % len(nodes)]
            if list(graph.path_ids(node)) != wanted[node]:
                wrong.append(node)
            found = graph.plan_render([*wanted[node], 999], 3)
            if found.anchor != node:
                wrong.append(node)

    threads = [threading.Thread(target=plan) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(300):
        parent = leaf if turn % 3 else next(iter(wanted))
        node = graph.commit(graph.plan_suffix(parent, [1000 + turn]), sampled(5000 + turn), True)
        wanted[node] = [*wanted[parent], 1000 + turn, 5000 + turn]
        leaf = node
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
