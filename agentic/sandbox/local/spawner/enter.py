"""What a forked child does before it becomes bubblewrap, or a command inside a running sandbox.

`become_sandbox` builds the file system in a mount namespace of its own, so that no mount exists outside and all vanish
with the last process, moves into a fresh user namespace and turns into bubblewrap, whose process 1 keeps its
capabilities. `become_command` enters such a sandbox, gives up every capability and turns into the command.

Why process 1 keeps capabilities: it only sleeps, and they are worth nothing outside its namespaces, but a process
without them can neither trace nor stop it. Signals from inside don't reach process 1 either. So what runs inside cannot
turn its own failure into the loss of the sandbox. Everything here runs between fork and exec, on a copy of the
spawner's memory that nobody inside may read (it is not dumpable).
"""

# The spawner stays small: pathlib is a megabyte and milliseconds.
# ruff: noqa: PTH101, PTH102, PTH112, PTH116, PTH123

import errno
import os
import signal
from typing import Any, NoReturn

from agentic.sandbox.local.spawner import syscalls

MOUNT_POINT = "/tmp"
"""Where the root folder is put together. Everyone can reach it on every machine, which holds for few other folders."""

PROCESS_ONE = "echo; exec env --ignore-signal=CHLD sleep infinity >/dev/null 2>&1"
"""Says when it is up, ignores its children so that the kernel reaps orphans (a shell's `trap` doesn't do that), and
sleeps."""

CANNOT_START_EXIT_CODE = 126
NOTHING_LEFT_EXIT_CODE = 3
ENTER = os.CLONE_NEWUSER | os.CLONE_NEWNS | os.CLONE_NEWNET | os.CLONE_NEWIPC | os.CLONE_NEWUTS | os.CLONE_NEWCGROUP


def join_cgroups(folders: list[str]) -> None:
    """Move this process into each cgroup."""
    for folder in folders:
        handle = os.open(folder + "/cgroup.procs", os.O_WRONLY)
        os.write(handle, b"0")
        os.close(handle)


def make_mount_point(upper: str, inside: str, owner: int | None, is_folder: bool) -> None:
    """Make `inside` exist in the fresh writable layer, where no symbolic link of an image can lead elsewhere."""
    path = upper
    parts = [part for part in inside.split("/") if part]
    if ".." in parts:
        raise OSError(errno.EINVAL, f"the path inside must not climb: {inside}")
    for part in parts if is_folder else parts[:-1]:
        path += "/" + part
        if not os.path.isdir(path):
            os.mkdir(path)
            _give(path, owner)
    if not is_folder:
        path += "/" + parts[-1]
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))
        _give(path, owner)


def _give(path: str, owner: int | None) -> None:
    if owner is not None:
        os.chown(path, owner, owner)


def mount_root(request: dict[str, Any]) -> None:
    """Mount layers, writable layer, binds, folders and sockets at MOUNT_POINT, in a private mount namespace."""
    os.unshare(os.CLONE_NEWNS)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    os.chdir(request["store"])
    binds = [(os.open(source, os.O_PATH), target, True) for source, target in request["binds"]]
    folders = [(os.open(source, os.O_PATH), target, True) for source, target in request["folders"]]
    sockets = [(os.open(source, os.O_PATH), target, False) for source, target in request["sockets"]]
    writable, owner = request["writable_layer"], request["owner"]
    if writable is None:
        writable = "scratch"
        options = f"mode=755,size={request['scratch_bytes']},nr_inodes={request['scratch_inodes']}"
        syscalls.mount("tmpfs", writable, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)
    for name in ("upper", "work"):
        os.mkdir(f"{writable}/{name}", 0o755)
        _give(f"{writable}/{name}", owner)
    for _, target, is_folder in folders + sockets:
        make_mount_point(f"{writable}/upper", target, owner, is_folder)
    make_mount_point(f"{writable}/upper", request["workdir"], owner, is_folder=True)
    for target in request["only_writable"] or ():
        make_mount_point(f"{writable}/upper", target, owner, is_folder=True)
        os.chmod(f"{writable}/upper{target}", 0o777)
    options = f"lowerdir={':'.join(request['layers'])},upperdir={writable}/upper,workdir={writable}/work"
    options += ",userxattr" if owner is None else ""
    syscalls.mount("overlay", MOUNT_POINT, "overlay", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)
    for handle, target, read_only in binds + folders + sockets:
        put = syscalls.bind_read_only if read_only else syscalls.bind
        put(f"/proc/self/fd/{handle}", MOUNT_POINT + target)


def enter_user_namespace(ask: int, answer: int) -> None:
    """A new user namespace; its id map is written by the parent, which has the right to."""
    os.unshare(os.CLONE_NEWUSER)
    os.write(ask, b"m")
    if os.read(answer, 1) != b"m":
        raise OSError(errno.EPERM, "the id map of the user namespace was refused")
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    with open("/proc/sys/user/max_user_namespaces", "w") as handle:
        handle.write("0")


def bubblewrap_arguments(request: dict[str, Any], info: int) -> list[str]:
    """The command line of bubblewrap."""
    arguments = ["bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    arguments += ["--die-with-parent", "--as-pid-1", "--new-session", "--hostname", "sandbox", "--info-fd", str(info)]
    arguments += ["--bind", MOUNT_POINT, "/", "--proc", "/proc", "--dev", "/dev"]
    arguments += ["--perms", "1777", "--size", str(request["shm_bytes"]), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    if request["only_writable"] is not None:
        for path in request["only_writable"]:
            arguments += ["--bind", MOUNT_POINT + path, path]
        arguments += ["--remount-ro", "/"]
    return [*arguments, "--chdir", "/", "--clearenv", "--", "/bin/sh", "-c", PROCESS_ONE]


def become_sandbox(request: dict[str, Any], ask: int, answer: int, info: int, ready: int, errors: int) -> NoReturn:
    """Never returns; what goes wrong is written to `errors`."""
    try:
        join_cgroups(request["cgroups"])
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        program = os.open(request["bwrap"], os.O_RDONLY)
        mount_root(request)
        enter_user_namespace(ask, answer)
        os.dup2(ready, 1)
        os.dup2(errors, 2)
        os.set_inheritable(info, True)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.execve(program, bubblewrap_arguments(request, info), {"PATH": "/usr/bin:/bin"})
    except OSError as error:
        os.write(errors, str(error).encode())
    finally:
        os._exit(1)


class CannotStart(Exception):
    """The command cannot be run as asked; the message goes to its standard error."""


def find_user(name: str) -> tuple[int, int, str]:
    """User id, group id and home of a name or number, by the sandbox's own /etc/passwd."""
    with open("/etc/passwd", encoding="utf-8", errors="replace") as handle:
        rows = [line.rstrip("\n").split(":") for line in handle]
    for row in rows:
        if len(row) >= 6 and name in (row[0], row[2]) and row[2].isdigit() and row[3].isdigit():
            return int(row[2]), int(row[3]), row[5]
    if name.isdigit():
        return int(name), int(name), "/"
    raise CannotStart(f"the sandbox has no user {name!r}")


def take_identity(name: str, last_capability: int) -> str:
    """Become the user, without capabilities and without a way to gain any; the user's home."""
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    uid, gid, home = find_user(name)
    syscalls.drop_bounding_set(last_capability)
    try:
        if _may_set_groups():
            os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    except OSError as error:
        raise CannotStart(f"user {name!r} cannot be taken on: {error.strerror}") from None
    syscalls.drop_held_capabilities()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    return home


def _may_set_groups() -> bool:
    with open("/proc/self/setgroups") as handle:
        return handle.read().strip() == "allow"


def become_command(
    request: dict[str, Any], pidfd: int, cgroups: list[str], pipes: tuple[int, int, int], errors: int
) -> NoReturn:
    """Never returns, whatever happens: this is a copy of the spawner. What breaks before the command is on its way is
    written to `errors`, and is a loss; a command that makes no sense (no such user, a NUL in a word) is a result."""
    try:
        join_cgroups(cgroups)
        os.setns(pidfd, ENTER)
        os.setsid()
        for target, handle in enumerate(pipes):
            os.dup2(handle, target)
        run_inside(request)
    except (CannotStart, ValueError) as error:
        os.write(2, f"sandbox: {error}\n".encode(errors="replace"))
        os._exit(CANNOT_START_EXIT_CODE)
    except OSError as error:
        os.write(errors, str(error).encode())
        os._exit(1)
    finally:
        os.write(errors, b"the child failed before it became the command")
        os._exit(1)


def become_killer(outside: int) -> NoReturn:
    """Never returns. Born in a sandbox's process namespace with the spawner's rights, kill all in it but process 1: the
    kernel does so in one go, which nothing can out-fork. `outside` is the inode of the spawner's own namespace, where
    the same call would end everything."""
    code = 1
    try:
        if os.stat("/proc/self/ns/pid").st_ino != outside:
            os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        code = NOTHING_LEFT_EXIT_CODE
    finally:
        os._exit(code)


def run_inside(request: dict[str, Any]) -> None:
    """Identity, folder, signals, exec."""
    env: dict[str, str] = request["env"]
    home = take_identity(request["user"], request["last_capability"])
    env.setdefault("HOME", home)
    os.umask(0o022)
    try:
        os.chdir(request["cwd"])
    except OSError as error:
        raise CannotStart(f"cannot start in {request['cwd']}: {error.strerror}") from None
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    words: list[str] = request["command"]
    try:
        os.execvpe(words[0], words, env)
    except OSError as error:
        raise CannotStart(f"cannot run {words[0]}: {error.strerror}") from None
