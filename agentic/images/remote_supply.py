"""The images of tasks whose sandboxes are pods, put together from its parts: registries, a builder, and the record.

The record is a file of JSON lines in the run's folder, one a result; a run's sandboxes start from what it says
(`agentic.sandbox.images.PinnedImages`).
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from agentic import json_lines
from agentic.cluster.resources import JsonObject
from agentic.cluster.settings import ClusterSettings
from agentic.images.direct_builder import DirectBuilder
from agentic.images.registry import Registry
from agentic.images.registry_login import Logins
from agentic.images.remote import RemoteImage
from agentic.images.settings import ImageSettings
from agentic.images.supply import Builder, ImageResult, Progress, Supply
from agentic.sandbox.settings import KubeSandbox


@dataclass(frozen=True, slots=True)
class SupplyOrder:
    """One shard's work."""

    run_id: str
    shard: str
    """Name of the part; one process at a time works at it."""
    images: ImageSettings
    sandbox: KubeSandbox
    cluster: ClusterSettings
    record: Path
    """Where results are appended."""
    owner: JsonObject | None = None
    """Reference to what Jobs go with."""


async def supply_images(order: SupplyOrder, images: Sequence[RemoteImage], on_progress: Progress) -> list[ImageResult]:
    """Look for all, build what is missing, record each."""

    def record(result: ImageResult) -> None:
        json_lines.append(order.record, [json.dumps(asdict(result))])

    done = 0

    def tell(so_far: int, total: int, line: str) -> None:
        nonlocal done
        done = so_far
        on_progress(so_far, total, line)

    def on_wait(line: str) -> None:
        on_progress(done, len(images), line)

    bases = dict.fromkeys(order.images.base_images, order.sandbox.base_image)
    async with (
        Registry(order.images.registry, Logins.read(), on_wait) as registry,
        _open_builder(order) as builder,
    ):
        supply = Supply(registry, builder, order.images, bases, on_result=record, on_progress=tell)
        return await supply.see_to(images)


@asynccontextmanager
async def _open_builder(order: SupplyOrder) -> AsyncIterator[Builder]:
    ca_file = order.images.registry.ca_file
    if order.images.builder == "direct":
        yield DirectBuilder(order.images, ca_file=ca_file)
        return
    from agentic.cluster.client import KubeClient
    from agentic.cluster.credentials import LoadedCredentials
    from agentic.images.job_builder import JobBuilder

    async with (
        KubeClient(LoadedCredentials(), namespace=order.cluster.namespace) as client,
        JobBuilder(
            client, order.cluster, order.images, order.run_id, order.shard, owner=order.owner, ca_file=ca_file
        ) as builder,
    ):
        yield builder
