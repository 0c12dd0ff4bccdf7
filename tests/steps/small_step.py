"""A step in miniature: fails, waits or writes as its inputs say. Stands for a real one in tests of the contract."""

import socket
import time
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from agentic.errors import PermanentError, TransientError
from agentic.files import write_json
from steps import contract
from steps.command import main
from steps.contract import Step, StepInput, StepOutput


class SmallInput(StepInput):
    """What to do."""

    STEP: ClassVar[str] = "small"
    EXAMPLE: ClassVar[dict[str, Any]] = {"run_id": "try", "count": 2}

    count: int = Field(1, ge=1)
    """Files to write."""
    fail: str = ""
    """How to fail."""
    pause_seconds: float = 0.0
    """Between two files."""


class SmallOutput(StepOutput):
    """What was done."""

    files: list[str]
    """Relative to the workspace."""

    def artifacts(self) -> list[str]:
        return self.files


def run(inputs: SmallInput) -> SmallOutput:
    """Write some files."""
    return contract.execute(inputs, _work, SmallOutput)


def _work(inputs: SmallInput, step: Step) -> SmallOutput:
    _fail(inputs.fail, step.workspace.run_dir)
    files = []
    for index in range(inputs.count):
        path = step.workspace.run_dir / "files" / f"{index}.json"
        if not path.exists():
            with (step.workspace.run_dir / "written").open("a") as journal:
                journal.write(f"{index}\n")
            write_json(path, {"index": index})
        files.append(step.workspace.relative(path))
        step.progress(index + 1, inputs.count, f"file {index}")
        time.sleep(inputs.pause_seconds)
    return SmallOutput(files=files)


def _fail(how: str, run_dir: Path) -> None:  # noqa: C901 - a table of failures
    match how:
        case "permanent":
            raise PermanentError("train.steps is 0: raise it")
        case "transient":
            raise TransientError("the mirror is away: try again")
        case "bug":
            raise KeyError("nothing")
        case "group":
            raise ExceptionGroup("several", [TransientError("one of several: try again")])
        case "missing":
            (run_dir / "nowhere").read_text()
        case "port":
            with socket.create_server(("127.0.0.1", 0)) as first:
                socket.create_server(first.getsockname())
        case "full":
            (run_dir / "large").write_bytes(bytes(8 * 1024 * 1024))
        case "memory":
            bytearray(1 << 50)
        case "package":
            __import__("no_such_package")
        case "interrupt":
            raise KeyboardInterrupt
        case "full-device":
            with Path("/dev/full").open("w") as device:
                device.write("x")
                device.flush()


if __name__ == "__main__":
    raise SystemExit(main(SmallInput, run))
