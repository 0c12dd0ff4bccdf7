"""`JobBuilder`: each image by one Job of the cluster, whose pod runs BuildKit's client over the claim of the data sets.

Owned here: starting Jobs, finding those that a killed caller left running, and what their end means. Builds go on
without us: a Job's name tells run, content and attempt, so whoever comes later waits for it and starts no other.

Invariants: at most one running Job for each content of a shard, and no more running Jobs than `images.parallelism` in
it, those that a killed caller left included; a Job that had ended before we came says nothing about now; BuildKit was
reached from a pod like those that build before the first build starts.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import Mapping

from agentic.cluster.api import KubeApi
from agentic.cluster.apply import apply
from agentic.cluster.errors import AlreadyExistsError, WaitTimeoutError, one_line
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
from agentic.cluster.resources import JOBS, PODS, JsonObject, name_of
from agentic.cluster.settings import ClusterSettings
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
UNPULLABLE_SECONDS = 120.0
"""How long the builder's image may fail to be pulled."""
SETTLE_SECONDS = 10.0
"""A Job's end may be seen before that of its pod."""
NAME_CHARACTERS, DIGEST_CHARACTERS = 30, 10
_UNPULLABLE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})


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
    ) -> None:
        """`shard`: the part of the run's images whose Jobs these are; nobody else works at it meanwhile. `owner`:
        a reference to what Jobs go with. `ca_file`: as their pods see it."""
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
            for manifest in buildkit(self._cluster, plain_http=self._settings.registry.plain_http):
                await apply(self._api, manifest)
        deadline = time.monotonic() + self._settings.buildkit_start_seconds
        while True:
            # The first is patient and cannot say why it failed; the second says it.
            if await self._check(CHECK_SECONDS) is None or (words := await self._check(0)) is None:
                return
            reason, remedy = judge_check(words)
            where = f"BuildKit at {self._client.address} does not answer pods of {self._cluster.namespace}: {reason}"
            if remedy:
                raise BuilderRefusedError(f"{where}: {remedy}")
            if time.monotonic() > deadline:
                raise BuilderUnavailableError(
                    f"{where}: look at its Deployment and at network policies, or set images.buildkit_address"
                )
            await asyncio.sleep(LOOK_SECONDS)

    async def _check(self, connect_seconds: int) -> str | None:
        """None when it was reached, else the client's words."""
        command = check_command(self._client, connect_seconds)
        job = await self._start(CHECK_KEY, CHECK_KEY, command, CHECK_DEADLINE_SECONDS)
        return await self._words_at_end(job)

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
            words = await self._words_at_end(job)
        except WaitTimeoutError as error:
            return BuildFailure(str(error), may_pass=True)
        return None if words is None else judge_build(words)

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

    async def _words_at_end(self, job: JsonObject) -> str | None:
        """None when it did its work, else its last words, or others' about its end."""
        name, unpullable_since = name_of(job), 0.0
        deadline = time.monotonic() + int(job["spec"]["activeDeadlineSeconds"]) + UNPULLABLE_SECONDS
        while True:
            try:
                ended = await self._jobs.wait_for(name, _ended_or_gone, timeout_seconds=LOOK_SECONDS)
            except WaitTimeoutError:
                trouble = _why_unpullable(self._pod(name))
                unpullable_since = (unpullable_since or time.monotonic()) if trouble else 0.0
                if trouble and time.monotonic() - unpullable_since > UNPULLABLE_SECONDS:
                    raise BuilderRefusedError(self._unpullable(trouble)) from None
                if time.monotonic() > deadline:
                    raise WaitTimeoutError(f"the Job {name} does not end: look at the cluster's controllers") from None
                continue
            return None if ended == "Complete" else await self._last_words(name, ended)

    def _unpullable(self, trouble: str) -> str:
        image = self._settings.builder_image or self._cluster.steps_image
        return f"the image {image} of image-build Jobs cannot be pulled ({trouble}): set images.builder_image"

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


def _why_unpullable(pod: JsonObject | None) -> str:
    waiting = _state(pod).get("waiting") or {}
    return one_line(str(waiting.get("message") or waiting["reason"])) if waiting.get("reason") in _UNPULLABLE else ""


def _state(pod: JsonObject | None) -> JsonObject:
    statuses = (pod or {}).get("status", {}).get("containerStatuses") or [{}]
    return dict(statuses[0].get("state") or {})
