"""`JobBuilder`: each image by one Job of the cluster, whose pod runs BuildKit's client over the claim of the data sets.

Owned here: starting Jobs, finding those that a killed caller left running, and what their end means. Builds go on
without us: a Job's name tells run, content and attempt, so whoever comes later waits for it and starts no other.

Invariants: at most one running Job for each content of a shard, and no more running Jobs than `images.parallelism` in
it, those that a killed caller left included; a Job that had ended before we came says nothing about now; BuildKit was
reached from a pod like those that build before the first build starts; a pod that does not start is told by what keeps
it (no room, a missing claim, an image that cannot be pulled), never as a slow build or a silent BuildKit.
"""

import asyncio
import hashlib
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentic.cluster.api import KubeApi
from agentic.cluster.apply import apply
from agentic.cluster.deployments import find_deployment_troubles
from agentic.cluster.errors import AlreadyExistsError, ForbiddenError, WaitTimeoutError, one_line
from agentic.cluster.labels import selector_of_run
from agentic.cluster.objects.buildkit import address, buildkit
from agentic.cluster.objects.image_build import (
    KEY_LABEL,
    SHARD_LABEL,
    TLS_FOLDER,
    TYPE,
    TYPE_LABEL,
    ImageBuild,
    image_build_job,
)
from agentic.cluster.patience import Patience, TroubleClock
from agentic.cluster.resources import EVENTS, JOBS, PODS, JsonObject, name_of
from agentic.cluster.settings import ClusterSettings
from agentic.cluster.troubles import Evidence, Trouble, find_troubles
from agentic.cluster.watching import Watcher
from agentic.images.buildctl import (
    CHECK_SECONDS,
    BuildFailure,
    BuildOrder,
    Client,
    build_command,
    check_command,
    judge_build,
    judge_check,
)
from agentic.images.errors import BuilderRefusedError, BuilderUnavailableError
from agentic.images.settings import ImageSettings

CHECK_KEY = "buildkit"
CHECK_DEADLINE_SECONDS = 120
"""For one look at BuildKit, the pod's start included."""
LOOK_SECONDS = 5.0
"""Between two looks at a pod that does not get on."""
KEPT_SECONDS = 120.0
"""How long the builder's image may fail to be pulled, and what does not pass by itself may keep a pod from starting."""
SETTLE_SECONDS = 10.0
"""A Job's end may be seen before that of its pod."""
NAME_CHARACTERS, DIGEST_CHARACTERS = 30, 10


@dataclass(frozen=True, slots=True)
class _End:
    """How a Job ended."""

    words: str | None = None
    """Its last words, or others' about its end; None when it did its work."""
    kept_by: Trouble | None = None
    """What kept its pod from starting, if it never did."""


class JobBuilder:
    """The real Builder of a cluster; an async context."""

    def __init__(
        self,
        api: KubeApi,
        cluster: ClusterSettings,
        settings: ImageSettings,
        run_id: str,
        shard: str,
        *,
        owner: JsonObject | None = None,
        ca_file: str | None = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """`shard`: the part of the run's images whose Jobs these are; nobody else works at it meanwhile. `owner`:
        a reference to what Jobs go with. `ca_file`: as their pods see it."""
        self._look_seconds = look_seconds
        self._api, self._cluster, self._settings = api, cluster, settings
        self._run_id, self._shard, self._owner = run_id, shard, owner
        self._starting = asyncio.Lock()
        labels = f"{selector_of_run(run_id)},{TYPE_LABEL}={TYPE},{SHARD_LABEL}={shard}"
        self._jobs = Watcher(api, JOBS, namespace=cluster.namespace, labels=labels)
        self._pods = Watcher(api, PODS, namespace=cluster.namespace, labels=labels)
        self._client = Client(
            settings.buildkit_address or address(cluster),
            TLS_FOLDER if settings.buildkit_tls_secret else None,
            ca_file,
        )
        self._ready: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "JobBuilder":
        await self._jobs.start()
        await self._pods.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._ready is not None:
            self._ready.cancel()
            await asyncio.gather(self._ready, return_exceptions=True)
        await self._jobs.close()
        await self._pods.close()

    async def prepare(self) -> None:
        """See `Builder.prepare`."""
        if self._ready is None:
            self._ready = asyncio.create_task(self._prepare(), name="reach BuildKit")
        await asyncio.shield(self._ready)

    async def _prepare(self) -> None:
        if self._settings.buildkit_address is None:
            plain_http = self._settings.registry.plain_http
            for manifest in buildkit(self._cluster, plain_http=plain_http, authorities=self._authorities()):
                await apply(self._api, manifest)
        deadline = time.monotonic() + self._settings.buildkit_start_seconds
        patience = min(KEPT_SECONDS, self._settings.buildkit_start_seconds)
        clock = TroubleClock(Patience(lasting_seconds=patience, passing_seconds=math.inf, absent_seconds=KEPT_SECONDS))
        while True:
            # The first is patient and cannot say why it failed; the second says it.
            end = await self._check(CHECK_SECONDS)
            if end.words is not None and end.kept_by is None:
                end = await self._check(0)
            if end.words is None:
                return
            if end.kept_by is not None:
                self._say_kept(end.kept_by, is_over=time.monotonic() > deadline)
            else:
                kept_by = await self._what_keeps_buildkit(clock)
                self._say_unreached(end.words, kept_by, is_over=time.monotonic() > deadline)
            await asyncio.sleep(self._look_seconds)

    def _authorities(self) -> str | None:
        """Those that builds show are those that the builder itself trusts, when it asks a registry for a token."""
        return None if self._client.ca_file is None else Path(self._client.ca_file).read_text()

    async def _what_keeps_buildkit(self, clock: TroubleClock) -> list[Trouble]:
        """Our own from being there; raises what has lasted and does not pass by itself."""
        if self._settings.buildkit_address is not None:
            return []
        found = await find_deployment_troubles(
            self._api, self._cluster.buildkit.name, namespace=self._cluster.namespace
        )
        clock.fresh(found, time.monotonic())
        overdue = clock.overdue(found, time.monotonic())
        if overdue is not None:
            raise BuilderRefusedError(f"BuildKit does not start in {self._cluster.namespace}: {overdue.line}")
        return found

    def _say_unreached(self, words: str, kept_by: Sequence[Trouble], *, is_over: bool) -> None:
        """Raises what ails every build, at once when waiting cannot help."""
        reason, remedy = judge_check(words)
        where = f"BuildKit at {self._client.address} does not answer pods of {self._cluster.namespace}: {reason}"
        if remedy:
            raise BuilderRefusedError(f"{where}: {remedy}")
        if is_over and kept_by:
            lines = "; ".join(trouble.line for trouble in kept_by)
            raise BuilderUnavailableError(f"BuildKit does not start in {self._cluster.namespace}: {lines}")
        if is_over:
            raise BuilderUnavailableError(
                f"{where}: look at its Deployment and at network policies, or set images.buildkit_address"
            )

    def _say_kept(self, trouble: Trouble, *, is_over: bool) -> None:
        """The same of what keeps the pods of builds from starting."""
        line = f"pods that build images do not start in {self._cluster.namespace}: {trouble.line}"
        if _is_of_pulling(trouble):
            image = self._settings.builder_image or self._cluster.steps_image
            line = f"the image {image} of image-build Jobs cannot be pulled (images.builder_image): {trouble.line}"
        if is_over or not trouble.transient:
            raise (BuilderUnavailableError if trouble.transient else BuilderRefusedError)(line)

    async def _check(self, connect_seconds: int) -> _End:
        command = check_command(self._client, connect_seconds)
        job = await self._start(CHECK_KEY, CHECK_KEY, command, CHECK_DEADLINE_SECONDS)
        return await self._end_of(job)

    async def build(self, order: BuildOrder) -> BuildFailure | None:
        """See `Builder.build`."""
        seconds = self._settings.build_timeout_seconds
        try:
            job = self._running(order.key)
            if job is None:
                async with self._starting:
                    await self._jobs.wait_until(self._has_room, timeout_seconds=seconds)
                    command = build_command(self._client, order, self._settings)
                    job = await self._start(order.key, order.task, command, seconds)
            end = await self._end_of(job)
        except WaitTimeoutError as error:
            return BuildFailure(str(error), may_pass=True)
        if end.kept_by is not None:
            return BuildFailure(f"its pod did not start: {end.kept_by.line}", end.kept_by.transient)
        return None if end.words is None else judge_build(end.words)

    def _running(self, key: str) -> JsonObject | None:
        return next((job for job in self._of(key) if how_ended(job) is None), None)

    def _has_room(self, jobs: Mapping[str, JsonObject]) -> bool | None:
        running = [job for job in jobs.values() if how_ended(job) is None and not _is_check(job)]
        return len(running) < self._settings.parallelism or None

    def _of(self, key: str) -> list[JsonObject]:
        return [job for job in self._jobs.objects.values() if job["metadata"]["labels"].get(KEY_LABEL) == key]

    async def _start(self, key: str, readable: str, command: list[str], deadline_seconds: int) -> JsonObject:
        stem = job_stem(self._run_id, self._shard, key, readable)
        attempts = [int(name_of(job).rpartition("-")[2]) for job in self._of(key)]
        build = ImageBuild(
            name=f"{stem}-{max(attempts, default=0) + 1}",
            run_id=self._run_id,
            shard=self._shard,
            key=key,
            command=command,
            image=self._settings.builder_image or self._cluster.steps_image,
            deadline_seconds=deadline_seconds,
            keep_seconds=self._settings.keep_jobs_seconds,
            login_secret=self._settings.registry.secret or self._cluster.image_pull_secret,
            tls_secret=self._settings.buildkit_tls_secret,
            has_workspace=self._client.ca_file is not None,
            owner=self._owner,
        )
        try:
            job = await self._api.create(JOBS, image_build_job(self._cluster, build), namespace=self._cluster.namespace)
        except AlreadyExistsError:
            job = await self._api.get(JOBS, build.name, namespace=self._cluster.namespace)
        self._jobs.remember(job)
        return job

    async def _end_of(self, job: JsonObject) -> _End:
        """Waits for it. Raises what would keep every other build's pod from starting, when that has lasted."""
        name, kept_by, kept_since = name_of(job), None, 0.0
        deadline = time.monotonic() + int(job["spec"]["activeDeadlineSeconds"]) + KEPT_SECONDS
        while True:
            try:
                ended = await self._jobs.wait_for(name, _ended_or_gone, timeout_seconds=self._look_seconds)
            except WaitTimeoutError:
                kept_by = await self._what_keeps(name)
                is_lasting = kept_by is not None and (_is_of_pulling(kept_by) or not kept_by.transient)
                kept_since = (kept_since or time.monotonic()) if is_lasting else 0.0
                patience = min(KEPT_SECONDS, self._settings.buildkit_start_seconds)
                if kept_by is not None and is_lasting and time.monotonic() - kept_since > patience:
                    self._say_kept(kept_by, is_over=True)
                if time.monotonic() > deadline:
                    raise WaitTimeoutError(f"the Job {name} does not end: look at the cluster's controllers") from None
                continue
            if ended == "Complete":
                return _End()
            return _End(await self._last_words(name, ended), kept_by if ended.startswith("DeadlineExceeded") else None)

    async def _what_keeps(self, job: str) -> Trouble | None:
        """A Job's pod from starting, in the words of whoever does; None when it runs, or is on its way."""
        pod = self._pod(job)
        if pod is not None and (pod.get("status") or {}).get("phase", "Pending") != "Pending":
            return None
        fields = f"involvedObject.name={job if pod is None else name_of(pod)}"
        try:
            events = (await self._api.list(EVENTS, namespace=self._cluster.namespace, fields=fields)).items
        except ForbiddenError:
            events = ()
        found = find_troubles(Evidence(pods=[] if pod is None else [{"kind": PODS.kind, **pod}], events=events))
        return next(iter(found), None)

    def _pod(self, job: str) -> JsonObject | None:
        of_job = [pod for pod in self._pods.objects.values() if pod["metadata"]["labels"].get("job-name") == job]
        return max(of_job, key=lambda pod: str(pod["metadata"].get("creationTimestamp")), default=None)

    async def _last_words(self, job: str, ended: str) -> str:
        if ended.startswith("DeadlineExceeded"):
            return f"error: it took longer than its {self._jobs.objects[job]['spec']['activeDeadlineSeconds']} s"
        if job not in self._jobs.objects:
            return _gone(ended)
        try:
            return await self._pods.wait_until(lambda _: _words_of(self._pod(job)), timeout_seconds=SETTLE_SECONDS)
        except WaitTimeoutError:
            return _gone(ended)


def _is_check(job: JsonObject) -> bool:
    return bool(job["metadata"]["labels"].get(KEY_LABEL) == CHECK_KEY)


def job_stem(run_id: str, shard: str, key: str, readable: str) -> str:
    """A Job's name but for the number of the attempt."""
    digest = hashlib.sha256("\0".join([run_id, shard, key]).encode()).hexdigest()[:DIGEST_CHARACTERS]
    words = re.sub(r"[^a-z0-9]+", "-", readable.lower()).strip("-")[:NAME_CHARACTERS].strip("-")
    return f"build-{words or 'image'}-{digest}"


def how_ended(job: JsonObject) -> str | None:
    """`Complete`, why it failed, or None while it runs."""
    for condition in job.get("status", {}).get("conditions") or []:
        if condition.get("status") == "True" and condition.get("type") in ("Complete", "Failed"):
            is_done = condition["type"] == "Complete"
            return "Complete" if is_done else f"{condition.get('reason')}: {condition.get('message', '')}"
    return None


def _ended_or_gone(job: JsonObject | None) -> str | None:
    return "its Job was deleted" if job is None else how_ended(job)


def _gone(ended: str) -> str:
    """Words that `judge_build` takes for what may pass: whatever took the pod away was not the build."""
    return f"error: the build's pod is gone, code = Unavailable ({ended})"


def _words_of(pod: JsonObject | None) -> str | None:
    """What a pod that failed leaves; None while it has not ended, or there is none."""
    status: Mapping[str, object] = (pod or {}).get("status", {})
    if status.get("phase") != "Failed":
        return None
    if reason := status.get("reason"):
        return f"error: the build's pod was lost, code = Unavailable ({reason}: {one_line(str(status.get('message')))})"
    ended = _state(pod).get("terminated") or {}
    if ended.get("reason") == "OOMKilled" or not ended.get("message"):
        return f"error: the build's client was killed, code = Unavailable ({ended.get('reason')})"
    return str(ended["message"])


def _is_of_pulling(trouble: Trouble) -> bool:
    return trouble.name.startswith(("image-", "registry-"))


def _state(pod: JsonObject | None) -> JsonObject:
    statuses = (pod or {}).get("status", {}).get("containerStatuses") or [{}]
    return dict(statuses[0].get("state") or {})
