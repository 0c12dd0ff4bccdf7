"""`python -m steps.NAME`: one step alone, with inputs from a file."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from steps import failures
from steps.contract import StepInput, StepOutput


def main[I: StepInput](inputs: type[I], run: Callable[[I], StepOutput], arguments: Sequence[str] | None = None) -> int:
    """Run the step as the command line says; its outputs go to standard output as JSON."""
    path: str | None = _parser(inputs, run).parse_args(arguments).inputs
    if path is None:
        return _refuse(inputs, "no inputs: give --inputs FILE, see --help for an example")
    try:
        content = json.loads(sys.stdin.read() if path == "-" else Path(path).read_text())
    except OSError as error:
        return _refuse(inputs, f"cannot read {path}: {error.strerror}")
    except ValueError as error:
        return _refuse(inputs, f"{path} is not JSON: {error}")
    outputs = run(inputs.model_validate(content))
    sys.stdout.write(outputs.model_dump_json(exclude={"exit_code", "result"}) + "\n")
    return 0


def _refuse(inputs: type[StepInput], reason: str) -> int:
    sys.stderr.write(f"{inputs.STEP}: {reason}\n")
    return failures.PERMANENT


def _parser(inputs: type[StepInput], run: Callable[..., Any]) -> argparse.ArgumentParser:
    module = f"steps.{inputs.STEP.replace('-', '_')}"
    fields = "\n".join(
        f"  {name:<12} {' '.join((field.description or '').split())}" for name, field in inputs.model_fields.items()
    )
    example = json.dumps(inputs.EXAMPLE)
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=run.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"inputs:\n{fields}\n\nexample:\n  echo '{example}' > inputs.json\n"
        f"  AGENTIC_WORKSPACE=./workspace python -m {module} --inputs inputs.json\n\n"
        "exit codes: 0 done, 75 trying again may help, 78 it cannot, 130 interrupted",
    )
    parser.add_argument("--inputs", metavar="FILE", help="JSON file with the inputs; - reads standard input")
    return parser
