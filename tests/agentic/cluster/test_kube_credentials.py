"""Credentials from kubeconfigs of every kind, and their renewal."""

import ssl
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube_api import KubeApiServer

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import LoadedCredentials
from agentic.cluster.errors import CredentialsError
from agentic.cluster.resources import CONFIG_MAPS
from agentic.cluster.settings import KubeClientSettings


def kubeconfig(folder: Path, user: dict[str, Any], server: str = "http://127.0.0.1:1", **cluster: Any) -> Path:
    path = folder / "kubeconfig"
    context = {"cluster": "c", "user": "u", "namespace": "rl"}
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "x",
                "contexts": [
                    {"name": "x", "context": context},
                    {"name": "y", "context": {**context, "namespace": "z"}},
                ],
                "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return path


def plugin(folder: Path, script: str) -> dict[str, Any]:
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(path)}}


async def test_a_token_a_namespace_and_a_proxy_are_read(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, {"token": "t1"}, **{"proxy-url": "http://127.0.0.1:3128"})
    access = await LoadedCredentials(path).access()
    assert (access.authorization, access.namespace, access.proxy) == ("Bearer t1", "rl", "http://127.0.0.1:3128")
    assert (await LoadedCredentials(path, "y").access()).namespace == "z"


async def test_a_token_file_is_read_again_after_a_minute_or_a_refusal(tmp_path: Path) -> None:
    now = 0.0
    (tmp_path / "token").write_text("old")
    credentials = LoadedCredentials(kubeconfig(tmp_path, {"tokenFile": "token"}), clock=lambda: now)
    assert (await credentials.access()).authorization == "Bearer old"
    (tmp_path / "token").write_text("new\n")
    assert (await credentials.access()).authorization == "Bearer old"
    assert (await credentials.access(is_refused=True)).authorization == "Bearer new"
    (tmp_path / "token").write_text("newer")
    now = 61.0
    assert (await credentials.access()).authorization == "Bearer newer"


async def test_an_exec_plugin_is_run_and_a_silent_one_is_named(tmp_path: Path) -> None:
    answer = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"from-plugin"}}'
    path = kubeconfig(tmp_path, plugin(tmp_path, f"echo '{answer}'"))
    assert (await LoadedCredentials(path).access()).authorization == "Bearer from-plugin"
    path = kubeconfig(tmp_path, plugin(tmp_path, "exit 1"))
    with pytest.raises(CredentialsError, match="exec plugin of user 'u' gave no credentials"):
        await LoadedCredentials(path).access()


async def test_authorities_client_certificates_and_a_server_name_become_a_context(tmp_path: Path) -> None:
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=x -keyout key.pem -out cert.pem"
    subprocess.run(words.split(), cwd=tmp_path, check=True, capture_output=True)
    user = {"client-certificate": "cert.pem", "client-key": "key.pem"}
    path = kubeconfig(
        tmp_path, user, "https://127.0.0.1:1/", **{"certificate-authority": "cert.pem", "tls-server-name": "kube"}
    )
    credentials = LoadedCredentials(path)
    access, again = await credentials.access(), await credentials.access(is_refused=True)
    assert isinstance(access.tls, ssl.SSLContext)
    assert access.tls.verify_mode is ssl.CERT_REQUIRED
    assert (access.server, access.server_name, access.authorization) == ("https://127.0.0.1:1", "kube", None)
    assert again.tls is access.tls


async def test_what_is_missing_or_broken_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CredentialsError, match=r"no usable credentials in .*nowhere: there is no such file"):
        await LoadedCredentials(tmp_path / "nowhere").access()
    (tmp_path / "broken").write_text("{ not yaml: [")
    with pytest.raises(CredentialsError) as caught:
        await LoadedCredentials(tmp_path / "broken").access()
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, {"token": "t"})))
    assert (await LoadedCredentials().access()).namespace == "rl"


async def test_a_refused_token_is_renewed_under_way(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    async with KubeApiServer(tokens={"old"}) as server:
        path = kubeconfig(tmp_path, {"tokenFile": "token"}, server.address)
        async with KubeClient(LoadedCredentials(path), KubeClientSettings(retry_seconds=1)) as api:
            await api.list(CONFIG_MAPS)
            server.tokens = {"new"}
            (tmp_path / "token").write_text("new\n")
            assert (await api.list(CONFIG_MAPS)).items == ()
