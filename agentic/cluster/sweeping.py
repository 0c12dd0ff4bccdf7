"""Applying what a run needs and removing what it left, by label; both may be repeated and run beside others."""

import asyncio
from collections.abc import Callable, Sequence

from agentic.cluster.api import KubeApi, Propagation
from agentic.cluster.errors import NotFoundError
from agentic.cluster.resources import JsonObject, Resource, name_of, uid_of


async def sweep(
    api: KubeApi,
    kinds: Sequence[Resource],
    labels: str,
    *,
    spared: Callable[[JsonObject], bool] = lambda body: False,
    propagation: Propagation = "Background",
) -> list[str]:
    """Delete what carries the labels; what was there, as `kind/name`. A kind that the cluster does not have holds
    nothing. An object that was deleted and made anew meanwhile is left alone."""
    if not labels:
        raise ValueError("sweeping needs labels: without them it would be everything in the namespace")
    swept = []
    for kind in kinds:
        try:
            found = (await api.list(kind, labels=labels)).items
        except NotFoundError:
            continue
        doomed = [body for body in found if not spared(body)]
        gone = await asyncio.gather(
            *(api.delete(kind, name_of(body), uid=uid_of(body), propagation=propagation) for body in doomed)
        )
        swept += [f"{kind.plural}/{name_of(body)}" for body, was_there in zip(doomed, gone, strict=True) if was_there]
    return swept
