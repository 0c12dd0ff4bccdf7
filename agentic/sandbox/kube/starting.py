"""Waiting for a pod to run, with the patience that each kind of trouble deserves."""

import asyncio
from collections.abc import Callable

from agentic.cluster.api import KubeApi
from agentic.cluster.errors import WaitTimeoutError
from agentic.cluster.resources import EVENTS, JsonObject
from agentic.errors import AgenticError
from agentic.sandbox.errors import SandboxSetupError, SandboxStartError
from agentic.sandbox.kube.source import Order
from agentic.sandbox.kube.verdict import PodState, PodVerdict, judge_pod
from agentic.sandbox.settings import KubeSandbox

NOT_SEEN = PodVerdict(PodState.WAITING, "its pod is not seen yet")
DELETED = PodVerdict(PodState.LOST, "its pod was deleted")


class PodStart:
    """One pod on its way to running."""

    def __init__(self, api: KubeApi, order: Order, settings: KubeSandbox, name: str, *, is_known: bool = True) -> None:
        """`is_known`: the watcher was told of the pod, so a missing one was deleted."""
        self._api, self._pods, self._settings, self._name = api, order.owner.pods, settings, name
        self._on_stall, self._on_landed = order.on_stall, order.on_landed
        self._missing = DELETED if is_known else NOT_SEEN
        self._last = NOT_SEEN

    async def wait(self, is_right: Callable[[JsonObject], bool] = lambda pod: True) -> JsonObject:
        """The pod once it runs, and `is_right` besides. Raises SandboxStartError with the reason, or SandboxSetupError
        when every other pod of its kind would end the same way."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._settings.start_timeout_seconds
        failing_until: float | None = None
        while True:
            until = deadline if failing_until is None else min(deadline, failing_until)
            try:
                verdict, pod = await self._pods.wait_for(
                    self._name, lambda pod: self._change(pod, is_right), timeout_seconds=max(until - clock(), 0.01)
                )
            except WaitTimeoutError as error:
                raise SandboxStartError(await self._explain(error)) from error
            self._last = verdict
            if verdict.state is PodState.LOST:
                kind = SandboxSetupError if verdict.is_permanent else SandboxStartError
                raise kind(f"sandbox {self._name} was not started: {verdict.reason}")
            if verdict.state is PodState.RUNNING and pod is not None:
                return pod
            is_failing = verdict.state is PodState.UNPULLABLE
            if is_failing:
                self._on_stall()
            failing_until = (failing_until or clock() + self._settings.unpullable_seconds) if is_failing else None

    def _change(
        self, pod: JsonObject | None, is_right: Callable[[JsonObject], bool]
    ) -> tuple[PodVerdict, JsonObject | None] | None:
        verdict = self._missing if pod is None else judge_pod(pod)
        if pod is not None:
            self._missing = DELETED
        if pod is not None and (node := pod.get("spec", {}).get("nodeName")):
            self._on_landed(node)
        if verdict.state is PodState.RUNNING and pod is not None and not is_right(pod):
            verdict = PodVerdict(PodState.WAITING, "its pod does not have its image yet")
        if verdict.state is self._last.state and verdict.state in (PodState.WAITING, PodState.UNPULLABLE):
            self._last = verdict
            return None
        return verdict, pod

    async def _explain(self, error: WaitTimeoutError) -> str:
        """Why it still waits; its events know more than its status, when we may read them."""
        pod = self._pods.objects.get(self._name)
        reason = self._last.reason
        if pod is not None:
            try:
                events = await self._api.list(EVENTS, fields=f"involvedObject.name={self._name}")
                reason = judge_pod(pod, events.items).reason or reason
            except AgenticError:
                reason = judge_pod(pod).reason or reason
        trouble = f"; the watch is in trouble: {self._pods.trouble}" if self._pods.trouble else ""
        return f"sandbox {self._name} was not started in time: {reason or error}{trouble}"
