#!/usr/bin/env bash
# Resolves constraints/cpu.txt and constraints/gpu.txt anew from pyproject.toml: Python 3.12 on Linux x86_64, the newest
# versions that go together. `make pins` calls it; read the diff, then `make setup test` before committing it.
#
# Only metadata is fetched, no wheels. The files hold names and versions alone: no index address, no local path, so that
# they serve every mirror. The CPU set has overrides (constraints/overrides-cpu.txt says why), the GPU set has none.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

uv=uv
command -v uv >/dev/null || uv=.bootstrap/bin/uv
[ -x "$(command -v "$uv")" ] || { echo "pin: no uv on PATH or in .bootstrap: run 'make setup' first" >&2; exit 78; }

new=$(mktemp)
trap 'rm -f "$new"' EXIT

pin() { # FILE TITLE EXTRA [options of uv]
    local file=$1 title=$2 extra=$3
    shift 3
    echo "# $title (Python 3.12, Linux x86_64). Written by scripts/pin.sh; no index addresses." >"$new"
    # Into a pipe, not with --output-file: uv would keep the versions that it finds there.
    "$uv" pip compile --quiet --python-version 3.12 --python-platform x86_64-manylinux_2_28 \
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
        --extra "$extra" --extra dev "$@" pyproject.toml >>"$new"
    if grep -nE '://|^-e|@ ' "$new"; then
        echo "pin: $file would hold the addresses or paths above: depend on released versions only" >&2
        exit 78
    fi
    cp "$new" "$file"
    echo "pin: $file has $(grep -vc '^#' "$file") packages"
}

pin constraints/cpu.txt "Resolved set for a machine without a GPU" cpu --overrides constraints/overrides-cpu.txt
pin constraints/gpu.txt "Resolved set for a machine with NVIDIA GPUs" gpu
