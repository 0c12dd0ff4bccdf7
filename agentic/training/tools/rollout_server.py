"""verl's rollout server alone: an OpenAI API over one policy, composed from verl's own configuration.

    python -m agentic.training.tools.rollout_server MODEL_FOLDER --device cpu

Prints the server's address once it answers, and runs until Ctrl-C or SIGTERM. Tool calls are read by the engine itself
(automatic tool choice), by the parser of the policy's family. `--backend sglang` needs SGLang installed.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from agentic.errors import AgenticError, PermanentError, TransientError
from agentic.training.environment import cpu_environment
from agentic.training.overrides import MODEL, ROLLOUT, cpu_overrides, quoted
from agentic.training.settings import TrainSettings

PARSERS = {"vllm": "hermes", "sglang": "qwen25"}
"""What each backend calls the reader of `<tool_call>{...}</tool_call>`."""
OBJECT_STORE_BYTES = 200_000_000
LOGICAL_CPUS = 8


class Server(NamedTuple):
    """What to serve."""

    model_dir: Path
    backend: Literal["vllm", "sglang"] = "vllm"
    device: Literal["cuda", "cpu"] = "cuda"
    prompt_tokens: int = 1024
    response_tokens: int = 4096
    parser: str | None = None
    """`None` is the backend's own for Hermes and Qwen."""


def server_overrides(server: Server) -> list[str]:
    """What differs from verl's own `ppo_trainer` configuration."""
    train = TrainSettings(device=server.device, max_prompt_tokens=server.prompt_tokens)
    engine = f"+{ROLLOUT}.engine_kwargs.{server.backend}"
    values: dict[str, Any] = {
        f"{MODEL}.path": quoted(str(server.model_dir)),
        f"{ROLLOUT}.name": server.backend,
        f"{ROLLOUT}.mode": "async",
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
        f"{ROLLOUT}.prompt_length": server.prompt_tokens,
        f"{ROLLOUT}.response_length": server.response_tokens,
        f"{ROLLOUT}.max_model_len": min(server.prompt_tokens + server.response_tokens, _context(server.model_dir)),
        f"{ROLLOUT}.skip_tokenizer_init": False,
        f"{ROLLOUT}.load_format": "auto",
        f"{engine}.tool_call_parser": server.parser or PARSERS[server.backend],
    }
    if server.backend == "vllm":
        values[f"{engine}.enable_auto_tool_choice"] = True
    if server.device == "cpu":
        values |= cpu_overrides(train) | {f"{ROLLOUT}.dtype": "float32"}
    return [f"{key}={value}" for key, value in values.items()]


def _context(model_dir: Path) -> int:
    """Tokens that the model takes, where its folder says so."""
    path = model_dir / "config.json"
    config = json.loads(path.read_text()) if path.is_file() else {}
    return int(config.get("max_position_embeddings", sys.maxsize))


def compose(server: Server) -> Any:
    """verl's whole configuration for it.

    Raises:
        PermanentError: the backend is not installed.
    """
    import hydra

    if importlib.util.find_spec(server.backend) is None:
        raise PermanentError(f"backend {server.backend} is not installed here: install it, or take --backend vllm")
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        return hydra.compose("ppo_trainer", overrides=server_overrides(server))


@asynccontextmanager
async def serve(server: Server) -> AsyncIterator[str]:
    """The base URL of a running server, such as `http://127.0.0.1:4711/v1`; Ray ends with it.

    To be the only Ray cluster of its process. Without a GPU the environment of the process is set for verl's platform
    plug-in, which is read when verl is imported first.
    """
    variables = cpu_environment(threads=2) if server.device == "cpu" else {}
    os.environ.update(variables)
    config = compose(server)
    import ray

    ray.init(
        num_cpus=LOGICAL_CPUS,
        num_gpus=1 if server.device == "cpu" else None,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        runtime_env={"env_vars": variables},
        log_to_driver=False,
    )
    try:
        replica = await _start(config)
        yield f"http://{replica.server_address}/v1"
    finally:
        ray.shutdown()


async def _start(config: Any) -> Any:
    from verl.workers.rollout.replica import get_rollout_replica_class

    rollout = config.actor_rollout_ref.rollout
    replica = get_rollout_replica_class(rollout.name)(
        replica_rank=0, config=rollout, model_config=config.actor_rollout_ref.model, gpus_per_node=1
    )
    await replica.init_standalone()
    return replica


def parse() -> Server:
    """The command line."""
    parser = argparse.ArgumentParser("python -m agentic.training.tools.rollout_server", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model_dir", type=Path, help="a Hugging Face folder")
    parser.add_argument("--backend", choices=["vllm", "sglang"], default="vllm")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--response-tokens", type=int, default=4096)
    parser.add_argument("--parser", help="of tool calls; the default is that of Hermes and Qwen")
    return Server(**vars(parser.parse_args()))


async def listen(server: Server) -> None:
    """Serve until told to end."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with serve(server) as url:
        for number in (signal.SIGTERM, signal.SIGINT):  # after Ray, which has handlers of its own
            loop.add_signal_handler(number, ended.set)
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        await ended.wait()


def main() -> int:
    """0 after Ctrl-C or SIGTERM, else an error's line and exit code."""
    try:
        asyncio.run(listen(parse()))
    except AgenticError as error:
        sys.stderr.write(f"{error}\n")
        return 75 if isinstance(error, TransientError) else 78
    return 0


if __name__ == "__main__":
    sys.exit(main())
