"""Runs one attempt of a template as a process: the command, arguments, environment and files that a pod would get.

What differs from a pod, and all that does: the image is this Python, volumes are folders of the workspace, the outputs
directory and the script file lie in `runs/<run-id>/local/`, and output goes to `runs/<run-id>/logs/<node>.log`.
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agentic import processes
from steps import failures
from workflows.local.document import Container, Template
from workflows.local.process import run_process
from workflows.local.scheduler import Attempt, AttemptResult
from workflows.local.substitution import substitute

OUTPUTS_VARIABLE = "hera__outputs_directory"
"""Where Hera's runner writes output parameters."""

MESSAGE_VARIABLE = "AGENTIC_TERMINATION_LOG"
"""The file that stands for a container's termination message."""

TARGET_VARIABLE = "AGENTIC_TARGET"
"""Tells a step that this machine does all of the work, so that its checks apply."""

DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"
"""Argo's own words, since retry expressions match them."""


@dataclass(frozen=True)
class ProcessExecutor:
    """Executes attempts in one run's folder."""

    run_id: str
    run_dir: Path
    workspace: Path
    code_dir: Path
    """Working directory of every command, from which `python -m` finds the steps."""

    async def execute(self, attempt: Attempt) -> AttemptResult:
        """Run one attempt to its end; what this machine refuses, such as a full disk, ends it like a failing step."""
        try:
            return await self._execute(attempt)
        except OSError as error:
            failure = failures.classify(error)
            return AttemptResult("Failed", failure.exit_code, failure.line)

    def log_of(self, node: str) -> Path:
        """Where the output of a node goes, all attempts one after the other."""
        return self.run_dir / "logs" / f"{node}.log"

    async def _execute(self, attempt: Attempt) -> AttemptResult:
        command = attempt.template.command
        if command is None:
            raise TypeError(f"template {attempt.template.name} has no command")
        folder = self.run_dir / "local" / f"{attempt.node}-{attempt.number}"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "outputs").mkdir(parents=True)
        self._make_folders(command)
        log = self.log_of(attempt.node)
        log.parent.mkdir(parents=True, exist_ok=True)
        arguments = self._command(command, attempt, folder)
        environment = self._environment(command, attempt, folder)
        deadline = attempt.template.active_deadline_seconds
        try:
            code = await run_process(arguments, environment, self.code_dir, log, deadline)
        except TimeoutError:
            return AttemptResult("Failed", None, f"{DEADLINE_MESSAGE} ({deadline} s)")
        except (FileNotFoundError, PermissionError) as error:
            if error.filename != arguments[0]:
                raise
            reason = f"{arguments[0]} cannot be started: {error.strerror}"
            return AttemptResult("Failed", failures.PERMANENT, reason)
        if code:
            return AttemptResult("Failed", code, _failure_message(code, folder, log))
        return _succeeded(attempt.template, command, folder)

    def _command(self, command: Container, attempt: Attempt, folder: Path) -> list[str]:
        inputs = [{"name": name, "value": value} for name, value in attempt.inputs.items()]
        scope = {**attempt.scope, "inputs.parameters": json.dumps(inputs)}
        words = [substitute(word, scope) for word in [*command.command, *command.args]]
        if command.source is not None:
            script = folder / "script"
            script.write_text(substitute(command.source, scope))
            words.append(str(script))
        return [sys.executable, *words[1:]] if words[0] in {"python", "python3"} else words

    def _environment(self, command: Container, attempt: Attempt, folder: Path) -> Mapping[str, str]:
        environment = dict(os.environ)
        for variable in (variable for variable in command.env if variable.value_from is None):
            value = substitute(variable.value, attempt.scope)
            environment[variable.name] = str(self._local_path(value, command))
        environment |= {
            **processes.marks(self.run_id, self.workspace),
            OUTPUTS_VARIABLE: str(folder / "outputs"),
            MESSAGE_VARIABLE: str(folder / "message"),
            TARGET_VARIABLE: "local",
            # A Ray worker that rewrites its title would otherwise lose the environment by which a sweep finds it.
            "SPT_NOENV": "1",
        }
        return environment

    def _local_path(self, value: str, command: Container) -> str | Path:
        path = PurePosixPath(value)
        if not path.is_absolute() or not path.is_relative_to(command.container_workspace):
            return value
        return self.workspace / path.relative_to(command.container_workspace)

    def _make_folders(self, command: Container) -> None:
        for mount in command.volume_mounts:
            Path(self._local_path(mount.mount_path, command)).mkdir(parents=True, exist_ok=True)


def _succeeded(template: Template, command: Container, folder: Path) -> AttemptResult:
    base = next((variable.value for variable in command.env if variable.name == OUTPUTS_VARIABLE), None)
    outputs: dict[str, str] = {}
    for parameter in template.outputs.parameters:
        source = parameter.value_from
        if source is None:
            continue
        path = PurePosixPath(source.path)
        local = folder / "outputs" / path.relative_to(base) if base and path.is_relative_to(base) else Path(path)
        try:
            outputs[parameter.name] = local.read_text()
        except FileNotFoundError:
            if source.default is None:
                return AttemptResult("Errored", 0, f"output '{parameter.name}' was not written to {path}")
            outputs[parameter.name] = source.default
    return AttemptResult("Succeeded", 0, _last_line(folder / "message"), outputs)


def _failure_message(code: int, folder: Path, log: Path) -> str:
    reason = _last_line(folder / "message") or _last_line(log)
    return f"{reason} (exit code {code})" if reason else f"exit code {code}"


def _last_line(path: Path, tail_bytes: int = 4096) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - tail_bytes))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
