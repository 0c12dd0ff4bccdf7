"""Prints the settings reference as Markdown, from the models themselves: names, types, defaults and field docstrings.

`make docs` writes it to `docs/settings.md`, and a test fails when that file is not what this prints.
"""

import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from workflows.settings import DEFAULT_PROFILE, PREFIX, SELECTORS, Settings

HEAD = f"""# Settings

Written by `make docs` from the models; do not edit.

A setting is written `section.key=value` on the command line, `{PREFIX}SECTION__KEY` in the environment, and as YAML in
a profile: `workflows/profiles/NAME.yaml`, or any file given as `--profile FILE`. The command line overrides the
environment, which overrides the profile, which overrides the defaults below. Without `--profile` the profile is
`{DEFAULT_PROFILE}`. Unknown keys are errors. In a section with alternatives a key ({", ".join(SELECTORS)}) picks one.
"""


def render() -> str:
    """The whole document."""
    return "\n".join(
        [HEAD, *(line for name, field in Settings.model_fields.items() for line in _part(name, field, None, 2))]
    )


def _part(path: str, field: FieldInfo, holder: BaseModel | None, level: int) -> Iterator[str]:
    """A field that holds a model, or one of several; `holder` is the default that it belongs to, if there is one."""
    value = _default(path.rpartition(".")[2], field, holder)
    yield f"{'#' * level} {path}\n\n{_text(field)}\n"
    for model in _models(field.annotation):
        yield from _table(path, model, value if isinstance(value, model) else None)


def _default(key: str, field: FieldInfo, holder: BaseModel | None) -> Any:
    return getattr(holder, key) if holder is not None else field.get_default(call_default_factory=True)


def _table(path: str, model: type[BaseModel], default: BaseModel | None) -> Iterator[str]:
    """One model's own keys, then the parts nested in it."""
    given = {key for key, field in model.model_fields.items() if not field.is_required()}
    selector = next((key for key in SELECTORS if key in given), None)
    if selector is not None:
        mark = " (default)" if default is not None else ""
        yield f"### {path}.{selector}={model.model_fields[selector].default}{mark}\n\n{_one_line(model.__doc__)}\n"
    fields = {key: field for key, field in model.model_fields.items() if key != selector}
    rows = [_row(key, field, default) for key, field in fields.items() if not _models(field.annotation)]
    if rows:
        yield "\n".join(["| key | type | default | |", "|---|---|---|---|", *rows, ""])
    for key, field in fields.items():
        if _models(field.annotation):
            yield from _part(f"{path}.{key}", field, default, 3)


def _row(key: str, field: FieldInfo, holder: BaseModel | None) -> str:
    shown = "required" if holder is None and field.is_required() else _value(_default(key, field, holder))
    return f"| `{key}` | {_type(field.annotation)} | {shown} | {_text(field)} |"


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The settings models that a field can hold."""
    if get_origin(annotation) is Annotated:
        return _models(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [model for part in get_args(annotation) for model in _models(part)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []


def _type(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(parts[0])
    if origin is Literal:
        return " or ".join(f"`{part}`" for part in parts)
    if origin in (Union, UnionType):
        return " or ".join("none" if part is NoneType else _type(part) for part in parts)
    if origin in (tuple, list, set, frozenset):
        return f"list of {_type(parts[0])}"
    if origin is dict:
        return f"map of {_type(parts[0])} to {_type(parts[1])}"
    names = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, Enum):
        return f"`{value.value}`"
    if isinstance(value, tuple | list | dict | set | frozenset):
        return f"`{', '.join(map(str, value))}`" if value else "empty"
    return f"`{value}`" if value != "" else "empty"


def _text(field: FieldInfo) -> str:
    return _one_line(field.description)


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(render())
