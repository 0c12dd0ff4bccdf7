"""The OpenAPI document of the control plane, made from its table of operations and the pydantic models."""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode

REFERENCE = "#/components/schemas/{model}"


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of the control plane."""

    method: str
    path: str
    name: str
    """The operation's id."""
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    """Its docstring is the summary."""
    answer: Any
    """Type of the answer; None: plain text."""
    body: type[BaseModel] | None = None
    """What is sent, if anything."""
    is_body_required: bool = True


def make_document(operations: Iterable[Operation]) -> dict[str, Any]:
    """OpenAPI 3.1."""
    table = list(operations)
    types: list[tuple[Any, JsonSchemaMode, TypeAdapter[Any]]] = []
    for operation in table:
        types += [(operation.body, "validation", TypeAdapter(operation.body))] if operation.body else []
        types += [(operation.answer, "serialization", TypeAdapter(operation.answer))] if operation.answer else []
    inputs = [(kind, mode, adapter.core_schema) for kind, mode, adapter in types]
    schemas, definitions = GenerateJsonSchema(ref_template=REFERENCE).generate_definitions(inputs)
    paths: dict[str, dict[str, Any]] = {}
    for operation in table:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "ProxyServer control plane", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": {"controlKey": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"controlKey": []}],
    }


def _describe(operation: Operation, schemas: dict[Any, Any]) -> dict[str, Any]:
    text: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    answer = text
    if operation.answer is not None:
        answer = {"application/json": {"schema": schemas[operation.answer, "serialization"]}}
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": inspect.getdoc(operation.handler) or "",
        "responses": {"200": {"description": "Done", "content": answer}},
    }
    names = re.findall(r"\{(\w+)\}", operation.path)
    if names:
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if operation.body is not None:
        content = {"application/json": {"schema": schemas[operation.body, "validation"]}}
        described["requestBody"] = {"required": operation.is_body_required, "content": content}
    return described
