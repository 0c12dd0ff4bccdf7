"""verl's command line, held by golden files, and the keys that nobody else may set."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from agentic.errors import PermanentError
from agentic.training.overrides import JobPaths, agent_loops, environment_overrides, verl_overrides
from agentic.training.settings import TrainSettings
from agentic.training.sizing import ModelShape, resolve

GOLDEN = Path(__file__).parent / "golden"
SHAPE = ModelShape(parameters=7_615_616_512, attention_heads=28, key_value_heads=4)
TINY = ModelShape(parameters=574_336, attention_heads=4, key_value_heads=4)
PATHS = JobPaths(
    model_dir=Path("/workspace/models/policy"),
    train_file=Path("/workspace/datasets/tasks/train.parquet"),
    validation_files=(Path("/workspace/datasets/tasks/validation/a.parquet"), Path("/workspace/b.parquet")),
    checkpoint_dir=Path("/workspace/runs/r/checkpoints"),
    agent_loop_file=Path("/workspace/runs/r/agent_loops.yaml"),
    audit_file=Path("/workspace/runs/r/trained.jsonl"),
)
CASES = {
    "gpu-grpo": (TrainSettings(), SHAPE),
    "gpu-ppo": (TrainSettings(algorithm="ppo", gpus_per_node=2, sequence_parallel=2, offload=True), SHAPE),
    "cpu-grpo": (
        TrainSettings(
            device="cpu", gpus_per_node=1, dtype="float32", micro_batch_rollouts=64, shuffle_rewards=True, steps=12
        ),
        TINY,
    ),
    "cpu-ppo": (
        TrainSettings(device="cpu", gpus_per_node=1, dtype="float32", micro_batch_rollouts=64, algorithm="ppo"),
        TINY,
    ),
    "cpu-tools": (
        TrainSettings(device="cpu", gpus_per_node=1, dtype="float32", micro_batch_rollouts=64, agent_loop="tool_agent"),
        TINY,
    ),
    "cpu-single-turn": (
        TrainSettings(device="cpu", gpus_per_node=1, dtype="float32", agent_loop="single_turn_agent"),
        TINY,
    ),
}


def render(name: str, **changes: object) -> list[str]:
    train, shape = CASES[name]
    train = train.model_copy(update=changes)
    tool_file = Path("/workspace/runs/r/tool_config.json") if train.agent_loop == "tool_agent" else None
    return verl_overrides(train, resolve(train, shape), PATHS._replace(tool_file=tool_file), run_id="r")


@pytest.mark.parametrize("name", CASES)
def test_the_command_line_is_the_golden_one(name: str, golden: Callable[..., None]) -> None:
    golden(GOLDEN / f"{name}.txt", "\n".join(render(name)) + "\n", parse=str.splitlines)


def test_the_users_overrides_come_last_and_reach_verl_unchanged() -> None:
    mine = ("actor_rollout_ref.actor.entropy_coeff=0.01", "+trainer.my_note=x=y")

    assert render("gpu-grpo", overrides=mine)[-2:] == list(mine)


@pytest.mark.parametrize(
    "override", ["trainer.total_training_steps=3", "+trainer.device=cpu", "~data.seed=1", "data.train_batch_size=8"]
)
def test_an_override_of_a_key_that_a_setting_owns_is_refused_by_name(override: str) -> None:
    key = override.lstrip("+~").partition("=")[0]
    with pytest.raises(PermanentError, match=f"train.overrides sets {key}, which the settings own"):
        render("gpu-grpo", overrides=(override,))


def test_trackers_come_beside_the_log_and_the_file_that_reports_read() -> None:
    assert 'trainer.logger=["console","file"]' in render("gpu-grpo")
    assert 'trainer.logger=["console","file","tensorboard","wandb"]' in render(
        "gpu-grpo", trackers=("tensorboard", "wandb")
    )


def test_scores_may_take_larger_micro_batches_than_training() -> None:
    words = set(render("cpu-grpo", log_prob_micro_batch_rollouts=96))
    assert "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=64" in words
    assert "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=96" in words


def test_an_override_without_a_value_is_refused() -> None:
    with pytest.raises(PermanentError, match="write key=value"):
        render("gpu-grpo", overrides=("trainer.device",))


def test_a_resumed_trainer_validates_only_what_it_is_told_to() -> None:
    train, shape = CASES["cpu-grpo"]
    sizing = resolve(train, shape)

    resumed = verl_overrides(train, sizing, PATHS, run_id="r", validates_first=False)
    assert {"trainer.val_before_train=False", "trainer.val_only=False"} <= set(resumed)
    last = verl_overrides(train, sizing, PATHS, run_id="r", validates_only=True)
    assert {"trainer.val_before_train=True", "trainer.val_only=True"} <= set(last)


@pytest.mark.parametrize(
    "folder", ["/tmp/a b", "/tmp/a,b", "/tmp/(1)", "/tmp/it's", "/tmp/jürgen", "/tmp/a=b&c#d", "/tmp/[x]{y}"]
)
def test_a_workspace_of_any_name_reaches_verl_as_it_is(folder: str) -> None:
    import hydra

    train, shape = CASES["cpu-grpo"]
    here = Path(folder)
    paths = JobPaths(*(here / "x" if isinstance(path, Path) else (here / "v", here / "w") for path in PATHS[:-1]))
    arguments = verl_overrides(train, resolve(train, shape), paths, run_id="r")
    arguments += environment_overrides({"AGENTIC_ROLLOUT_CONFIG": f"{folder}/rollout.json"})
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra.compose("ppo_trainer", overrides=arguments)

    assert config.data.train_files == f"{folder}/x"
    assert list(config.data.val_files) == [f"{folder}/v", f"{folder}/w"]
    assert f"{folder}/rollout.json" == config.ray_kwargs.ray_init.runtime_env.env_vars.AGENTIC_ROLLOUT_CONFIG


@pytest.mark.parametrize("name", CASES)
def test_verl_itself_accepts_every_key(name: str) -> None:
    """verl's own configuration, composed by hydra with our list: an unknown key or a wrong type would raise."""
    import hydra

    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra.compose("ppo_trainer", overrides=render(name))

    assert config.trainer.experiment_name == "r"
    rollout, loop = config.actor_rollout_ref.rollout, CASES[name][0].agent_loop
    assert rollout.agent.default_agent_loop == loop
    assert rollout.multi_turn.enable is (loop == "tool_agent")


@pytest.mark.parametrize("name", CASES)
def test_the_file_of_agent_loops_names_the_one_that_rolls_out(name: str) -> None:
    train = CASES[name][0]
    (entry,) = yaml.safe_load(agent_loops(train))
    assert entry["name"] == train.agent_loop
    module, _, cls = entry["_target_"].rpartition(".")
    source = importlib.util.find_spec(module)
    assert source is not None
    assert f"class {cls}(" in Path(str(source.origin)).read_text()
    assert ("reward_weight" in entry) is (train.agent_loop == "tool_agent")
