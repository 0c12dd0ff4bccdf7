#!/bin/sh
# What the cluster for tests needs of this machine, before anything is installed or built for it. One line for each thing
# that is missing; exit code 78 then.
set -u
cd "$(dirname "$0")/.." || exit 78

cache="${XDG_CACHE_HOME:-$HOME/.cache}/agentic-rl/cluster"
status=0
miss() {
    echo "make cluster: $1" >&2
    status=78
}

is_built() {
    for program in "$cache"/tools/kube-apiserver-*/kube-apiserver; do
        [ -x "$program" ] && return 0
    done
    return 1
}

# GiB free where a folder is, or will be.
free_gib() {
    place=$1
    while [ ! -d "$place" ]; do place=$(dirname "$place"); done
    df -Pk "$place" | awk 'NR == 2 { print int($4 / 1048576) }'
}

[ "$(uname -s)" = Linux ] || miss "it needs Linux: run it in a virtual machine"
[ "$(id -u)" = 0 ] || miss "it makes namespaces, mounts and control groups: run it as root, or in a virtual machine"
if is_built; then disk=3; else disk=15; fi
[ "$(free_gib "$cache")" -ge "$disk" ] || miss "$cache has less than $disk GiB free: set XDG_CACHE_HOME to a larger disk"
if [ -r /proc/meminfo ]; then
    available=$(awk '$1 == "MemAvailable:" { print int($2 / 1048576) }' /proc/meminfo)
    [ "$available" -ge 3 ] || miss "less than 3 GiB of memory are available: end other programs"
fi
if ! is_built; then
    # Go itself tells whether it is new enough or can fetch the toolchain that the modules ask for.
    if ! command -v go > /dev/null; then
        miss "its programs are built with Go and there is no go on PATH: install Go 1.26 or newer"
    elif ! said=$(cd testbed/go/k8s && go env GOVERSION 2>&1); then
        miss "its programs need Go 1.26 or newer: $(printf '%s' "$said" | tail -n 1)"
    fi
fi
exit $status
