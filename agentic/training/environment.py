"""Environment variables of the trainer, of Ray and of the engine. Pure.

Ray's workers inherit the environment of the process that started the head, not the trainer's, so the same variables are
given to both; what is the trainer's alone reaches its workers by the job's own environment.
"""

from pathlib import Path

from agentic.processes import marks
from agentic.rollout.agent_loop_config import CONFIG_VARIABLE
from agentic.training.head_job import OUTPUT_VARIABLE

STOP_WAIT_SECONDS = 60
"""What a job on a Ray cluster gets to end in good order."""

CONTAINER_OUTPUT = "/proc/1/fd/1"
"""Standard output of a container's first process, which `kubectl logs` shows."""


def base_environment(run_id: str, workspace: Path) -> dict[str, str]:
    """What every process of a run gets: its marks, no telemetry, no hub, no usage reports."""
    return {
        **marks(run_id, workspace),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "HARBOR_TELEMETRY": "0",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "TOKENIZERS_PARALLELISM": "false",
        "HYDRA_FULL_ERROR": "1",
    }


def ray_environment(run_id: str, workspace: Path, token_file: Path) -> dict[str, str]:
    """For Ray's own processes and whoever connects to them."""
    return {
        **base_environment(run_id, workspace),
        # Whoever reaches a head can run code in it. Ray's default depends on a file in the user's home that other Ray
        # programs make; a token of the run's own is there for head and trainer alike, whatever else ran before.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        # Ray adds 15 to its workers' niceness; beside any other process they then starve (25.9 s against 6.4 s a step).
        "RAY_worker_niceness": "0",
        "RAY_DEDUP_LOGS": "0",
        # Ray would hide the (absent) GPUs from workers and warns about it at each start.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


def head_environment(run_id: str, workspace: Path, token_file: Path, *, device: str, threads: int) -> dict[str, str]:
    """For the pods of a Ray cluster of this run, hence for all workers in them and for its jobs."""
    variables = {
        **ray_environment(run_id, workspace, token_file),
        # Ray kills a job that was told to end after three seconds of its own; a trainer ends its children first.
        "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_SECONDS),
        OUTPUT_VARIABLE: CONTAINER_OUTPUT,
        # No Grafana stands beside the dashboard; without this it waits for one.
        "RAY_GRAFANA_HOST": "DISABLED",
    }
    return variables | (cpu_environment(threads) if device == "cpu" else {})


def cpu_environment(threads: int, *, has_critic: bool = False) -> dict[str, str]:
    """For verl and vLLM without a GPU; see `agentic.training.platform`."""
    modules = ["agentic.training.platform.cpu", *(["agentic.training.platform.critic"] if has_critic else [])]
    return {
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": ",".join(modules),
        "VERL_ENGINE_DEVICE": "cuda",
        # Compilation would take longer than a short run trains.
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
    }


def trainer_environment(
    run_id: str,
    workspace: Path,
    *,
    device: str,
    threads: int,
    token_file: Path,
    rollout_config: Path,
    metrics: Path,
    has_critic: bool = False,
) -> dict[str, str]:
    """For `verl.trainer.main_ppo` and every Ray worker that it starts."""
    variables = {
        **ray_environment(run_id, workspace, token_file),
        CONFIG_VARIABLE: str(rollout_config),
        "VERL_FILE_LOGGER_PATH": str(metrics),
    }
    return variables | (cpu_environment(threads, has_critic=has_critic) if device == "cpu" else {})
