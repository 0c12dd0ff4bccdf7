"""Settings of a trial server: its folders, its sandboxes, and what it takes at a time."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from agentic.rollout.trial import EnvironmentSpec
from agentic.sandbox.settings import BubblewrapSandbox, ContainerSandbox, KubeSandbox, SandboxSettings
from agentic.settings import Settings

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class ServerSettings(Settings):
    """One trial server."""

    name: str = Field("trial-server", pattern=r"^[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?$")
    """Labels the server's sandboxes; after a restart it sweeps away those of its own name that nobody owns."""
    state_dir: Path
    """The journal, the tasks and the folders of trials. One server at a time owns it; it survives restarts."""
    store_dir: Path
    """The root-folder store, for providers that mount one."""
    sandbox: SandboxSettings = BubblewrapSandbox()
    """Where the agents' commands and the tests run."""
    concurrency: int = Field(64, ge=1)
    """Trials that run at once."""
    queue: int = Field(1024, ge=0)
    """Trials that may wait beside those that run; one more is answered with 429."""
    retry_after_seconds: int = Field(2, ge=1)
    """When one that was answered so is asked to come again."""
    lease_seconds: float = Field(60.0, gt=0)
    """A trial whose client reads no events for this long is ended, with its sandbox: its client has died."""
    stream_seconds: float = Field(300.0, gt=0)
    """After so long a stream of events ends and its client asks for the rest: a client whose machine has vanished
    without a word is found out then."""
    ping_seconds: float = Field(10.0, gt=0)
    """Between two signs of life while a trial does not move."""
    record_seconds: float = Field(86_400.0, gt=0)
    """How long a result, and the trial's folder, can be asked for."""
    task_seconds: float = Field(604_800.0, gt=0)
    """A task's folder that no trial has asked for in so long is removed; its client sends it again when it needs it."""
    task_limit_bytes: int = Field(1 << 30, ge=1)
    """What a task's folder may hold, unpacked."""
    environments: tuple[str, ...] = (EnvironmentSpec().import_path,)
    """Harbor environments that an order may name. Each is code that the server imports."""
    environment_arguments: tuple[str, ...] = ("tools",)
    """Keyword arguments that an order may give its environment; all others are refused. `tools` is a name from a list
    of ours. `sockets` has a setting of its own, and `folders`, which shows any folder of the server's machine, is never
    an order's to give."""
    task_variables: tuple[str, ...] = ()
    """Environment variables of the server that a task may ask for in its task.toml, as `${NAME}`. A task that asks for
    any other is refused, so that the server's secrets reach no sandbox."""
    allow_sockets: bool = False
    """Whether an order may bind sockets of the server's machine into its sandbox: for a proxy beside the server, whose
    clients are trusted with every socket of the server's user."""

    @property
    def trials_dir(self) -> Path:
        """Where trials that are kept leave their folders."""
        return self.state_dir / "trials"

    @model_validator(mode="after")
    def _lease_outlives_pings(self) -> Self:
        if self.lease_seconds <= self.ping_seconds:
            raise ValueError(
                f"lease_seconds is {self.lease_seconds:g} but clients are heard of every {self.ping_seconds:g} s "
                "(ping_seconds): raise the first or lower the second"
            )
        return self

    @model_validator(mode="after")
    def _machine_stays_hidden(self) -> Self:
        if guarded := sorted({"folders", "sockets"} & set(self.environment_arguments)):
            raise ValueError(f"environment_arguments names {guarded[0]!r}, which orders may not give: take it out")
        return self

    def check_environment(self, environment: EnvironmentSpec) -> str | None:
        """Why an order may not have this environment; None: it may."""
        if environment.import_path not in self.environments:
            return f"environment {environment.import_path} is not allowed here: use {', '.join(self.environments)}"
        given = {name for name, value in environment.kwargs.items() if value}
        if "sockets" in given and not self.allow_sockets:
            return (
                "sockets of the server's machine are not allowed in its sandboxes (allow_sockets): use an agent that "
                "runs outside, or a proxy that is reached by its address"
            )
        if refused := sorted(given - {"sockets", *self.environment_arguments}):
            return f"environment argument {refused[0]!r} is not an order's to give here (environment_arguments)"
        return None

    def check_lease(self, deadline_seconds: float) -> str | None:
        """Why a trial of this deadline cannot run in these sandboxes; None: it can."""
        sandbox = self.sandbox
        if isinstance(sandbox, ContainerSandbox | KubeSandbox) and sandbox.lease_seconds <= deadline_seconds:
            return (
                f"the deadline of {deadline_seconds:g} s outlasts the server's sandboxes (sandbox.lease_seconds is "
                f"{sandbox.lease_seconds:g}): lower rollout.deadline_seconds or raise the lease"
            )
        return None
