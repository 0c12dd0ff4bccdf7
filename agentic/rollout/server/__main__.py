"""A server that runs trials for trainers elsewhere: `python -m agentic.rollout.server`.

Prints one line with its address once it listens. SIGTERM or Ctrl-C ends what runs, with its sandboxes; orders that
wait stay in the journal for the next server with the same `--state`.
"""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from agentic.errors import PermanentError
from agentic.rollout.assignments import assign
from agentic.rollout.errors import RolloutConfigError
from agentic.rollout.server.keys import read_keys
from agentic.rollout.server.settings import LOOPBACK, ServerSettings
from agentic.sandbox.settings import BubblewrapSandbox

KEY_VARIABLE = "AGENTIC_TRIAL_SERVER_KEY"

EXAMPLES = f"""\
examples:
  on this machine, for a try; root folders of tasks come from the store that `build-images` fills:
    python -m agentic.rollout.server --state state --store workspace/images --set sandbox.memory_mb=256

  for trainers elsewhere, with a key and TLS:
    openssl rand -hex 32 > keys
    python -m agentic.rollout.server --host 0.0.0.0 --port 8443 --keys keys \\
        --certificate tls.crt --private-key tls.key --state state --settings server.yaml

  a trainer that uses it:
    export {KEY_VARIABLE}=... REMOTE_AGENT_USE_LOCAL_TRIAL=false
    python3 workflows/submit.py local --profile demo rollout.trial_server.url=https://trials.example:8443

  what it is doing:
    curl -H "Authorization: Bearer ${KEY_VARIABLE}" https://trials.example:8443/v1/capacity

server.yaml holds what `--set` takes, such as
  concurrency: 200
  sandbox: {{provider: pod, namespace: sandboxes}}
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        "python -m agentic.rollout.server",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen at; without keys only a loopback one (%(default)s)")
    add("--port", type=int, default=8430, help="0 takes a free one (%(default)s)")
    add("--state", required=True, type=Path, help="folder of the journal, the tasks and the trials; survives restarts")
    add("--store", type=Path, help="root-folder store of the tasks' images (STATE/images)")
    add("--settings", type=Path, help="YAML file of server settings")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="one server setting; may be repeated")
    add("--keys", type=Path, help=f"file of keys, one a line; {KEY_VARIABLE} holds a further one")
    add("--certificate", type=Path, help="TLS certificate chain")
    add("--private-key", type=Path, help="TLS private key")
    return parser.parse_args(arguments)


def load(options: argparse.Namespace) -> ServerSettings:
    """The settings of file and command line. Raises RolloutConfigError in one line."""
    try:
        values: Any = yaml.safe_load(options.settings.read_text()) if options.settings else {}
    except (OSError, yaml.YAMLError) as error:
        raise RolloutConfigError(f"--settings {options.settings}: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise RolloutConfigError(f"--settings {options.settings} holds no settings")
    values["state_dir"] = options.state.absolute()
    values["store_dir"] = (options.store or options.state / "images").absolute()
    assign(values, options.set, "concurrency=200")
    if isinstance(sandbox := values.get("sandbox"), dict):
        sandbox.setdefault("provider", BubblewrapSandbox().provider)
    try:
        return ServerSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RolloutConfigError(f"server setting {place}: {first['msg']}") from error


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal; 78 with one line when it cannot start."""
    options = parse(arguments)
    try:
        settings = load(options)
        keys = read_keys(options.keys, os.environ.pop(KEY_VARIABLE, None))  # Nothing that runs here needs it.
        if not keys and options.host not in LOOPBACK:
            raise RolloutConfigError(
                f"--host {options.host} is reachable by others and there is no key: name --keys FILE or set "
                f"{KEY_VARIABLE}, or listen at 127.0.0.1"
            )
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        from agentic.rollout.server.serving import Place, serve

        place = Place(options.host, options.port, options.certificate, options.private_key)
        asyncio.run(serve(settings, keys, place))
    except PermanentError as error:
        sys.stderr.write(f"{error}\n")
        return 78
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
