"""What the volume of runs still knows of a run whose pods are gone: logs of failed steps, and records of rollouts.

Read only where a run has failed and its claim is bound; what cannot be read leaves the rest to be explained.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentic.cluster.client import KubeClient
from agentic.cluster.resources import CLAIMS, WORKFLOWS, JsonObject, name_of
from agentic.errors import AgenticError
from workflows.argo.attempts import recorded_settings
from workflows.argo.nodes import phase_of, steps_of
from workflows.argo.volume import UnreadableError, read_files

LONGEST_BYTES = 64 * 1024 * 1024
"""Of what is read; more is left out."""
TAIL_BYTES = 200_000
"""Of a log that is searched: an error stands at its end."""
FAILED = frozenset(["Failed", "Error"])
TRAINED = frozenset(["train", "evaluate", "report"])
"""Steps that failed although rollouts may have been recorded."""


class Volume:
    """The volume of one run, seen through its Workflow."""

    def __init__(
        self, client: KubeClient, run_id: str, objects: Sequence[JsonObject], changes: Sequence[str] = ()
    ) -> None:
        """`changes` are settings that differ from those of the run, such as an image for the pod that reads."""
        self._client = client
        self._run_id = run_id
        self._changes = changes
        workflows = [body for body in objects if body["kind"] == WORKFLOWS.kind]
        made = sorted(workflows, key=lambda body: str(body["metadata"].get("creationTimestamp")))
        self._workflow = made[-1] if made and phase_of(made[-1]) in FAILED else None
        self._bound = {
            name_of(body)
            for body in objects
            if body["kind"] == CLAIMS.kind and (body.get("status") or {}).get("phase") == "Bound"
        }

    async def logs(self, known: Mapping[str, str]) -> dict[str, str]:
        """Ends of the logs of steps that failed, but of those that are known."""
        missing = [step for step in self._failed() if step not in known]
        texts = [await self._read(f"logs/{step}.log", f"logs/{step}-[0-9]*.log") for step in missing]
        found = zip(missing, texts, strict=True)
        return {step: text[-TAIL_BYTES:].decode(errors="replace") for step, text in found if text}

    async def rollouts(self) -> list[dict[str, Any]]:
        """Records of training, if it came so far."""
        if not TRAINED & set(self._failed()):
            return []
        lines = (await self._read("rollouts/train.jsonl")).splitlines()
        return [record for line in lines if (record := _record(line)) is not None]

    def _failed(self) -> list[str]:
        """Names as in `known`: a fan-out's parts are one."""
        if self._workflow is None:
            return []
        failed = [step for step, node in steps_of(self._workflow).items() if node.get("phase") in FAILED]
        return list(dict.fromkeys(step.rstrip("0123456789").rstrip("-") for step in failed))

    async def _read(self, *patterns: str) -> bytes:
        if self._workflow is None:
            return b""
        content = b""
        try:
            cluster = recorded_settings(self._workflow, self._changes).cluster
            if cluster.runs.claim not in self._bound:
                return b""
            async for piece in read_files(self._client, cluster, self._run_id, patterns):
                content += piece
                if len(content) > LONGEST_BYTES:
                    break
        except UnreadableError:
            self._bound.clear()  # the next pod would be waited for in vain as well
        except AgenticError:
            return content
        return content


def _record(line: bytes) -> dict[str, Any] | None:
    """None for a line that a killed writer left."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
