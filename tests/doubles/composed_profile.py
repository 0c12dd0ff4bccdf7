"""verl's whole configuration as a job of a profile composes it; a model's size stands for its folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from agentic.training.overrides import JobPaths, verl_overrides
from agentic.training.sizing import ModelShape, resolve
from workflows.settings import Settings, load_settings

PATHS = JobPaths(
    model_dir=Path("/w/models/policy"),
    train_file=Path("/w/train.parquet"),
    validation_files=(Path("/w/validation.parquet"),),
    checkpoint_dir=Path("/w/checkpoints"),
    agent_loop_file=Path("/w/agent_loops.yaml"),
    audit_file=Path("/w/trained.jsonl"),
)


def compose(profile: str, shape: ModelShape, *assignments: str, tool_file: Path | None = None) -> tuple[Settings, Any]:
    """The profile's settings, and what verl reads of them."""
    import hydra

    settings = load_settings(profile, assignments, {})
    paths = PATHS._replace(tool_file=tool_file)
    arguments = verl_overrides(settings.train, resolve(settings.train, shape), paths, run_id="r")
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        return settings, hydra.compose("ppo_trainer", overrides=arguments)


def values_at(config: Any, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What the configuration has under the names of `wanted`."""
    return {name: OmegaConf.select(config, name) for name in wanted}
