"""Who we are to the API server, and how it is reached: from a kubeconfig, or from the pod's service account.

Reading both is the `kubernetes` package's work (merged kubeconfigs, exec plugins, OIDC, token files, client
certificates, `proxy-url`); this module turns its answer into what an aiohttp request needs and keeps it fresh. A token
is read again every minute and whenever the server refused it; nothing is written back to a kubeconfig. TLS contexts are
kept while their files stay the same, so that the connection pool stays one.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml

from agentic.cluster.errors import CredentialsError, one_line
from agentic.cluster.tls import make_tls

REFRESH_SECONDS = 60.0
"""As often as client-go looks at a service account's token file."""

ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Access:
    """What a request needs, at this moment."""

    server: str
    """Base address, without a slash at its end."""
    authorization: str | None = None
    tls: ssl.SSLContext | bool = True
    server_name: str | None = None
    """Name to check the certificate against, when it is not the address's."""
    proxy: str | None = None
    namespace: str = "default"
    """Of the kubeconfig's context or of the pod."""

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": self.authorization} if self.authorization else {}


class Credentials(Protocol):
    """Where an Access comes from."""

    async def access(self, *, is_refused: bool = False) -> Access:
        """The present one; read anew when the last was refused. Raises CredentialsError."""
        ...


@dataclass(frozen=True, slots=True)
class FixedCredentials:
    """One that never changes, for servers of tests."""

    fixed: Access

    async def access(self, *, is_refused: bool = False) -> Access:
        return self.fixed


class LoadedCredentials:
    """From a kubeconfig or the pod's account, kept fresh."""

    def __init__(
        self,
        kubeconfig: Path | None = None,
        context: str | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self._clock = clock
        self._lock = asyncio.Lock()
        self._access: Access | None = None
        self._read_at = 0.0
        self._loader: Any = None
        self._plugin_users = set[str]()
        self._tls: tuple[object, ssl.SSLContext | bool] | None = None

    async def access(self, *, is_refused: bool = False) -> Access:
        seen = self._access
        if seen is not None and not is_refused and self._clock() - self._read_at < REFRESH_SECONDS:
            return seen
        async with self._lock:
            if self._access is None or self._access is seen:
                self._access = await self._load()
                self._read_at = self._clock()
            return self._access

    async def _load(self) -> Access:
        from kubernetes.aio.client import Configuration
        from kubernetes.aio.config import ConfigException

        configuration = Configuration()
        try:
            namespace = await self._read_into(configuration)
            tls = self._tls_of(configuration)
        except (ConfigException, OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
            raise CredentialsError(f"no usable credentials in {self._source()}: {one_line(str(error))}") from error
        return Access(
            server=configuration.host.rstrip("/"),
            authorization=(configuration.api_key.get("BearerToken") or "").strip() or None,
            tls=tls,
            server_name=configuration.tls_server_name,
            proxy=configuration.proxy,
            namespace=namespace,
        )

    async def _read_into(self, configuration: Any) -> str:
        """Fill the kubernetes package's configuration; returns the namespace."""
        from kubernetes.aio.config import load_incluster_config
        from kubernetes.aio.config.kube_config import KubeConfigLoader, KubeConfigMerger

        if self._is_in_cluster():
            load_incluster_config(client_configuration=configuration)
            return (ACCOUNT_FOLDER / "namespace").read_text().strip()
        if self._loader is None:
            merged = KubeConfigMerger(self._source()).config
            if merged is None:
                raise ValueError("there is no such file, nor is this a pod")
            # None: paths are relative to the file that they stand in.
            self._loader = KubeConfigLoader(merged, active_context=self._context, config_base_path=None)
            users = (entry.value for entry in merged.value["users"])
            self._plugin_users = {entry["name"] for entry in users if "exec" in (entry.get("user") or {})}
        await self._loader.load_and_set(configuration)
        user = self._loader.current_context["context"].get("user")
        if user in self._plugin_users and not configuration.api_key and not configuration.cert_file:
            raise ValueError(f"the exec plugin of user {user!r} gave no credentials: run it by hand to see why")
        return str(self._loader.current_context["context"].get("namespace") or "default")

    def _is_in_cluster(self) -> bool:
        named = self._kubeconfig is not None or os.environ.get("KUBECONFIG")
        return not named and "KUBERNETES_SERVICE_HOST" in os.environ and (ACCOUNT_FOLDER / "token").exists()

    def _source(self) -> str:
        if self._kubeconfig is not None:
            return str(self._kubeconfig)
        return os.environ.get("KUBECONFIG") or "~/.kube/config"

    def _tls_of(self, configuration: Any) -> ssl.SSLContext | bool:
        if not configuration.host.startswith("https"):
            return True
        files = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
        contents = tuple(Path(name).read_bytes() if name else b"" for name in files)
        key = (contents, configuration.verify_ssl)
        if self._tls is None or self._tls[0] != key:
            self._tls = (key, make_tls(*files, is_verified=configuration.verify_ssl))
        return self._tls[1]
