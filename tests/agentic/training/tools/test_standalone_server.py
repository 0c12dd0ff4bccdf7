"""The standalone rollout server's configuration, by verl's own composition; its life is in the tutorial `react.md`."""

from pathlib import Path
from typing import Any, Literal

import pytest
from composed_profile import values_at

from agentic.errors import PermanentError
from agentic.training.tools.rollout_server import Server, compose, server_overrides


def test_verl_accepts_the_configuration_of_a_cpu_server() -> None:
    config = compose(Server(Path("/models/it's, (mine)"), device="cpu"))
    rollout = config.actor_rollout_ref.rollout
    assert config.actor_rollout_ref.model.path == "/models/it's, (mine)"
    assert (rollout.name, rollout.mode, rollout.response_length, rollout.load_format) == ("vllm", "async", 4096, "auto")
    assert rollout.engine_kwargs.vllm.enable_auto_tool_choice is True
    assert rollout.engine_kwargs.vllm.tool_call_parser == "hermes"


@pytest.mark.parametrize(
    ("backend", "engine"),
    [
        ("vllm", {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}),
        ("sglang", {"tool_call_parser": "qwen25"}),
    ],
)
def test_verl_accepts_the_guides_configuration_for_qwen3(backend: Literal["vllm", "sglang"], engine: Any) -> None:
    import hydra

    server = Server(Path("Qwen/Qwen3-1.7B"), backend=backend)
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra.compose("ppo_trainer", overrides=server_overrides(server))
    wanted = {
        "name": backend,
        "mode": "async",
        "tensor_model_parallel_size": 1,
        "response_length": 4096,
        "skip_tokenizer_init": False,
        "load_format": "auto",
    }
    rollout = config.actor_rollout_ref.rollout
    assert config.actor_rollout_ref.model.path == "Qwen/Qwen3-1.7B"
    assert values_at(rollout, wanted) == wanted
    assert rollout.engine_kwargs[backend] == engine


def test_a_backend_that_is_not_installed_is_one_line() -> None:
    with pytest.raises(PermanentError, match="backend sglang is not installed here: install it"):
        compose(Server(Path("x"), backend="sglang"))
