"""What stands for the proxy when its port is probed; against a real node in `test_kube_on_cluster.py`."""

import asyncio
import socket
import sys

import pytest

from agentic.sandbox.kube.probing import LISTEN, next_to


@pytest.mark.parametrize(("port", "other"), [(8400, 8401), (1, 2), (65534, 65535), (65535, 65534)])
def test_the_port_that_has_to_be_closed_is_one(port: int, other: int) -> None:
    assert next_to(port) == other


def free_ports(count: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


async def test_both_ports_answer_whatever_kind_of_address_the_pod_has() -> None:
    ports = free_ports(2)
    listening = await asyncio.create_subprocess_exec(sys.executable, "-S", "-E", "-c", LISTEN, *map(str, ports))
    try:
        for host in ("127.0.0.1", *(["::1"] if socket.has_dualstack_ipv6() else [])):
            for port in ports:
                async with asyncio.timeout(20):
                    while True:
                        try:
                            _, writer = await asyncio.open_connection(host, port)
                            break
                        except OSError:
                            await asyncio.sleep(0.05)
                writer.close()
                await writer.wait_closed()
    finally:
        listening.kill()
        await listening.wait()
