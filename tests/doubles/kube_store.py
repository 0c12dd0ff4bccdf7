"""The objects of the API server double: versions, selectors, patches, preconditions, quotas, owners, events.

What it fakes: validation, defaulting, RBAC, admission and schemas are absent (`admit` can play some), strategic patches
merge lists by replacing them, and deletion is immediate unless finalizers hold it. What belonged to a deleted object
goes a moment later, as it does by the real collector; one that gets another owner meanwhile is kept.
"""

import asyncio
import copy
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]
Key = tuple[str, str, str]
"""Group and plural, namespace, name."""


class Refusal(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message

    @property
    def body(self) -> Object:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": self.status,
            "reason": self.reason,
            "message": self.message,
        }


WHOLE = ".argoproj.io"
"""Group of kinds whose definitions declare no subresource for the status."""


@dataclass(frozen=True)
class Change:
    """An entry of the event log."""

    version: int
    kind: str
    key: Key
    body: Object


@dataclass
class KubeStore:
    """All objects, and the log of their changes."""

    objects: dict[Key, Object] = field(default_factory=dict)
    version: int = 1
    log: list[Change] = field(default_factory=list)
    compacted: int = 0
    """Watching from an older version answers 410."""
    quotas: dict[str, int] = field(default_factory=dict)
    """Group and plural → most objects per namespace."""
    admit: list[Callable[[str, str, Object], Object]] = field(default_factory=list)
    """Called with verb, kind and object before it is stored; may change it or raise a Refusal."""
    clock_lag_seconds: float = 0.0
    """How far the server's clock is from everybody else's."""
    collect_seconds: float = 0.05
    """After the end of an owner, until what belonged to it is collected."""
    observers: list[Callable[[Change], None]] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def find(self, key: Key) -> Object:
        if key not in self.objects:
            raise Refusal(404, "NotFound", f'{key[0]} "{key[2]}" not found')
        return self.objects[key]

    def select(self, plural: str, namespace: str, labels: str, fields: str) -> list[Object]:
        return [
            body
            for (kind, space, _), body in sorted(self.objects.items())
            if kind == plural and namespace in ("", space) and matches(body, labels, fields)
        ]

    def create(self, key: Key, body: Object, dry_run: bool = False) -> Object:
        plural, namespace, name = key
        if key in self.objects:
            raise Refusal(409, "AlreadyExists", f'{plural} "{name}" already exists')
        held = sum(kind == plural and space == namespace for kind, space, _ in self.objects)
        if held >= self.quotas.get(plural, held + 1):
            limit = self.quotas[plural]
            raise Refusal(403, "Forbidden", f'{plural} "{name}" is forbidden: exceeded quota: q, limited: {limit}')
        body = self._admitted("create", plural, body)
        metadata = body.setdefault("metadata", {})
        metadata |= {"name": name, "uid": str(uuid.uuid4()), "generation": 1}
        metadata["creationTimestamp"] = time.strftime(
            "%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + self.clock_lag_seconds)
        )
        metadata |= {"namespace": namespace} if namespace else {}
        return body if dry_run else self._write("ADDED", key, body)

    def _admitted(self, verb: str, plural: str, body: Object) -> Object:
        body = copy.deepcopy(body)
        for hook in self.admit:
            body = hook(verb, plural, body)
        return body

    def replace(self, key: Key, body: Object, part: str = "") -> Object:
        """Store a changed object. Only the status changes through the subresource of that name, and only then; but for
        kinds that have no such subresource, as Argo's."""
        old = self.find(key)
        wanted = body.get("metadata", {}).get("resourceVersion")
        if wanted and wanted != old["metadata"]["resourceVersion"]:
            raise Refusal(
                409, "Conflict", f'Operation cannot be fulfilled on {key[0]} "{key[2]}": the object has been modified'
            )
        if part == "status":
            body = {**copy.deepcopy(old), "status": body.get("status", {})}
        elif part == "" and key[0].endswith(WHOLE):
            body = self._admitted("update", key[0], body)
        elif part == "":
            kept = {"status": old["status"]} if "status" in old else {}
            body = self._admitted("update", key[0], {**{k: v for k, v in body.items() if k != "status"}, **kept})
        for name in ("uid", "creationTimestamp", "deletionTimestamp", "namespace", "name"):
            if name in old["metadata"]:
                body["metadata"][name] = old["metadata"][name]
        if body.get("spec") != old.get("spec"):
            body["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
        unchanged = {**body, "metadata": {**body["metadata"], "resourceVersion": old["metadata"]["resourceVersion"]}}
        if unchanged == old:
            return old
        if body["metadata"].get("deletionTimestamp") and not body["metadata"].get("finalizers"):
            return self._remove(key)
        return self._write("MODIFIED", key, body)

    def delete(self, key: Key, options: Object) -> Object:
        old, wanted = self.find(key), options.get("preconditions") or {}
        for name in ("uid", "resourceVersion"):
            if wanted.get(name) not in (None, old["metadata"][name]):
                raise Refusal(409, "Conflict", f"the {name} in the precondition does not match the {name} in record")
        if old["metadata"].get("finalizers"):
            marked = copy.deepcopy(old)
            marked["metadata"].setdefault("deletionTimestamp", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
            return self._write("MODIFIED", key, marked)
        return self._remove(key)

    def _remove(self, key: Key) -> Object:
        gone = self.objects.pop(key)
        self._note("DELETED", key, copy.deepcopy(gone))
        asyncio.get_running_loop().call_later(self.collect_seconds, self._collect, gone["metadata"]["uid"])
        return gone

    def _collect(self, uid: str) -> None:
        """What this owner leaves behind, unless it has another that lives."""
        living = {body["metadata"]["uid"] for body in self.objects.values()}
        for other, body in list(self.objects.items()):
            owners = {owner["uid"] for owner in body["metadata"].get("ownerReferences") or []}
            if other in self.objects and uid in owners and not owners & living:
                self.delete(other, {})

    def _write(self, kind: str, key: Key, body: Object) -> Object:
        self.objects[key] = body
        self._note(kind, key, body)
        return body

    def _note(self, kind: str, key: Key, body: Object) -> None:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        change = Change(self.version, kind, key, copy.deepcopy(body))
        self.log.append(change)
        for observer in self.observers:
            observer(change)
        self._changed.set()
        self._changed = asyncio.Event()

    def compact(self) -> None:
        """Forget the log: every watch that starts from before now is too old."""
        self.compacted = self.version
        self.log.clear()

    def since(self, version: int) -> list[Change]:
        if version < self.compacted:
            raise Refusal(410, "Expired", f"too old resource version: {version} ({self.compacted})")
        return self.log[max(0, version + 1 - self.log[0].version) :] if self.log else []

    async def changed(self, timeout_seconds: float) -> None:
        """Returns at the next change, or after so long."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_seconds)
        except TimeoutError:
            return


def matches(body: Object, labels: str, fields: str) -> bool:
    mine = body["metadata"].get("labels") or {}
    if not all(_has_label(mine, term) for term in terms(labels)):
        return False
    for term in terms(fields):
        name, operator, value = term.partition("!=") if "!=" in term else term.partition("=")
        found: Any = body
        for part in name.split("."):
            found = (found or {}).get(part)
        if (str(found or "") == value.lstrip("=")) is (operator == "!="):
            return False
    return True


def terms(selector: str) -> Iterator[str]:
    """Split at the commas outside brackets."""
    depth, term = 0, ""
    for sign in f"{selector},":
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            if term.strip():
                yield term.strip()
            term = ""
        else:
            term += sign


def _has_label(labels: dict[str, str], term: str) -> bool:
    if " in (" in term or " notin (" in term:
        name, _, values = term.partition(" notin (" if " notin (" in term else " in (")
        is_in = labels.get(name.strip()) in [value.strip() for value in values.rstrip(")").split(",")]
        return is_in is (" notin (" not in term)
    if "!=" in term:
        name, _, value = term.partition("!=")
        return labels.get(name.strip()) != value.strip()
    if "=" in term:
        name, _, value = term.partition("=")
        return labels.get(name.strip()) == value.lstrip("=").strip()
    return term.lstrip("!") not in labels if term.startswith("!") else term in labels


def merge(old: Any, patch: Any) -> Any:
    """A JSON merge patch."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def json_patch(old: Object, operations: list[Object]) -> Object:
    """A JSON patch; `test` refuses with 422 as the API server does."""
    body = copy.deepcopy(old)
    for operation in operations:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        place: Any = body
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place[part]
        index: Any = (len(place) if last == "-" else int(last)) if isinstance(place, list) else last
        if operation["op"] == "test":
            found = place[index] if isinstance(place, list) else place.get(index)
            if found != operation["value"]:
                raise Refusal(422, "Invalid", f"the server rejected our request: testing value {last} failed")
        elif operation["op"] == "remove":
            del place[index]
        elif operation["op"] == "add" and isinstance(place, list):
            place.insert(index, operation["value"])
        else:
            place[index] = operation["value"]
    return body
