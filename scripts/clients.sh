#!/usr/bin/env bash
# Installs the agents that tests/clients runs, unmodified and at pinned versions, outside the clone.
#
#   scripts/clients.sh             all of them
#   scripts/clients.sh codex ...   those named: codex, claude-code, opencode (npm), python (mini-swe-agent, Terminus-2, SDKs)
#
# Prints a folder for each, in order: npm's hold `program`, python's is a virtual environment.
# Each lies in $XDG_CACHE_HOME/agentic-rl/clients/NAME-VERSION (~/.cache where the variable is unset), made once and used
# by every clone. npm's packages bring a program of their own; node runs only npm, so any version does. A folder appears
# whole or not at all. Exit code 75: may work when tried again; 78: cannot work until something is changed by hand.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly codex=0.171.0 claude_code=2.1.332 opencode=1.18.33
readonly python_requirements=scripts/clients.txt
readonly cache="${XDG_CACHE_HOME:-$HOME/.cache}/agentic-rl/clients"

say() { printf 'clients: %s\n' "$*" >&2; }
give_up() { local code=$1; shift; say "$*"; exit "$code"; }

ensure() { # PROGRAM, which Debian has in a package of the same name
    ! command -v "$1" >/dev/null || return 0
    command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] || give_up 78 "$1 is missing: install it"
    say "installing $1"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$1"; } >&2 ||
        give_up 75 "$1 could not be installed (see above)"
}

# Scripts of packages stay off: they would only copy the program to where npm's launcher looks for it.
install_npm() { # NAME VERSION PACKAGE PROGRAM (a pattern below node_modules)
    local name=$1 version=$2 package=$3 program=$4 folder="$cache/$1-$2" making
    echo "$folder"
    [ ! -x "$folder/program" ] || return 0
    ensure npm
    say "installing $package $version"
    making=$(mktemp -d "$cache/.$name.XXXXXX")
    npm install --prefix "$making" --ignore-scripts --no-audit --no-fund --loglevel=error "$package@$version" >&2 ||
        give_up 75 "$package $version could not be installed (see above)"
    local found; found=$(cd "$making" && compgen -G "node_modules/$program" | head -n 1) ||
        give_up 78 "$package $version has no program for this machine ($(uname -m)) at $program"
    ln -s "$found" "$making/program"
    put "$making" "$folder"
}

install_python() {
    local folder making uv
    folder="$cache/python-$(sha256sum "$python_requirements" | cut -c1-12)"
    echo "$folder"
    ensure tmux # the terminal of Terminus-2
    [ ! -x "$folder/bin/python" ] || return 0
    say "installing the packages of $python_requirements"
    uv=$(command -v uv || echo .bootstrap/bin/uv)
    making=$(mktemp -d "$cache/.python.XXXXXX")
    { "$uv" venv --quiet --allow-existing --relocatable --python .venv/bin/python "$making" &&
        "$uv" pip install --quiet --python "$making/bin/python" -r "$python_requirements"; } >&2 ||
        give_up 75 "the packages of $python_requirements could not be installed (see above); is 'make setup' done?"
    put "$making" "$folder"
}

put() { mv -T "$1" "$2" 2>/dev/null || { rm -rf "$1"; [ -e "$2" ] || give_up 75 "$2 could not be written"; }; }

install() {
    case $1 in
        codex) install_npm codex $codex @openai/codex '@openai/codex-linux-*/vendor/*/bin/codex' ;;
        claude-code) install_npm claude-code $claude_code @anthropic-ai/claude-code '@anthropic-ai/claude-code-linux-*/claude' ;;
        opencode) install_npm opencode $opencode opencode-ai "$(opencode_program)" ;;
        python) install_python ;;
        *) give_up 78 "no client is called '$1': codex, claude-code, opencode, python" ;;
    esac
}

opencode_program() {
    case $(uname -m) in
        x86_64) if grep -qw avx2 /proc/cpuinfo; then echo opencode-linux-x64/bin/opencode
                else echo opencode-linux-x64-baseline/bin/opencode; fi ;;
        *) echo opencode-linux-arm64/bin/opencode ;;
    esac
}

mkdir -p "$cache"
for client in "${@:-codex claude-code opencode python}"; do
    for name in $client; do install "$name"; done
done
