"""The system calls that Python's `os` lacks: mount, prctl, capset. Each raises OSError with the call's name."""

import ctypes
import os
import signal

MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18

SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
"""The call's number is the same on x86-64 and arm64; Linux 5.12 and later have it."""
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4

CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """mount(2)."""
    arguments = (source.encode(), target.encode(), kind.encode() if kind else None)
    result = _libc.mount(*arguments, ctypes.c_ulong(flags), options.encode() or None)
    _check(result, f"mount {kind or 'bind'} on {target}")


def bind(source: str, target: str) -> None:
    """Show `source`, a file or a folder with what is mounted below it, at `target`."""
    mount(source, target, None, MS_BIND | MS_REC)


def bind_read_only(source: str, target: str) -> None:
    """`bind` without the right to write, for mounts below it too."""
    bind(source, target)
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    result = _libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, target.encode(), AT_RECURSIVE, attributes, size)
    _check(result, f"mount_setattr on {target}")


def prctl(option: int, argument: int = 0, second: int = 0) -> None:
    """prctl(2) with up to two arguments."""
    numbers = [ctypes.c_ulong(value) for value in (argument, second, 0, 0)]
    _check(_libc.prctl(option, *numbers), f"prctl {option}")


def drop_bounding_set(last_capability: int) -> None:
    """No program started from here on can gain a capability."""
    for capability in range(last_capability + 1):
        prctl(PR_CAPBSET_DROP, capability)


def drop_held_capabilities() -> None:
    """Empty the ambient, effective, permitted and inheritable sets."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)(0, 0, 0, 0, 0, 0)
    _check(_libc.capset(header, sets), "capset")


def send_signal(pidfd: int, number: int) -> bool:
    """Signal the process behind a pidfd; False when it is gone already."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    return True
