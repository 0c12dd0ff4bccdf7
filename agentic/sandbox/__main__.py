"""What a cluster has to have for sandboxes: prints it for an admin, or checks it.

    python -m agentic.sandbox account --provider kruise namespace=rl | kubectl apply -f -
    python -m agentic.sandbox check --provider kruise namespace=rl

`account` prints a ServiceAccount with the rights that sandboxes need in one namespace, and talks to nobody. `check`
names everything that is missing, each in one line, and runs one command in one sandbox when nothing is. KEY=VALUE are
settings of the provider. Exit code 0 when all is there, 78 when something is missing, 75 when it may pass by itself.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import yaml
from pydantic import ValidationError

from agentic.sandbox.preflight import preflight
from agentic.sandbox.probe import read_settings
from agentic.sandbox.settings import KubeSandbox, SandboxSettings

OK, MAY_PASS, MISSING = 0, 75, 78


def print_account(settings: SandboxSettings, name: str) -> int:
    from agentic.sandbox.kube.preflight import sandbox_account

    if not isinstance(settings, KubeSandbox) or settings.namespace is None:
        sys.stderr.write(
            "an account is for a provider on Kubernetes, in one namespace: add --provider, namespace=NAME\n"
        )
        return MISSING
    yaml.safe_dump_all(sandbox_account(settings, settings.namespace, name), sys.stdout, sort_keys=False)
    return OK


async def check(settings: SandboxSettings) -> int:
    with tempfile.TemporaryDirectory(prefix="agentic-check-") as folder:
        problems = await preflight(settings, Path(folder))
    for problem in problems:
        sys.stdout.write(f"missing  {problem.message}\n")
    if not problems:
        sys.stdout.write(f"ok       a sandbox of provider {settings.provider} ran a command\n")
    if any(not problem.transient for problem in problems):
        return MISSING
    return MAY_PASS if problems else OK


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m agentic.sandbox", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["account", "check"])
    parser.add_argument("--provider", default="pod", help="as in the setting sandbox.provider")
    parser.add_argument("--name", default="agentic-sandboxes", help="of the account")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings of the provider")
    arguments = parser.parse_intermixed_args()
    try:
        settings = read_settings(arguments.provider, arguments.settings)
    except ValidationError as error:
        sys.stderr.write(f"{error}\n")
        return MISSING
    if arguments.command == "account":
        return print_account(settings, arguments.name)
    return asyncio.run(check(settings))


if __name__ == "__main__":
    sys.exit(main())
