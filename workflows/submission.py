"""The way to the cluster that kubectl uses, or to an Argo server, and creating a run's Workflow there.

Whatever the way, a failure is one line; that no cluster can be reached names the run on this machine.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agentic.cluster.base import ensure_base
from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import LoadedCredentials
from agentic.cluster.errors import (
    AlreadyExistsError,
    ApiUnavailableError,
    CredentialsError,
    ForbiddenError,
    NotFoundError,
)
from agentic.cluster.resources import WORKFLOWS, JsonObject, name_of
from agentic.cluster.settings import ClusterSettings, KubeClientSettings
from workflows.argo.api import Workflows
from workflows.argo.kube import KubeWorkflows
from workflows.argo.server import ServerAddress, ServerWorkflows
from workflows.errors import ClusterUnreachableError, CommandError
from workflows.objects import sandbox_rights
from workflows.settings import Settings

QUICK = KubeClientSettings(retry_seconds=3.0, request_timeout_seconds=15.0)
"""For the first request: a person waits for it."""

LOCALLY = "run on this machine with python3 workflows/submit.py local"

NO_SUCH_KIND = "could not find the requested resource"
"""How an API server says that it does not know the kind, other than that there is no such object."""


@dataclass(frozen=True)
class Connection:
    """A cluster that answers."""

    workflows: Workflows
    kube: KubeClient | None
    """`None`: there is a login at the Argo server and none at the cluster."""
    namespace: str
    ui: str | None
    """Where Argo's UI is, when settings or the server say."""
    context_namespace: str = "default"
    """Which namespace kubectl would take; ours is that of the settings."""

    def link(self, name: str) -> str:
        """Where the Workflow is to be seen."""
        path = f"/workflows/{self.namespace}/{name}"
        if self.ui is not None:
            return self.ui.rstrip("/") + path
        return f"kubectl -n argo port-forward service/argo-server 2746, then https://localhost:2746{path}"

    def require_kube(self, what: str) -> KubeClient:
        """kubectl access, for what an Argo server cannot do.

        Raises:
            ClusterUnreachableError: there is none.
        """
        if self.kube is None:
            raise ClusterUnreachableError(f"{what} needs kubectl access to the cluster: set KUBECONFIG")
        return self.kube


@asynccontextmanager
async def connected(settings: ClusterSettings, environment: Mapping[str, str]) -> AsyncIterator[Connection]:
    """A cluster that answers and knows Workflows.

    Raises:
        ClusterUnreachableError: no cluster is configured, or none answers; nor does the Argo server that is set.
        CommandError: it has no Argo Workflows, or lets nobody in without another login.
    """
    server = ServerAddress.find(settings, environment)
    credentials = LoadedCredentials()
    async with contextlib.AsyncExitStack() as held:
        login = await _login(credentials, is_needed=server is None)
        kube = None if login is None else KubeClient(credentials, namespace=settings.namespace)
        if kube is not None:
            held.push_async_callback(kube.close)
        if server is not None:
            transport = server.transport(login or None, KubeClientSettings())
            held.push_async_callback(transport.close)
            await _require_server(server, login or None, settings.namespace)
            workflows = ServerWorkflows(transport, settings.namespace)
            yield Connection(workflows, kube, settings.namespace, settings.argo_ui or server.base)
        elif kube is not None:
            await _require_argo(credentials, settings.namespace)
            context = (await credentials.access()).namespace
            yield Connection(KubeWorkflows(kube), kube, settings.namespace, settings.argo_ui, context)


async def _login(credentials: LoadedCredentials, *, is_needed: bool) -> str | None:
    """The kubeconfig's token, empty where it uses another way; `None` without a usable kubeconfig."""
    try:
        return (await credentials.access()).authorization or ""
    except CredentialsError as error:
        if is_needed:
            raise unreachable(error) from error
        return None


async def _require_server(server: ServerAddress, login: str | None, namespace: str) -> None:
    quick = server.transport(login, QUICK)
    try:
        await ServerWorkflows(quick, namespace).check()
    except ApiUnavailableError as error:
        raise ClusterUnreachableError(
            f"no Argo server answers at {server.base} ({_shown(error)}): correct cluster.argo_server or ARGO_SERVER, "
            f"leave them out to go by kubectl access, or {LOCALLY}"
        ) from error
    except (CredentialsError, ForbiddenError) as error:
        raise CommandError(f"the Argo server at {server.base} refuses: {error}: set ARGO_TOKEN") from error
    finally:
        await quick.close()


async def _require_argo(credentials: LoadedCredentials, namespace: str) -> None:
    async with KubeClient(credentials, QUICK, namespace=namespace) as quick:
        try:
            await quick.get(WORKFLOWS, "agentic-rl")
        except NotFoundError as error:
            if NO_SUCH_KIND in str(error):
                raise CommandError("the cluster has no Argo Workflows: install them, see docs/pipeline.md") from error
        except ApiUnavailableError as error:
            raise unreachable(error) from error
        except ForbiddenError as error:
            raise CommandError(f"the cluster refuses to show Workflows in {namespace}: {error}") from error


def unreachable(error: Exception) -> ClusterUnreachableError:
    """The one line for a cluster that is not there."""
    return ClusterUnreachableError(
        f"no Kubernetes cluster can be reached ({_shown(error)}): set KUBECONFIG, or {LOCALLY}"
    )


def _shown(error: Exception) -> str:
    reason = str(error)
    return reason if len(reason) <= 200 else f"{reason[:200]}..."


async def create(connection: Connection, settings: Settings, document: JsonObject) -> list[str]:
    """What all runs of the namespace need, then the Workflow; lines that say what was made.

    Raises:
        CommandError: there is one of that name, or the cluster refuses it.
    """
    name = name_of(document)
    try:
        await connection.workflows.get(name)
    except NotFoundError:
        pass
    else:
        raise CommandError(_taken(name))
    done: list[str] = []
    if connection.context_namespace not in {"default", connection.namespace}:
        context = f"kubectl's context is about {connection.context_namespace}"
        done.append(f"namespace {connection.namespace}, as cluster.namespace says; {context}")
    if connection.kube is not None:
        try:
            done += await ensure_base(connection.kube, settings.cluster, sandbox_rights(settings))
        except NotFoundError as error:
            raise CommandError(_no_namespace(connection.namespace, error)) from error
    try:
        await connection.workflows.create(document)
    except AlreadyExistsError as error:
        raise CommandError(_taken(name)) from error
    except NotFoundError as error:
        raise CommandError(_no_namespace(connection.namespace, error)) from error
    except ForbiddenError as error:
        raise CommandError(f"the cluster refuses to create a Workflow in {connection.namespace}: {error}") from error
    return [*done, f"workflow {name} is created in namespace {connection.namespace}: {connection.link(name)}"]


def _no_namespace(namespace: str, error: NotFoundError) -> str:
    """All that submitting makes is made: nothing but the namespace can be missing."""
    return f"{error}: make it (kubectl create namespace {namespace}), or correct cluster.namespace"


def _taken(name: str) -> str:
    return f"workflow {name} exists: take another --run-id, or go on with it by retry RUN or resume RUN --from STEP"
