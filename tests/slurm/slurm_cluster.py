"""A real Slurm cluster of two nodes on this machine, for tests: Debian's slurm-wlm and munge, run by root.

Each node is a set of namespaces (processes, network, host name, mounts) with a slurmd of its own, so that the two have
different names, different addresses and three networks between them; the controller is on the first. Nothing of it
reaches this machine's network, every file lies in one folder, and all of a node's processes end with the first of them:
by `close`, or because whoever made the cluster is gone.

What is not as in a real cluster: the nodes share one machine's processors, and its files but for /tmp and /dev/shm;
jobs run as root; processes are tracked by their parents and not by control groups; and the nodes claim more CPUs than
there are, since nothing here is timed.
"""

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NODES = ("node1", "node2")
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "unshare", "nsenter", "setpriv", "ip")
READY_SECONDS = 30.0

CONFIGURATION = """\
ClusterName=tests
SlurmctldHost=node1(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=10
SchedulerParameters=sched_interval=2,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
NodeName=node1 NodeAddr=10.77.0.1 CPUs=8 RealMemory=20000 State=UNKNOWN
NodeName=node2 NodeAddr=10.77.0.2 CPUs=8 RealMemory=20000 State=UNKNOWN
PartitionName=low Nodes=node1,node2 Default=YES PriorityTier=1 GraceTime=60 MaxTime=60
PartitionName=high Nodes=node1,node2 PriorityTier=10 PreemptMode=OFF MaxTime=60
"""

HOSTS = """\
127.0.0.1 localhost
10.77.0.1 node1
10.77.0.2 node2
"""


@dataclass
class SlurmCluster:
    """Two nodes; `run` and `sbatch` act on the first."""

    folder: Path
    shared: Path
    """What all nodes see under the same path, as a file server would have it; holds `folder`."""
    _holders: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _first: dict[str, int] = field(default_factory=dict)
    """The first process of each node, with which all others end."""
    _namespaces: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Bring it up; returns when both nodes are idle."""
        missing = [name for name in PROGRAMS if shutil.which(name) is None]
        if missing or os.geteuid() != 0:
            raise RuntimeError(
                f"this needs root and {', '.join(missing) or 'nothing more'}: see scripts/slurm_needs.sh"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(folder=self.folder))
        (self.folder / "hosts").write_text(HOSTS)
        (self.folder / "state").mkdir()
        for name in NODES:
            self._hold(name)
        self._connect()
        self._start_munge()
        self._daemon("node1", ["slurmctld", "-D"])
        for name in NODES:
            self._daemon(name, ["slurmd", "-D", "-N", name])
        self._await_idle()

    def close(self) -> None:
        """End every process of the nodes; `processes` says whether any is left."""
        for holder in self._holders.values():
            holder.kill()
        for process in (*self._holders.values(), *self._daemons):
            process.wait()
        deadline = time.monotonic() + 10.0
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)

    def run(
        self, words: Sequence[str], node: str = "node1", env: Mapping[str, str] | None = None, *, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """A command on a node, as one would be typed there."""
        return subprocess.run(
            self.on_node(words, node),
            env={**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), **(env or {})},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def on_node(self, words: Sequence[str], node: str) -> list[str]:
        """The words that run a command on a node."""
        spaces = ["--pid", "--net", "--uts", "--mount", f"--wdns={self.folder}"]
        return ["nsenter", f"--target={self._first[node]}", *spaces, "--", *words]

    def state(self, job: str) -> str:
        """Of a job, as Slurm calls it; it forgets one some minutes after its end."""
        return self.field(job, "JobState")

    def field(self, job: str, name: str) -> str:
        """What Slurm says of a job."""
        said = self.run(["scontrol", "show", "job", "--oneliner", job]).stdout
        return next((word.partition("=")[2] for word in said.split() if word.startswith(f"{name}=")), "")

    def await_state(self, job: str, states: Sequence[str], seconds: float) -> str:
        """Wait until a job is in one of the states.

        Raises:
            TimeoutError: it is not; says what it printed.
        """
        deadline = time.monotonic() + seconds
        while (state := self.state(job)) not in states:
            if time.monotonic() > deadline:
                output = self.folder / f"slurm-{job}.out"
                said = output.read_text(errors="replace")[-4000:] if output.exists() else "nothing"
                raise TimeoutError(f"job {job} is {state} after {seconds:g} s; it has printed {said}")
            time.sleep(0.2)
        return state

    def processes(self) -> list[int]:
        """Every process in the nodes' network namespaces."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _link(entry / "ns" / "net") in self._namespaces:
                found.append(int(entry.name))
        return sorted(found)

    def processes_of(self, node: str) -> dict[int, str]:
        """Every process of a node, with its command line."""
        namespace = _link(Path(f"/proc/{self._first[node]}/ns/net"))
        here = [pid for pid in self.processes() if _link(Path(f"/proc/{pid}/ns/net")) == namespace]
        return {pid: _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace") for pid in here}

    def end_ray(self, node: str) -> None:
        """Kill what a job's step runs on a node, as a broken node would."""
        for pid in self.processes_of(node):
            if b"SLURM_STEP_ID=" in _read(pid, "environ"):
                _kill(pid, signal.SIGKILL)

    def _hold(self, name: str) -> None:
        """Make a node's namespaces; they end with a process that ends with this one."""
        own = self.folder / f"tmp-{name}"
        own.mkdir(mode=0o1777)
        kept = {path: own / path.relative_to("/tmp") for path in (self.shared, ROOT) if path.is_relative_to("/tmp")}
        keep = "".join(f"mkdir -p {there} && mount --bind {path} {there} && " for path, there in kept.items())
        make = (
            f"hostname {name} && mount --bind {self.folder}/hosts /etc/hosts && ip link set lo up && "
            f"{keep}mount --rbind {own} /tmp && mount -t tmpfs tmpfs /dev/shm && "
            f"touch {self.folder}/{name}.held && exec sleep infinity"
        )
        spaces = ["--net", "--uts", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
        words = ["setpriv", "--pdeathsig", "KILL", "--", "unshare", *spaces, "sh", "-ec", make]
        holder = self._holders[name] = subprocess.Popen(words)
        self._wait_for(self.folder / f"{name}.held")
        self._first[name] = int(Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text())
        self._namespaces.append(_link(Path(f"/proc/{self._first[name]}/ns/net")))

    def _connect(self) -> None:
        """Three networks between the nodes: `eth0` with IPv4, `ib0` with both, and `v6` with IPv6 alone."""
        first, second = (str(self._first[name]) for name in NODES)
        plan = {"eth0": ["10.77.0.{}/24"], "ib0": ["10.78.0.{}/24", "fd78::{}/64"], "v6": ["fd79::{}/64"]}
        for link, addresses in plan.items():
            _ip("link", "add", link, "netns", first, "type", "veth", "peer", "name", link, "netns", second)
            for number, name in enumerate(NODES, start=1):
                for address in addresses:
                    flags = ["nodad"] if ":" in address else []
                    self._inside(name, "ip", "addr", "add", address.format(number), "dev", link, *flags)
                self._inside(name, "ip", "link", "set", link, "up")

    def _inside(self, node: str, *words: str) -> None:
        done = self.run(words, node)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} on {node}: {done.stderr}")

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        names = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self.folder}/munge.{ending}" for option, ending in names.items()]
        self._daemon("node1", ["munged", "--foreground", "--force", *options])
        self._wait_for(self.folder / "munge.socket")

    def _daemon(self, node: str, words: Sequence[str]) -> None:
        with (self.folder / f"{words[0]}-{node}.out").open("wb") as output:
            process = subprocess.Popen(
                self.on_node(words, node),
                env={**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
            )
        self._daemons.append(process)

    def _wait_for(self, path: Path) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not path.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path.name} has not appeared")
            time.sleep(0.05)

    def _await_idle(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            done = self.run(["sinfo", "--noheader", "--Node", "--partition=low", "--format=%N %T"])
            if done.stdout.split() == ["node1", "idle", "node2", "idle"]:
                return
            if time.monotonic() > deadline:
                logs = "".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log")))
                raise TimeoutError(f"the nodes are not idle: {done.stdout}{done.stderr}\n{logs}")
            time.sleep(0.2)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _kill(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
