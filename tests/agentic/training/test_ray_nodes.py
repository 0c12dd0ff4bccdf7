"""A Ray cluster of a launcher: waited for, found by its address, never ended."""

import socket
from collections.abc import Iterator

import pytest

from agentic.errors import TransientError
from agentic.training.ray_nodes import ADDRESS_VARIABLE, await_nodes, launched_head


def joining(*counts: int) -> Iterator[list[str]]:
    """A cluster that has so many nodes at each look."""
    return iter([[f"10.0.0.{number}" for number in range(count)] for count in counts])


def test_nodes_are_waited_for_and_each_look_is_told() -> None:
    looks, said, pauses = joining(1, 1, 2), list[str](), list[int]()
    await_nodes(lambda: next(looks), 2, polls=30, say=said.append, pause=lambda: pauses.append(1))
    assert [line[:6] for line in said] == ["1 of 2", "1 of 2", "2 of 2"]
    assert len(pauses) == 2


def test_after_the_last_poll_it_says_who_is_there_without_another_pause() -> None:
    looks, pauses = joining(0, 1, 1), list[int]()
    with pytest.raises(TransientError, match=r"only 1 of 2 Ray nodes have joined after 3 polls \(10\.0\.0\.0\)"):
        await_nodes(lambda: next(looks), 2, polls=3, say=lambda line: None, pause=lambda: pauses.append(1))
    assert len(pauses) == 2


def test_without_a_launcher_there_is_no_head() -> None:
    assert launched_head({}) is None
    assert launched_head({ADDRESS_VARIABLE: ""}) is None


@pytest.mark.parametrize(("family", "host", "written"), [
    (socket.AF_INET, "127.0.0.1", "127.0.0.1"), (socket.AF_INET6, "::1", "[::1]")
])  # fmt: skip
def test_a_head_that_answers_is_used_by_its_address(family: socket.AddressFamily, host: str, written: str) -> None:
    with socket.socket(family) as server:
        server.bind((host, 0))
        server.listen()
        address = f"{written}:{server.getsockname()[1]}"
        assert launched_head({ADDRESS_VARIABLE: address}) == address


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "10.0.0.1:port"])
def test_one_that_does_not_answer_is_worth_another_try_and_named(address: str) -> None:
    with pytest.raises(TransientError, match=address):
        launched_head({ADDRESS_VARIABLE: address})
