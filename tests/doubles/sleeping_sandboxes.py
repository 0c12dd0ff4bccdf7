"""Sandboxes that do nothing but take their time, for tests of how many trials one process bears.

Fakes what a sandbox does (every command succeeds, the tests write a reward of 1) and how long it takes; Harbor, the
environment, the agent and the verifier above it are real. A gate holds back every command until it is opened.
"""

import asyncio

from agentic.sandbox.base import ExecResult, ImageReference
from agentic.sandbox.harbor_environment import SandboxScope

IN_PLACE = '\n[metadata.grading]\nmode = "in-place"\nreason = "the double has no files"\n'
"""For the end of a task's `task.toml`: a fresh sandbox has nothing that could be compared."""


class SleepingSandbox:
    """One of them."""

    def __init__(self, spec, provider):
        self.spec = spec
        self._provider = provider

    async def exec(self, command, **options):
        await asyncio.sleep(self._provider.seconds)
        await self._provider.gate.wait()
        wants_reward = isinstance(command, str) and "reward.json" in command and "tail -c" in command
        return ExecResult(0, b"quiet\ntext 1\nnone\n" if wants_reward else b"", b"")

    async def end_commands(self):
        await asyncio.sleep(self._provider.seconds)

    async def upload(self, source, target):
        await asyncio.sleep(self._provider.seconds)

    async def download(self, source, target):
        await asyncio.sleep(self._provider.seconds)

    async def release(self):
        await asyncio.sleep(self._provider.seconds)
        self._provider.live -= 1


class SleepingProvider:
    """All of a test."""

    def __init__(self, seconds=0.02):
        self.seconds = seconds
        self.live = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def acquire(self, spec):
        await asyncio.sleep(self.seconds)
        self.live += 1
        return SleepingSandbox(spec, self)

    async def sweep(self, run_id):
        return 0

    async def close(self):
        pass


class AnyImage:
    """Every task has an image."""

    def find(self, task, environment_dir, docker_image):
        return ImageReference("any:1")


def scope_of(provider):
    """What a runner needs."""
    return SandboxScope(provider, AnyImage(), "run")
