"""The command line: render the workflow, run it on this machine, or submit it to Argo.

Nothing heavy is imported before the arguments are understood, so that help answers at once. When the packages are not
installed for the Python that runs this, it goes on with the project's own `.venv`.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]

PERMANENT = 78

EXAMPLES = """\
verbs:
  submit             compile the workflow and create it in the cluster that kubectl uses (the default)
  local              compile it and run it on this machine; short for submit --target local
  render             print the compiled Workflow as YAML
  plan               say what would run, how large, and what is there already; starts nothing
  status RUN         how far a local run has come
  logs RUN STEP      what a step of a local run has printed

settings:
  section.key=value, such as train.steps=4 or sandbox.provider=podman; docs/settings.md lists them all.
  They override AGENTIC__SECTION__KEY, which overrides the profile, which overrides the defaults.

examples:
  python3 workflows/submit.py local --profile demo
  python3 workflows/submit.py local --profile demo --run-id first train.steps=4
  python3 workflows/submit.py render --profile demo > workflow.yaml
  python3 workflows/submit.py plan
  python3 workflows/submit.py submit cluster.namespace=rl train.rollouts_per_prompt=8
  python3 workflows/submit.py logs first train

exit codes: 0 done, 75 trying again may help, 78 it cannot, 130 interrupted
"""


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; the exit code."""
    options, settings = parse(arguments)
    _ensure_packages(arguments)
    sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]
    from agentic.errors import AgenticError
    from steps import failures
    from workflows import verbs
    from workflows.request import Request

    actions: dict[str, Callable[[Request], int]] = {
        "submit": verbs.submit,
        "local": verbs.run_local,
        "render": verbs.render,
        "plan": verbs.plan,
        "status": verbs.status,
        "logs": verbs.logs,
    }
    verb = "local" if options.verb == "submit" and options.target == "local" else options.verb
    request = Request(
        verb=verb,
        profile=options.profile,
        run_id=options.run_id,
        start_from=options.start_from,
        words=tuple(word for word in settings if "=" not in word),
        settings=tuple(word for word in settings if "=" in word),
    )
    try:
        return actions[verb](request)
    except (AgenticError, OSError, ExceptionGroup) as error:
        failure = failures.classify(error)
        if isinstance(error, ExceptionGroup) and not failure.expected:
            traceback.print_exc()
        print(failure.line, file=sys.stderr)
        return failure.exit_code
    except KeyboardInterrupt:
        return failures.INTERRUPTED


class _Parser(argparse.ArgumentParser):
    """Refuses like everything else here: one line, exit code 78."""

    def error(self, message: str) -> NoReturn:
        _refuse(f"{message}: see --help")


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Options, and the remaining words: settings, and what `status` and `logs` name."""
    parser = _Parser(
        prog="python3 workflows/submit.py",
        description="Train a coding agent: one workflow, on Kubernetes or on this machine.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
    )
    verbs = ("submit", "local", "render", "plan", "status", "logs")
    parser.add_argument("verb", nargs="?", default="submit", help=f"one of {', '.join(verbs)}")
    parser.add_argument("--target", choices=("argo", "local"), default="argo", help="where submit runs the workflow")
    parser.add_argument("--profile", default=None, help="a profile's name, or a YAML file (default: swe-qwen2.5-7b)")
    parser.add_argument("--run-id", default=None, help="name of the run; give that of an earlier run to go on with it")
    parser.add_argument("--start-from", default=None, metavar="STEP", help="skip the steps before this one")
    known, rest = parser.parse_known_args(arguments)
    if "=" in known.verb:
        rest, known.verb = [known.verb, *rest], "submit"
    if known.verb not in verbs:
        _refuse(f"there is no verb '{known.verb}': use {', '.join(verbs)}")
    for word in rest:
        if word.startswith("-") and "=" not in word:
            _refuse(f"there is no option {word}: see --help; settings are written section.key=value")
    return known, rest


def _refuse(line: str) -> NoReturn:
    print(line, file=sys.stderr)
    raise SystemExit(PERMANENT)


def _ensure_packages(arguments: Sequence[str]) -> None:
    if sys.version_info[:2] == (3, 12) and all(find_spec(name) for name in ("hera", "pydantic", "rich", "yaml")):
        return
    python = ROOT / ".venv" / "bin" / "python"
    if python.exists() and Path(sys.prefix) != ROOT / ".venv":
        os.execv(python, [str(python), str(Path(__file__).resolve()), *arguments])
    _refuse("Python 3.12 with the project's packages is needed to go on: run make setup")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
