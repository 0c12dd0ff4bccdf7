#!/bin/sh
# What the Slurm for tests needs: root, Debian's slurm-wlm and munge, tools of namespaces; installed where that is
# allowed. One line for what is missing; exit code 78 then. Tests run the programs themselves, so the services that the
# packages bring are not started.
set -u

packages='slurm-wlm munge iproute2 util-linux'

miss() {
    echo "make test-slurm: $1" >&2
    exit 78
}

missing() {
    for program in slurmctld slurmd munged sbatch ip nsenter unshare setpriv; do
        command -v "$program" > /dev/null || printf '%s ' "$program"
    done
}

can_make_nodes() {
    unshare --net --uts --mount --pid --fork true 2> /dev/null ||
        miss "root may make no namespaces here: run it on a machine or in a container that allows them"
}

# Debian asks this program whether a package may start its service; a machine that has one of its own keeps it.
install_quietly() {
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap 'rm -f "$policy"' EXIT
        trap 'exit 130' INT TERM
        printf '#!/bin/sh\nexit 101\n' > "$policy" && chmod 755 "$policy"
    fi
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # several words
    { apt-get install -qq -y --no-install-recommends $packages || {
        apt-get update -qq && apt-get install -qq -y --no-install-recommends $packages
    }; } > /dev/null 2>&1
}

[ "$(id -u)" = 0 ] || miss "it makes namespaces and mounts: run it as root, or in a virtual machine"
if [ -z "$(missing)" ]; then can_make_nodes; exit 0; fi
command -v apt-get > /dev/null || miss "there is no $(missing)and no apt-get: install Slurm, munge, iproute2, util-linux"
install_quietly
[ -z "$(missing)" ] || miss "there is no $(missing)and it could not be installed: apt-get install $packages says why"
can_make_nodes
