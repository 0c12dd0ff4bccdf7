"""`python -m agentic.rollout run TASK --agent NAME --model URL`: one trial by hand, graded like any other.

Arguments are read before anything heavy is imported, so `--help` is quick.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentic.errors import AgenticError, PermanentError
from agentic.rollout.agents.names import AGENTS

LOCAL = "bubblewrap"

EXAMPLES = """\
examples:
  without a model, replies from a file (a YAML list of texts; a reply of the agent `shell` is one ```bash block):
    python -m agentic.rollout run tasks/interval-merge-order --agent shell --model scripted:replies.yaml

  the policy that a vLLM or SGLang server holds:
    vllm serve models/policy --logprobs-mode processed_logprobs --port 8000
    python -m agentic.rollout run tasks/lru-cache-recency --agent mini-swe-agent \\
        --model http://127.0.0.1:8000 --tokenizer models/policy --key-env MODEL_KEY

  with other settings than the defaults:
    python -m agentic.rollout run TASK --agent shell --model URL --tokenizer DIR \\
        --set rollout.agent.max_turns=20 --set rollout.deadline_seconds=900 --set sandbox.memory_mb=2048

Unless set, the trial's clock is that of the task (`timeout_sec` of agent and tests), and an agent of ours may give 30
replies of 2048 tokens.

exit codes: 0 solved, 1 not solved, 75 lost to infrastructure (try again), 78 something has to be changed
"""


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m agentic.rollout", description="Rollouts by hand.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="run one trial and grade it",
        description="Run one trial of a task and grade it. Progress goes to standard error.",
        epilog=EXAMPLES,
        formatter_class=raw,
    )
    add = run.add_argument
    add("task", type=Path, metavar="TASK", help="a task's folder in Harbor's format")
    add("--agent", required=True, choices=sorted(AGENTS), metavar="NAME", help=", ".join(sorted(AGENTS)))
    add("--model", required=True, metavar="URL", help="a vLLM or SGLang server, or scripted:FILE")
    add("--model-name", metavar="NAME", help="what the server calls the model (default: its only one)")
    add("--tokenizer", type=Path, metavar="DIR", help="Hugging Face folder of the served model")
    add("--key-env", metavar="VAR", help="environment variable that holds the server's key")
    add("--out", type=Path, default=Path("trials"), metavar="DIR", help="where the trial's folder goes (%(default)s)")
    add("--sandbox", default="local", metavar="NAME", help=f"local ({LOCAL}), podman, docker, pod, ... (%(default)s)")
    add("--images", type=Path, metavar="DIR", help="root-folder store of images (default: OUT/.images)")
    add("--temperature", type=_temperature, default=0.0, help="of sampling (%(default)s)")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="a rollout.* or sandbox.* setting; repeatable")
    add("--json", action="store_true", help="print the result as JSON")
    return parser.parse_args(words)


def _temperature(word: str) -> float:
    value = float(word)
    if not 0.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{word} is no temperature: give 0 or more")
    return value


def main(words: Sequence[str] | None = None) -> int:
    """Run it and give the exit code."""
    options = parse(words)
    from agentic.rollout.by_hand import exit_code_of

    try:
        return _run(options)
    except AgenticError as error:
        sys.stderr.write(f"{error}\n")
        return exit_code_of(error)
    except KeyboardInterrupt:
        return 130


def _run(options: argparse.Namespace) -> int:
    from agentic.rollout.by_hand import ByHand, read_settings, run_by_hand

    sandbox = LOCAL if options.sandbox == "local" else options.sandbox
    task = options.task.absolute()
    rollout, sandbox_settings = read_settings(options.agent, sandbox, options.set, task)
    out = options.out.absolute()
    order = ByHand(
        task=task,
        model=options.model,
        tokenizer=options.tokenizer,
        model_name=options.model_name,
        key_variable=options.key_env,
        out=out,
        images=(options.images or out / ".images").absolute(),
        settings=rollout,
        sandbox=sandbox_settings,
        temperature=options.temperature,
    )
    report = asyncio.run(run_by_hand(order, _build_image, lambda line: _say(line)))
    data = report.as_data()
    lines = [json.dumps(data)] if options.json else [f"{name:8} {value}" for name, value in data.items()]
    sys.stdout.write("\n".join(lines) + "\n")
    return report.exit_code


async def _build_image(task: Path, store: Path, sandbox: Any) -> None:
    from agentic.images.local import build_images
    from agentic.images.settings import ImageSettings
    from agentic.sandbox.providers import open_store

    if sandbox.provider in ("pod", "kruise", "agent-sandbox"):
        return  # Their nodes pull images by name.
    (result,) = await build_images([task], open_store(store, sandbox), ImageSettings(), sandbox)
    if result.status == "failed":
        raise PermanentError(f"the image of {task.name} could not be built: {result.reason}")


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
