"""BuildKit's own images, made of the cluster's programs: none can be pulled here."""

import io
import shutil
import struct
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

from testbed.access import ClusterAccess
from testbed.tools import Toolbox

RUNC = "/usr/sbin/runc"
MAPPERS = {"/usr/bin/newuidmap": 7, "/usr/bin/newgidmap": 6}
"""Program → number of the one capability that it needs of its file: CAP_SETUID, CAP_SETGID. Run as root instead, they
could not write the maps of a namespace that an ordinary user has made, since a container's root is no administrator."""
USER = 1000
"""Of the published rootless image."""
HOME, RUNTIME = "home/user", f"run/user/{USER}"


def push_buildkit_image(cluster: ClusterAccess, folder: Path) -> str:
    """Both programs, runc and nothing else; its name in the cluster's registry."""
    root = _root(cluster, folder)
    (root / "etc/passwd").write_text("root:x:0:0:root:/:/none\n")
    dockerfile = 'FROM scratch\nCOPY root/ /\nENV PATH=/usr/bin:/usr/sbin\nENTRYPOINT ["/usr/bin/buildkitd"]\n'
    return _push(cluster, folder, dockerfile, folder.name)


def push_rootless_buildkit_image(cluster: ClusterAccess, folder: Path) -> str:
    """The same in the form of the published rootless image: RootlessKit starts it for an ordinary user."""
    root = _root(cluster, folder)
    shutil.copy(Toolbox(cluster.layout).path("rootlesskit"), root / "usr/bin/rootlesskit")
    _copy_with_libraries(root, MAPPERS)
    (root / "etc/passwd").write_text(f"root:x:0:0:root:/:/none\nuser:x:{USER}:{USER}:user:/{HOME}:/none\n")
    for name in ("subuid", "subgid"):
        (root / "etc" / name).write_text("user:100000:65536\n")
    pack_rootless(root, folder / "root.tar")
    dockerfile = (
        "FROM scratch\nADD root.tar /\n"
        f"ENV PATH=/usr/bin:/usr/sbin HOME=/{HOME} USER=user XDG_RUNTIME_DIR=/{RUNTIME} TMPDIR=/{HOME}/tmp\n"
        f'USER {USER}:{USER}\nENTRYPOINT ["rootlesskit", "buildkitd"]\n'
    )
    return _push(cluster, folder, dockerfile, f"{folder.name}-rootless")


def pack_rootless(root: Path, archive: Path) -> None:
    """A copied folder would lose what matters here: who owns the user's folders, and the mappers' capabilities."""

    def owned(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        capability = MAPPERS.get(entry.name.removeprefix("."))
        if capability is not None:
            entry.mode = 0o755
            entry.pax_headers = {"SCHILY.xattr.security.capability": file_capability(capability)}
        return entry

    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(root, arcname=".", filter=owned)
        for name in (HOME, f"{HOME}/tmp", "run/user", RUNTIME):
            entry = tarfile.TarInfo(f"./{name}")
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            entry.uid = entry.gid = 0 if name == "run/user" else USER
            tar.addfile(entry, io.BytesIO())


def file_capability(number: int) -> str:
    """Permitted and effective, as the kernel keeps it (`struct vfs_cap_data`, revision 2), in tarfile's own escape."""
    return struct.pack("<IIIII", 0x02000001, 1 << number, 0, 0, 0).decode("utf-8", "surrogateescape")


def _root(cluster: ClusterAccess, folder: Path) -> Path:
    root = folder / "root"
    for name in ("usr/bin", "tmp", "etc"):
        (root / name).mkdir(parents=True)
    for name in ("buildkitd", "buildctl"):
        shutil.copy(Toolbox(cluster.layout).path(name), root / "usr/bin" / name)
    _copy_with_libraries(root, (RUNC,))
    (root / "tmp/.keep").write_text("")
    (root / "tmp").chmod(0o1777)
    return root


def _copy_with_libraries(root: Path, programs: Iterable[str]) -> None:
    for program in programs:
        linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        libraries = [word for line in linked.splitlines() for word in line.split() if word.startswith("/")]
        for path in (program, *libraries):
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


def _push(cluster: ClusterAccess, folder: Path, dockerfile: str, tag: str) -> str:
    (folder / "Dockerfile").write_text(dockerfile)
    name = f"{cluster.layout.registry}/tests/buildkit:{tag}"
    buildctl = str(Toolbox(cluster.layout).path("buildctl"))
    build = [buildctl, f"--addr=tcp://{cluster.layout.builder}", "build", "--frontend=dockerfile.v0"]
    build += [f"--local=context={folder}", f"--local=dockerfile={folder}", f"--output=type=image,name={name},push=true"]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    return name
