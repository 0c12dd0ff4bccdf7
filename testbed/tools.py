"""The programs that are built from published Go modules, once a machine.

Each Go module in `go/` pins what it needs by its go.sum. A program's folder in the cache is named after a digest of all
that decides it (go.mod, go.sum, sources of ours, package, flags), so another checkout finds it and a changed pin builds
anew. The compiler and the network are needed only to build. A build is atomic, and one at a time.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from agentic.files import discard, locked_folder, publish_folder
from testbed.errors import BuildError, MachineError
from testbed.layout import Layout

MODULES = Path(__file__).parent / "go"
KUBERNETES = "v1.34.4"
_VERSION = "k8s.io/component-base/version"
_KUBERNETES_FLAGS = (
    f"-X {_VERSION}.gitVersion={KUBERNETES} -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor=34 "
    f"-X {_VERSION}.gitTreeState=archive"
)
"""A program built as somebody else's dependency does not know its version, and the API server refuses such a node."""

ARGO = "v4.0.5"
_ARGO_MODULE = "github.com/argoproj/argo-workflows/v4"
_ARGO_FLAGS = f"-X {_ARGO_MODULE}.version={ARGO}"

type Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Repair:
    """What a published module lacks, because module archives have no symbolic links and no built files."""

    module: str
    same_as: tuple[tuple[str, str], ...] = ()
    """Missing file, and the file of the module that it links to upstream."""
    texts: tuple[tuple[str, str], ...] = ()
    """Missing file, and what stands in for it."""


_ARGO_REPAIR = Repair(
    _ARGO_MODULE,
    same_as=(("workflow/executor/osspecific/signal_linux.go", "workflow/executor/osspecific/signal_darwin.go"),),
    texts=(("ui/dist/app/index.html", "<html>no UI in this build</html>\n"),),
)


@dataclass(frozen=True, slots=True)
class Tool:
    """A program: `package` of the Go module in `go/<module>`."""

    name: str
    module: str
    package: str
    link_flags: str = ""
    files_from: str = ""
    """A published module whose `files_folder` is kept beside the program, under `files`: manifests, CRDs."""
    files_folder: str = ""
    repair: Repair | None = field(default=None, repr=False)


def _argo(name: str, files_folder: str = "") -> Tool:
    package = f"{_ARGO_MODULE}/cmd/{name}"
    files_from = _ARGO_MODULE if files_folder else ""
    return Tool(name, "argo", package, _ARGO_FLAGS, files_from, files_folder, _ARGO_REPAIR)


def _kubernetes(name: str) -> Tool:
    return Tool(name, "k8s", f"k8s.io/kubernetes/cmd/{name}", _KUBERNETES_FLAGS)


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("pause", "pause", "."),
        Tool("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
        _kubernetes("kube-apiserver"),
        _kubernetes("kube-controller-manager"),
        _kubernetes("kube-scheduler"),
        _kubernetes("kubelet"),
        _kubernetes("kube-proxy"),
        _kubernetes("kubectl"),
        Tool(
            "kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", files_from="sigs.k8s.io/kwok", files_folder="kustomize/stage"
        ),
        Tool("kube-router", "kube-router", "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"),
        _argo("workflow-controller", files_folder="manifests/base/crds"),
        _argo("argoexec"),
        _argo("argo"),
        Tool(
            "ray-operator",
            "kuberay",
            "github.com/ray-project/kuberay/ray-operator",
            files_from="github.com/ray-project/kuberay/ray-operator",
            files_folder="config/crd/bases",
        ),
        Tool("coredns", "coredns", "github.com/coredns/coredns"),
        Tool("buildkitd", "buildkit", "github.com/moby/buildkit/cmd/buildkitd"),
        Tool("buildctl", "buildkit", "github.com/moby/buildkit/cmd/buildctl"),
        Tool("rootlesskit", "rootlesskit", "github.com/rootless-containers/rootlesskit/v2/cmd/rootlesskit"),
    )
}
"""Name → program; in build order, since later ones share packages with earlier ones."""


class Toolbox:
    """Built programs by name."""

    def __init__(self, layout: Layout) -> None:
        self._folder = layout.cache / "tools"

    def folder(self, name: str) -> Path:
        return self._folder / f"{name}-{digest(TOOLS[name])[:16]}"

    def path(self, name: str) -> Path:
        return self.folder(name) / name

    def files(self, name: str) -> Path:
        """What a tool keeps of its module besides the program."""
        return self.folder(name) / "files"

    def missing(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if not self.path(name).is_file()]

    def build(self, names: Iterable[str], say: Say) -> None:
        """Build what is missing; what is there costs nothing."""
        for name in self.missing(names):
            self._build_once(name, _find_go(), say)

    def _build_once(self, name: str, go: str, say: Say) -> None:
        with locked_folder(self.folder(name), lambda: say(f"another process builds {name}: waiting"), exclusive=True):
            if self.missing([name]):
                self._build(TOOLS[name], go, say)

    def _build(self, tool: Tool, go: str, say: Say) -> None:
        started = time.monotonic()
        say(f"building {tool.name} (once on this machine)")
        folder = self.folder(tool.name)
        partial = folder.with_name(f".{folder.name}.partial")
        discard(partial)
        partial.mkdir(parents=True)
        program = partial / tool.name
        flags = f"-s -w {tool.link_flags}".strip()
        with tempfile.TemporaryDirectory() as scratch:
            repaired = _repaired(tool, go, Path(scratch))
            _run_go(tool, [go, "build", *repaired, "-trimpath", "-ldflags", flags, "-o", str(program), tool.package])
        if tool.files_from:
            found = json.loads(_run_go(tool, [go, "mod", "download", "-json", tool.files_from]))
            source = Path(found["Dir"]) / tool.files_folder
            shutil.copytree(source, partial / "files", copy_function=shutil.copyfile)
        publish_folder(partial, folder)
        say(f"built {tool.name} in {time.monotonic() - started:.0f} s")


def _repaired(tool: Tool, go: str, scratch: Path) -> list[str]:
    """Flags of a build that takes a complete copy of the module in place of the published one."""
    repair = tool.repair
    if repair is None:
        return []
    found = json.loads(_run_go(tool, [go, "mod", "download", "-json", repair.module]))
    source = scratch / "module"
    shutil.copytree(found["Dir"], source, copy_function=shutil.copyfile)  # the published one is read-only
    for missing, present in repair.same_as:
        shutil.copyfile(source / present, source / missing)
    for missing, text in repair.texts:
        (source / missing).parent.mkdir(parents=True, exist_ok=True)
        (source / missing).write_text(text)
    for name in ("go.mod", "go.sum"):
        shutil.copyfile(MODULES / tool.module / name, scratch / name)
    modfile = scratch / "go.mod"
    _run_go(tool, [go, "mod", "edit", f"-replace={repair.module}={source}", str(modfile)])
    return [f"-modfile={modfile}"]


def digest(tool: Tool) -> str:
    """Of everything that could make a build differ, but for the compiler's version."""
    state = hashlib.sha256()
    for path in sorted((MODULES / tool.module).iterdir()):
        state.update(f"{path.name}\0".encode() + path.read_bytes())
    state.update(repr((tool, platform.machine())).encode())
    if tool.repair is not None:
        state.update(repr(tool.repair).encode())
    return state.hexdigest()


def _find_go() -> str:
    found = shutil.which("go")
    if found is None:
        raise MachineError(
            "the cluster's programs are built with Go and there is no go on PATH: install Go 1.26 or newer"
        )
    return found


def _run_go(tool: Tool, command: list[str]) -> str:
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
    done = subprocess.run(
        command, cwd=MODULES / tool.module, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        raise BuildError(f"go {command[1]} of {tool.name} ended with {done.returncode}: {lines[-1]}")
    return done.stdout
