#!/bin/sh
# What the Slurm for tests needs: root, Debian's slurm-wlm and munge (installed where that is allowed), tools of
# namespaces. One line for what is missing; exit code 78 then. Tests run the programs themselves; a service that Debian's
# package starts has no configuration and does nothing.
set -u

miss() {
    echo "make test-slurm: $1" >&2
    exit 78
}

have() {
    for program in slurmctld slurmd munged sbatch; do
        command -v "$program" > /dev/null || return 1
    done
}

[ "$(id -u)" = 0 ] || miss "it makes namespaces and mounts: run it as root, or in a virtual machine"
for program in ip nsenter unshare setpriv; do
    command -v "$program" > /dev/null || miss "there is no $program: install iproute2 and util-linux"
done
have && exit 0
command -v apt-get > /dev/null || miss "there is no slurmctld, slurmd, munged or sbatch: install Slurm and munge"
export DEBIAN_FRONTEND=noninteractive
install='apt-get install -qq -y --no-install-recommends slurm-wlm munge'
$install > /dev/null 2>&1 || { apt-get update -qq && $install > /dev/null 2>&1; }
have || miss "slurm-wlm and munge could not be installed: apt-get install slurm-wlm munge says why"
