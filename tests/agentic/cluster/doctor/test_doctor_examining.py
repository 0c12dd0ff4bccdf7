"""All checks run whatever the others find; what may not be read is no trouble."""

import ctypes
import socket
import struct
import threading
from collections.abc import AsyncIterator

import pytest

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.doctor import Check, Facts, examine
from agentic.cluster.doctor.asking import check_api
from agentic.cluster.doctor.examining import Checked
from agentic.cluster.doctor.reaching import reach, reach_all
from agentic.cluster.errors import ForbiddenError, QuotaExceededError
from agentic.cluster.settings import ClusterSettings, KubeClientSettings
from agentic.cluster.troubles import Trouble, make_trouble

FACTS = Facts(ClusterSettings())


@pytest.fixture
async def client() -> AsyncIterator[KubeClient]:
    """Of a port that nobody listens on."""
    access = FixedCredentials(Access("http://127.0.0.1:9"))
    async with KubeClient(access, KubeClientSettings(retry_seconds=0)) as made:
        yield made


async def finds_a_taint(client: KubeClient, facts: Facts) -> list[Trouble]:
    return [make_trouble("nodes-tainted", "node a", "gpu"), make_trouble("nodes-tainted", "node b", "gpu")]


async def is_forbidden(client: KubeClient, facts: Facts) -> list[Trouble]:
    raise ForbiddenError("list nodes: somebody may not list nodes: add it to the account's Role")


async def is_refused(client: KubeClient, facts: Facts) -> list[Trouble]:
    raise QuotaExceededError("create pods x in rl: exceeded quota: small, requested: pods=1")


async def finds_nothing(client: KubeClient, facts: Facts) -> list[Trouble]:
    return []


async def test_every_check_runs_and_is_told_as_it_ends(client: KubeClient) -> None:
    told: list[Checked] = []
    looks = (finds_a_taint, is_forbidden, is_refused, finds_nothing)
    checks = [Check(look.__name__, look) for look in looks]
    report = await examine(client, FACTS, checks, told.append)
    assert [checked.name for checked in told] == [look.__name__ for look in looks]
    assert [(one.name, one.where) for one in report.troubles] == [
        ("nodes-tainted", "node a and 1 more"),
        ("quota-exceeded", "namespace default"),
    ]
    assert list(report.skipped) == ["is_forbidden"]


async def test_a_cluster_that_does_not_answer_is_said_once(client: KubeClient) -> None:
    checks = [Check("API server", check_api), Check("later", finds_a_taint)]
    report = await examine(client, FACTS, checks)
    assert [trouble.name for trouble in report.troubles] == ["cluster-unreachable"]
    assert report.skipped == {"later": "the API server does not answer"}


async def test_what_cannot_be_seen_from_here_is_said_with_who_sees_it(client: KubeClient) -> None:
    report = await examine(client, FACTS, [Check("the model", None, "preflight looks"), Check("n", finds_nothing)])
    assert (report.troubles, report.skipped) == ([], {"the model": "preflight looks"})


def test_a_way_that_opens_a_moment_later_is_found() -> None:
    """As a network policy lets a new pod through."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    opened: list[socket.socket] = []
    timer = threading.Timer(0.8, lambda: opened.append(socket.create_server(("127.0.0.1", port))))
    timer.start()
    try:
        assert reach("tcp", f"127.0.0.1:{port}", seconds=10) == ""
    finally:
        timer.join()
        opened[0].close()


def drop_everything(socket_: socket.socket) -> None:
    """As a network that drops what comes: the kernel filters the packets of the socket, here to none."""
    attach_filter, keep_nothing = 26, ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    program = struct.pack("HL", 1, ctypes.addressof(keep_nothing))
    socket_.setsockopt(socket.SOL_SOCKET, attach_filter, program)


def test_a_refusal_is_told_although_the_network_is_silent_afterwards() -> None:
    """As pods' networks do, which drop what they have just refused; who was never answered says so."""
    with socket.socket() as refuses:
        refuses.bind(("127.0.0.1", 0))  # bound and not listening: refused
        drop_everything(refuses)
        address = f"127.0.0.1:{refuses.getsockname()[1]}"
        timer = threading.Timer(1.0, refuses.listen)
        timer.start()
        try:
            assert reach("tcp", address, seconds=2.5).startswith("ConnectionRefusedError")
        finally:
            timer.join()
        assert reach("tcp", address, seconds=1).startswith("TimeoutError")


def test_what_is_said_of_an_address_is_bounded() -> None:
    assert len(reach("http", f"http://{'x' * 5000}.invalid/", seconds=0.1)) <= 300


def test_what_listens_is_reached_and_what_does_not_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as closed:
        port, gone = server.getsockname()[1], closed.getsockname()[1]
        closed.close()
        answers = reach_all([["tcp", f"127.0.0.1:{port}"], ["tcp", f"127.0.0.1:{gone}"]], seconds=1)
    assert answers[0] == ""
    assert answers[1].startswith("ConnectionRefusedError")
