"""The standalone rollout server's configuration, by verl's own composition; its life is in the tutorial `react.md`."""

from pathlib import Path

import pytest

from agentic.errors import PermanentError
from agentic.training.tools.rollout_server import Server, compose, server_overrides


def test_verl_accepts_the_configuration_of_a_cpu_server() -> None:
    config = compose(Server(Path("/models/it's, (mine)"), device="cpu"))
    rollout = config.actor_rollout_ref.rollout
    assert config.actor_rollout_ref.model.path == "/models/it's, (mine)"
    assert (rollout.name, rollout.mode, rollout.response_length, rollout.load_format) == ("vllm", "async", 4096, "auto")
    assert rollout.engine_kwargs.vllm.enable_auto_tool_choice is True
    assert rollout.engine_kwargs.vllm.tool_call_parser == "hermes"


def test_verl_accepts_the_guides_configuration_for_qwen_and_sglang() -> None:
    import hydra

    server = Server(Path("Qwen/Qwen3-1.7B"), backend="sglang")
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra.compose("ppo_trainer", overrides=server_overrides(server))
    rollout = config.actor_rollout_ref.rollout
    assert (rollout.name, rollout.skip_tokenizer_init) == ("sglang", False)
    assert rollout.engine_kwargs.sglang.tool_call_parser == "qwen25"


def test_a_backend_that_is_not_installed_is_one_line() -> None:
    with pytest.raises(PermanentError, match="backend sglang is not installed here: install it"):
        compose(Server(Path("x"), backend="sglang"))
