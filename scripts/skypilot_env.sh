#!/usr/bin/env bash
# Makes build/skypilot, an environment with SkyPilot alone, in which tests load the tasks that we render; `make
# test-skypilot` calls it. SkyPilot wants click below 8.2 and other packages of ours one above, so that it is never
# installed into .venv.
# Safe to run again, and quick when nothing changed. Package addresses come from the user's configuration of uv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly environment=build/skypilot pins=constraints/skypilot.txt
if [ -f "$environment/.stamp" ] && cmp -s "$pins" "$environment/.stamp"; then exit 0; fi

uv=uv
command -v uv >/dev/null || uv=.bootstrap/bin/uv
[ -x "$(command -v "$uv")" ] || { echo "skypilot: no uv on PATH or in .bootstrap: run 'make setup' first" >&2; exit 78; }
"$uv" venv --quiet --clear --python .venv/bin/python "$environment"
"$uv" pip install --quiet --python "$environment/bin/python" -r "$pins"
cp "$pins" "$environment/.stamp"
