"""ProxyServerActor on a real Ray, in front of verl's own client; run as a program by test_proxy_on_ray.py.

Real are Ray, verl's client, its load balancer and the proxy; `verl_server` stands for vLLM. Prints what was seen.
"""

import asyncio
import functools
import json
import sys
from typing import Any

import aiohttp
import ray
from omegaconf import OmegaConf
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.router import GlobalRequestLoadBalancer
from verl_server import ScriptedServer

from agentic.proxy import ProxySettings, Sampling, SessionSpec
from agentic.proxy.actor import ProxyServerActor
from agentic.proxy.engines.verl_client import VerlClientEngine

CLIENTS = {"base": LLMServerClient, "resuming": FullyAsyncLLMServerClient}
LIMIT = 20
HOLDS = {0: 8, 2: 4}
"""The first call waits for new weights after 8 tokens, the one after its rest for its client to go."""
NOTICED_SECONDS = 1.0
"""For the proxy to see that a client has gone."""


def make_client(kind: str, server: Any) -> LLMServerClient:
    """verl's client, as its agent loops have it."""
    balancer = ray.remote(GlobalRequestLoadBalancer).remote({"server-0": server})
    rollout = {"name": "vllm", "full_determinism": False, "response_length": 1000}
    return CLIENTS[kind](OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}}), balancer)


async def drive(kind: str, tokenizer: str) -> dict[str, Any]:
    """Each of the actor's calls once; weights that change in the middle; a client that goes away."""
    server = ray.remote(ScriptedServer).remote(HOLDS)
    engine = functools.partial(VerlClientEngine, make_client(kind, server))
    settings = ProxySettings(abandon_grace_seconds=0)
    actor = ray.remote(ProxyServerActor).remote(settings, engine, tokenizer)
    seen: dict[str, Any] = {"where": sorted(await actor.start.remote())}
    async with aiohttp.ClientSession() as http:
        handle = await actor.open.remote(a_spec())
        asking = asyncio.create_task(chat(http, handle, "hi"))
        await until_waiting(server, 1)
        await server.change_weights.remote(4)
        seen["reply"] = await asking
        leaving = asyncio.create_task(chat(http, handle, "bye"))
        await until_waiting(server, 2)
        seen["running"] = (await actor.metrics.remote()).calls_running
        leaving.cancel()
        await asyncio.sleep(NOTICED_SECONDS)
        await server.go_on.remote()
        seen["heartbeat"] = (await actor.heartbeat.remote("r1")).session_id
        seen["listed"] = [info.session_id for info in await actor.list.remote()]
        seen["paused"] = [(await actor.pause.remote()).paused, (await actor.resume.remote(None)).paused]
        seen["graph"] = "r1" in seen["listed"] and bool(await actor.describe.remote("r1"))
        sealed = await actor.seal.remote("r1")
    seen["fetched"] = await actor.fetch.remote("r1") == sealed
    await actor.drop.remote("r1")
    seen |= {"complete": sealed.complete, "cut": sealed.cut, "undelivered": sealed.undelivered_tokens}
    rows = [list(zip(t.response_ids, t.response_mask, t.versions, strict=True)) for t in sealed.trajectories]
    seen["sampled"] = [[row for row in each if row[2] >= 0] for each in rows]
    seen["requests"] = await server.asked.remote()
    await actor.stop.remote()
    return seen


async def until_waiting(server: Any, count: int) -> None:
    """Until so many requests have come to where they wait."""
    while await server.waiting.remote() < count:
        await asyncio.sleep(0.02)


def a_spec() -> SessionSpec:
    """Room for a few calls."""
    sampling = Sampling(temperature=1.0, max_tokens=LIMIT)
    return SessionSpec(session_id="r1", sampling=sampling, max_prompt_tokens=500, max_response_tokens=500, max_calls=9)


async def chat(http: aiohttp.ClientSession, handle: Any, text: str) -> int:
    """One request; how many tokens its reply has."""
    key, body = {"Authorization": f"Bearer {handle.api_key}"}, {"messages": [{"role": "user", "content": text}]}
    async with http.post(f"{handle.base_url}/chat/completions", json=body, headers=key) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return int(answer["usage"]["completion_tokens"])


async def main(tokenizer: str) -> dict[str, Any]:
    """With both of verl's clients."""
    return {kind: await drive(kind, tokenizer) for kind in CLIENTS}


if __name__ == "__main__":
    ray.init(num_cpus=6, include_dashboard=False, log_to_driver=False)
    sys.stdout.write(json.dumps(asyncio.run(main(sys.argv[1]))) + "\n")
    ray.shutdown()
