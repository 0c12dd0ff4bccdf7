"""Where the proxy's socket lies, who gets one, and what becomes of those that killed proxies left."""

import ipaddress
import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from agentic.proxy import ProxySettings
from agentic.rollout.errors import RolloutConfigError
from agentic.rollout.proxy_socket import (
    MAX_PATH_BYTES,
    SETTLED_SECONDS,
    SOCKET_INSIDE,
    advertised,
    prepare_folder,
    proxy_settings,
    sandbox_environment,
)
from agentic.rollout.settings import InsideShellAgentSettings, RolloutSettings, ScriptedAgentSettings
from agentic.sandbox.settings import BubblewrapSandbox, PodSandbox, UnsafeProcessSandbox

INSIDE = RolloutSettings(agent=InsideShellAgentSettings())
SANDBOX = BubblewrapSandbox()


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def leave_socket(path, age_seconds=0.0):
    """What a server that was killed leaves."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
    then = path.stat().st_mtime - age_seconds
    os.utime(path, (then, then))
    return path


def test_only_an_agent_inside_gets_a_socket():
    for agent in (RolloutSettings().agent, ScriptedAgentSettings()):
        outside = RolloutSettings(agent=agent)
        proxy = proxy_settings(outside, SANDBOX, "run")
        assert proxy.unix_socket is None
        assert sandbox_environment(agent, proxy).kwargs == {}
    proxy = proxy_settings(INSIDE, SANDBOX, "run")
    assert sandbox_environment(INSIDE.agent, proxy).kwargs == {"sockets": {str(proxy.unix_socket): SOCKET_INSIDE}}


def test_in_pods_an_agent_inside_gets_the_one_port_that_is_open():
    sandbox = PodSandbox(proxy_port=8400)
    proxy = proxy_settings(INSIDE, sandbox, "run")
    assert (proxy.host, proxy.port, proxy.unix_socket) == ("0.0.0.0", 8400, None)
    assert proxy.control_host == "127.0.0.1", "the control plane is nobody else's"
    assert sandbox_environment(INSIDE.agent, proxy).kwargs == {}
    told = advertised(proxy).advertised_host
    assert told not in (None, "0.0.0.0")
    ipaddress.ip_address(told)
    outside = RolloutSettings()
    assert proxy_settings(outside, sandbox, "run") == outside.proxy


@pytest.mark.parametrize("host", ["10.0.0.7", "proxy.example"])
def test_an_address_that_is_set_is_kept(host):
    placed = INSIDE.model_copy(update={"proxy": ProxySettings(host=host)})
    assert proxy_settings(placed, PodSandbox(proxy_port=8400), "run").host == host
    named = ProxySettings(host="0.0.0.0", advertised_host=host)
    assert advertised(named).advertised_host == host
    assert advertised(ProxySettings()).advertised_host is None, "loopback is told as it is"


@pytest.mark.parametrize("sandbox", [PodSandbox(), PodSandbox(proxy_port=8400)], ids=["no port", "another port"])
def test_a_port_that_is_not_open_is_refused_by_name(sandbox):
    placed = INSIDE.model_copy(update={"proxy": ProxySettings(port=9000)})
    with pytest.raises(RolloutConfigError, match=r"sandbox\.proxy_port"):
        proxy_settings(placed, sandbox, "run")


def test_every_process_of_a_run_finds_the_same_short_path_and_no_other_run_does():
    long_run = "/workspace/" + "deep/" * 60
    paths = [
        proxy_settings(INSIDE, SANDBOX, *names).unix_socket
        for names in ((long_run, "train"), (long_run, "train"), (long_run, "evaluate"), ("/other", "train"))
    ]
    assert paths[0] == paths[1]
    assert len(set(paths)) == 3
    assert all(len(os.fsencode(path)) <= MAX_PATH_BYTES for path in paths)


def test_a_socket_that_was_placed_by_hand_stays_there(tmp_path):
    placed = tmp_path / "proxy.sock"
    settings = INSIDE.model_copy(update={"proxy": ProxySettings(unix_socket=placed)})
    assert proxy_settings(settings, SANDBOX, "run").unix_socket == placed
    prepare_folder(placed)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700, "pytest's own, and nobody touched it"


def test_settings_that_cannot_work_are_refused_by_name(temporary, monkeypatch):
    with pytest.raises(RolloutConfigError, match=r"unsafe-process"):
        proxy_settings(INSIDE, UnsafeProcessSandbox(), "run")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / ("long" * 25)))
    with pytest.raises(RolloutConfigError, match=r"rollout\.proxy\.unix_socket"):
        proxy_settings(INSIDE, SANDBOX, "run")


def test_the_folder_is_for_this_user_alone(temporary):
    path = proxy_settings(INSIDE, SANDBOX, "run").unix_socket
    prepare_folder(path)
    prepare_folder(path)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.parent.chmod(0o755)
    with pytest.raises(RolloutConfigError, match="only this user"):
        prepare_folder(path)


def test_a_folder_that_is_a_link_is_refused(temporary):
    (temporary / "elsewhere").mkdir(mode=0o700)
    path = proxy_settings(INSIDE, SANDBOX, "run").unix_socket
    path.parent.symlink_to(temporary / "elsewhere")
    with pytest.raises(RolloutConfigError, match="only this user"):
        prepare_folder(path)


def test_what_killed_proxies_left_is_removed_and_nothing_else(temporary, monkeypatch):
    path = proxy_settings(INSIDE, SANDBOX, "run").unix_socket
    prepare_folder(path)
    monkeypatch.chdir(path.parent)  # pytest's folders are deeper than a socket's path may be
    dead = leave_socket(Path("dead.sock"), SETTLED_SECONDS + 10)
    young = leave_socket(Path("young.sock"))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("living.sock")
        server.listen()
        os.utime("living.sock", (0, 0))
        prepare_folder(path)
    assert not dead.exists()
    assert young.exists()
    assert Path("living.sock").exists()
