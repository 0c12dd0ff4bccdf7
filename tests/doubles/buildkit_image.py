"""BuildKit's own image, made of the cluster's programs: none can be pulled here."""

import shutil
import subprocess
from pathlib import Path

from testbed.access import ClusterAccess
from testbed.tools import Toolbox

RUNC = "/usr/sbin/runc"


def push_buildkit_image(cluster: ClusterAccess, folder: Path) -> str:
    """Both programs, runc and nothing else; its name in the cluster's registry."""
    for name in ("usr/bin", "tmp", "etc"):
        (folder / "root" / name).mkdir(parents=True)
    tools = Toolbox(cluster.layout)
    for name in ("buildkitd", "buildctl"):
        shutil.copy(tools.path(name), folder / "root/usr/bin" / name)
    linked = subprocess.run(["ldd", RUNC], capture_output=True, text=True, check=True).stdout
    libraries = [word for line in linked.splitlines() for word in line.split() if word.startswith("/")]
    for path in (RUNC, *libraries):
        target = folder / "root" / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    (folder / "root/etc/passwd").write_text("root:x:0:0:root:/:/none\n")
    (folder / "root/tmp/.keep").write_text("")
    dockerfile = 'FROM scratch\nCOPY root/ /\nENV PATH=/usr/bin:/usr/sbin\nENTRYPOINT ["/usr/bin/buildkitd"]\n'
    (folder / "Dockerfile").write_text(dockerfile)
    name = f"{cluster.layout.registry}/tests/buildkit:{folder.name}"
    build = [str(tools.path("buildctl")), f"--addr=tcp://{cluster.layout.builder}", "build", "--frontend=dockerfile.v0"]
    build += [f"--local=context={folder}", f"--local=dockerfile={folder}", f"--output=type=image,name={name},push=true"]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    return name
