"""Tool configuration files in verl's form: written for the code sandbox, and checked before anything is started.

{"tools": [{"class_name": "package.module.Class", "config": {"type": "native", ...}, "tool_schema": null}]}
"""

import importlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from agentic import files
from agentic.errors import PermanentError

SANDBOX_TOOL = "agentic.training.tools.sandbox_tool.SandboxTool"


class _Config(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: Literal["native"]


class ToolEntry(BaseModel):
    """One tool."""

    model_config = ConfigDict(extra="forbid")

    class_name: str
    config: _Config
    tool_schema: dict[str, Any] | None = None


class ToolFile(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid")

    tools: list[ToolEntry]


def write_sandbox_tool(path: Path, **config: Any) -> None:
    """A file with `code_interpreter` alone; readable by us only, since it may hold a key."""
    entry = {"class_name": SANDBOX_TOOL, "config": {"type": "native", **config}}
    path.touch(mode=0o600)
    path.chmod(0o600)
    files.write_text(path, json.dumps({"tools": [entry]}, indent=1) + "\n")
    path.chmod(0o600)


def check_tools(path: Path) -> list[str]:
    """The names of the file's tools, each made once.

    Raises:
        PermanentError: the file cannot be read, names no tool of verl's kind, or a tool refuses its configuration.
    """
    entries = _read(path).tools
    if not entries:
        raise PermanentError(f"train.tools.config {path} lists no tools: add one, or set train.agent_loop")
    names: list[str] = []
    for index, entry in enumerate(entries):
        name = _name_of(entry, f"train.tools.config {path}: tools[{index}] ({entry.class_name})")
        if name in names:
            raise PermanentError(f"train.tools.config {path} has two tools named {name}: the model could not tell them")
        names.append(name)
    return names


def _read(path: Path) -> ToolFile:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        return ToolFile.model_validate(OmegaConf.to_container(OmegaConf.load(path), resolve=True))
    except OSError as error:
        raise PermanentError(f"train.tools.config {path} cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise PermanentError(f"train.tools.config {path}: {where}: {first['msg']}") from error
    except (YAMLError, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())[:160]
        raise PermanentError(f"train.tools.config {path} is neither JSON nor YAML: {reason}") from error


def _name_of(entry: ToolEntry, place: str) -> str:
    from verl.tools.base_tool import BaseTool
    from verl.tools.schemas import OpenAIFunctionToolSchema

    module_name, _, class_name = entry.class_name.rpartition(".")
    try:
        made = getattr(importlib.import_module(module_name), class_name, None)
    except (ImportError, ValueError) as error:
        raise PermanentError(f"{place} cannot be imported: {error}") from error
    if not (isinstance(made, type) and issubclass(made, BaseTool)):
        raise PermanentError(f"{place} is no class derived from verl's BaseTool")
    try:
        schema = OpenAIFunctionToolSchema.model_validate(entry.tool_schema) if entry.tool_schema else None
        return str(made(config=entry.config.model_dump(), tool_schema=schema).name)
    except PermanentError as error:
        raise PermanentError(f"{place}: {error}") from error
    except Exception as error:
        raise PermanentError(f"{place} cannot be made: {type(error).__name__}: {str(error)[:200]}") from error
