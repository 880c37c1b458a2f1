"""The OpenAPI 3.1 document of a list of endpoints."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import attrs
import msgspec

from broker.rest.http_endpoint import Endpoint, template_variables
from broker.rest.messages import REQUEST_ID, REQUEST_ID_PATTERN
from broker.rest.problem import MEDIA_TYPE, ProblemDetails

TEMPLATE = "#/components/schemas/{name}"

_ID_PARAMETER = {
    "name": REQUEST_ID,
    "in": "header",
    "required": False,
    "description": "The id of the request in its answer and in the log of the broker; another form of it is ignored.",
    "schema": {"type": "string", "pattern": f"^{REQUEST_ID_PATTERN}$"},
}
_ID_HEADER = {
    "description": "The id of the request: the one that it gave, or one of the broker's.",
    "required": True,
    "schema": {"type": "string", "pattern": f"^{REQUEST_ID_PATTERN}$"},
}
_ID_HEADERS = {"headers": {REQUEST_ID: {"$ref": f"#/components/headers/{REQUEST_ID}"}}}
"""The header of each answer."""

BEARER, BASIC = "bearer", "basic"


def document(endpoints: Sequence[Endpoint], title: str, version: str, description: str = "") -> dict[str, Any]:
    """Return the document as plain JSON values."""
    paths: dict[str, dict[str, Any]] = {}
    schemas = _Schemas(endpoints)
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": description},
        "paths": paths,
        "components": {
            "parameters": {REQUEST_ID: _ID_PARAMETER},
            "headers": {REQUEST_ID: _ID_HEADER},
            "schemas": schemas.components,
            "securitySchemes": {
                BEARER: {"type": "http", "scheme": "bearer"},
                BASIC: {"type": "http", "scheme": "basic"},
            },
        },
    }


class _Schemas:
    """The JSON schemas of all types of the endpoints."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        types: list[Any] = [ProblemDetails]
        for endpoint in endpoints:
            types += [each for each in (endpoint.body, endpoint.answer) if each is not None]
            types.append(endpoint.query)
        found, components = msgspec.json.schema_components(types, ref_template=TEMPLATE)
        self._by_type = [*zip(types, map(_plain, found), strict=True)]
        self._all = _plain(components)
        queries = {endpoint.query.__name__ for endpoint in endpoints}
        others = {each.__name__ for endpoint in endpoints for each in (endpoint.body,) if each is not None}
        self.components = {name: each for name, each in self._all.items() if name not in queries - others}

    def of(self, type_: Any) -> dict[str, Any]:
        """Return the schema of a type: a reference, for a class."""
        for known, schema in self._by_type:
            if known is type_:
                found: dict[str, Any] = schema
                return found
        raise KeyError(type_)

    def members(self, type_: type[Any]) -> Mapping[str, Any]:
        """Return the schema of a class itself."""
        name = self.of(type_)["$ref"].rpartition("/")[2]
        schema: Mapping[str, Any] = self._all[name]
        return schema


def _operation(endpoint: Endpoint, schemas: _Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "parameters": [
            *map(_variable, template_variables(endpoint.path)),
            *_parameters(endpoint.query, schemas),
            *(_header(name, text) for name, text in endpoint.headers.items()),
            {"$ref": f"#/components/parameters/{REQUEST_ID}"},
        ],
        "responses": _responses(endpoint, schemas),
    }
    if endpoint.body is not None:
        required = any(field.default is attrs.NOTHING for field in attrs.fields(endpoint.body))
        operation["requestBody"] = {
            "required": required,
            "content": {"application/json": {"schema": schemas.of(endpoint.body)}},
        }
    if endpoint.operation is not None:
        operation["description"] = f"Needs the right `{endpoint.operation}`."
        operation["security"] = [{}, {BEARER: []}, {BASIC: []}]
    return operation


def _variable(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _header(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}


def _parameters(query: type[Any], schemas: _Schemas) -> list[dict[str, Any]]:
    members = schemas.members(query)
    required = members.get("required", ())
    found = []
    for name, schema in members.get("properties", {}).items():
        schema = _without_null(schema)
        parameter: dict[str, Any] = {"name": name, "in": "query", "required": name in required, "schema": schema}
        if "description" in schema:
            parameter["description"] = schema.pop("description")
        found.append(parameter)
    return found


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter without null: a text has none; an absent parameter stands for it."""
    schema = {key: value for key, value in schema.items() if not (key == "default" and value is None)}
    if "anyOf" not in schema:
        return schema
    others = [each for each in schema["anyOf"] if each != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**rest, **others[0]} if len(others) == 1 else {**rest, "anyOf": others}


def _responses(endpoint: Endpoint, schemas: _Schemas) -> dict[str, Any]:
    success: dict[str, Any] = {"description": HTTPStatus(endpoint.status).phrase, **_ID_HEADERS}
    if endpoint.answer is not None:
        success["content"] = {"application/json": {"schema": schemas.of(endpoint.answer)}}
    problem = {**_ID_HEADERS, "content": {MEDIA_TYPE: {"schema": schemas.of(ProblemDetails)}}}
    others: dict[str, Any] = {}
    for status, meaning in endpoint.statuses.items():
        content = problem if status >= 400 else {key: each for key, each in success.items() if key != "description"}
        others[str(status)] = {"description": meaning, **(content if status not in (204, 304) else _ID_HEADERS)}
    return {str(endpoint.status): success, **others, "default": {"description": "an error", **problem}}


def _plain(value: Any) -> Any:
    """Return JSON values: tuples as lists, and the sentences of docstrings without their indentation."""
    if isinstance(value, dict):
        return {
            key: inspect.cleandoc(each) if key == "description" and isinstance(each, str) else _plain(each)
            for key, each in value.items()
        }
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
