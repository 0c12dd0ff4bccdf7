"""The command line: render the workflow, run it on this machine, or submit it to Argo.

Nothing heavy is imported before the arguments are understood, so that help answers at once. When the packages are not
installed for the Python that runs this, it goes on with the project's own `.venv`.
"""

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]

PERMANENT = 78

READER_GONE = 141
"""As a shell says of a program that SIGPIPE ended."""

EXAMPLES = """\
making a run:
  submit             compile the workflow and create it in the cluster that kubectl uses, after what it needs there;
                     what happens without a verb
  local              compile it and run it on this machine; short for submit --target local
  render             print the compiled Workflow as YAML; --objects DIR writes all of a run's objects for kubectl apply
  plan               say what would run, how large, and what is there already, here and in the cluster; starts nothing
  doctor             look for what would make a run fail on the cluster, each trouble with its remedy

launchers, which start Ray on several machines and the same workflow on the first of them:
  submit --target slurm      submit a batch job with sbatch; render prints its script
  submit --target skypilot   launch a task with sky; render prints its YAML

runs, here or on the cluster:
  status RUN         how far it has come
  logs [RUN] STEP    what a step has printed (without RUN: of the newest); --follow waits for more
  report RUN         write a local run's report anew, or print that of a run on the cluster

runs on the cluster:
  watch RUN          follow it until it ends; exit code 0, 75 or 78 tells how
  retry RUN          run its failed steps again, in the same Workflow
  resume RUN --from STEP   a new attempt in the same run folder, from that step on; settings may be given anew
  stop RUN           end its steps; what it holds is cleaned up
  cleanup RUN        end it and remove whatever carries its label; its folder stays
  explain RUN        why it failed: the trouble by its name, from events, conditions and logs

settings:
  section.key=value, such as train.steps=4 or sandbox.provider=podman; docs/settings.md lists them all.
  They override AGENTIC__SECTION__KEY, which overrides the profile, which overrides the defaults.

the cluster:
  the one that kubectl uses (KUBECONFIG), in the namespace cluster.namespace; with ARGO_SERVER and ARGO_TOKEN, or
  cluster.argo_server, an Argo server is asked instead.

examples:
  python3 workflows/submit.py local --profile demo
  python3 workflows/submit.py local --profile demo --run-id first train.steps=4
  python3 workflows/submit.py render --profile demo > workflow.yaml
  python3 workflows/submit.py render --objects ./objects --run-id first
  python3 workflows/submit.py plan
  python3 workflows/submit.py plan --target slurm --profile ppo-gsm8k
  python3 workflows/submit.py render --target slurm --profile ppo-gsm8k > job.sbatch
  python3 workflows/submit.py submit --target slurm --run-id first slurm.partition=gpu slurm.image=trainer.sif
  python3 workflows/submit.py doctor cluster.namespace=rl
  python3 workflows/submit.py submit --watch --run-id first cluster.namespace=rl train.rollouts_per_prompt=8
  python3 workflows/submit.py watch first cluster.namespace=rl
  python3 workflows/submit.py status first
  python3 workflows/submit.py logs first train --follow
  python3 workflows/submit.py explain first
  python3 workflows/submit.py retry first --watch
  python3 workflows/submit.py resume first --from train train.steps=400
  python3 workflows/submit.py stop first
  python3 workflows/submit.py cleanup first
  python3 workflows/submit.py report first > report.html

exit codes: 0 done, 75 trying again may help, 78 it cannot, 130 interrupted
"""

VERBS = (
    *("submit", "local", "render", "plan", "status", "logs"),
    *("watch", "retry", "resume", "stop", "cleanup", "doctor", "explain", "report"),
)

TARGETS = ("argo", "local", "slurm", "skypilot")


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; the exit code."""
    options, settings = parse(arguments)
    _ensure_packages(arguments)
    sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]
    from agentic.errors import AgenticError
    from steps import failures
    from workflows.actions import action_of
    from workflows.request import Request

    verb = "local" if options.verb == "submit" and options.target == "local" else options.verb
    request = Request(
        verb=verb,
        profile=options.profile,
        run_id=options.run_id,
        start_from=options.start_from,
        words=tuple(word for word in settings if "=" not in word),
        settings=tuple(word for word in settings if "=" in word),
        target=options.target,
        follow=options.follow,
        objects=options.objects,
        json=options.json,
    )
    # What the kubernetes package complains of comes again in our own line.
    logging.getLogger("kubernetes").addHandler(logging.NullHandler())
    try:
        request.require_heeded()
        return action_of(verb, options.target)(request)
    except BrokenPipeError:
        # Whoever reads has enough, such as `head`. What is left in the buffer has nowhere to go at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
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
    """Options, and the remaining words: settings, and the runs and steps that verbs name."""
    parser = _Parser(
        prog="python3 workflows/submit.py",
        description="Train a coding agent: one workflow, on Kubernetes or on this machine.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
    )
    parser.add_argument("verb", nargs="?", default="submit", help=f"one of {', '.join(VERBS)}")
    parser.add_argument(
        "--target", choices=TARGETS, default=None, help="where submit runs the workflow, or where a run is"
    )
    parser.add_argument("--profile", default=None, help="a profile's name, or a YAML file (default: swe-qwen2.5-7b)")
    parser.add_argument("--run-id", default=None, help="name of the run; give that of an earlier run to go on with it")
    parser.add_argument("--start-from", "--from", default=None, metavar="STEP", help="skip the steps before this one")
    parser.add_argument("--watch", "--follow", "-f", dest="follow", action="store_true", help="follow what goes on")
    parser.add_argument("--objects", default=None, metavar="DIR", help="where render writes the cluster's objects")
    parser.add_argument("--json", action="store_true", help="let doctor and explain print JSON")
    known, rest = parser.parse_known_args(arguments)
    if "=" in known.verb:
        rest, known.verb = [known.verb, *rest], "submit"
    if known.verb not in VERBS:
        _refuse(f"there is no verb '{known.verb}': use {', '.join(VERBS)}")
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
