"""The OpenAPI document of endpoints."""

from __future__ import annotations

from typing import Annotated, Any

import attrs
import msgspec
from msgspec import Meta
from openapi_spec_validator import OpenAPIV31SpecValidator

from broker.rest.http_endpoint import Call, Endpoint
from broker.rest.messages import Response
from broker.rest.openapi import document


@attrs.frozen
class Query:
    limit: Annotated[int, Meta(ge=1, le=10, description="rows at most")] = 5
    near: str | None = None


@attrs.frozen
class Body:
    hostport: str
    labels: dict[str, Any] | None = None


@attrs.frozen
class Row:
    """A row."""

    name: str


@attrs.frozen
class Rows:
    rows: list[Row]


def handle(call: Call) -> Response:
    return Response()


ENDPOINTS = [
    Endpoint("GET", "/v1/rows/{name}", "rows", "List", handle, Query, answer=Rows, statuses={304: "not modified"}),
    Endpoint("PUT", "/v1/rows/{name}", "put", "Put", handle, body=Body, answer=Row, status=201, statuses={409: "no"}),
    Endpoint("DELETE", "/v1/rows/{name}", "delete", "Delete", handle, status=204, operation=None),
]


def test_the_document_is_valid_and_json() -> None:
    made = msgspec.json.decode(msgspec.json.encode(document(ENDPOINTS, "broker", "1")))
    OpenAPIV31SpecValidator(made).validate()


def test_operations_have_their_parameters_bodies_and_answers() -> None:
    made = document(ENDPOINTS, "broker", "1")
    get, put = made["paths"]["/v1/rows/{name}"]["get"], made["paths"]["/v1/rows/{name}"]["put"]
    *parameters, request_id = get["parameters"]
    assert request_id == {"$ref": "#/components/parameters/X-Request-ID"}
    assert [(each["name"], each["in"], each["required"]) for each in parameters] == [
        ("name", "path", True),
        ("limit", "query", False),
        ("near", "query", False),
    ]
    assert get["parameters"][1]["schema"] == {"type": "integer", "minimum": 1, "maximum": 10, "default": 5}
    assert get["parameters"][1]["description"] == "rows at most"
    assert get["parameters"][2]["schema"] == {"type": "string"}
    assert get["responses"]["200"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Rows"}
    assert "content" not in get["responses"]["304"]
    assert put["requestBody"]["required"]
    assert put["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Body"}
    assert "application/problem+json" in put["responses"]["409"]["content"]
    assert {"Rows", "Row", "Body", "ProblemDetails"} <= made["components"]["schemas"].keys()


def test_each_answer_has_the_id_of_the_request() -> None:
    path = document(ENDPOINTS, "broker", "1")["paths"]["/v1/rows/{name}"]
    answers = [answer for operation in path.values() for answer in operation["responses"].values()]
    assert all(each["headers"]["X-Request-ID"]["$ref"] == "#/components/headers/X-Request-ID" for each in answers)


def test_the_right_of_an_operation_is_in_the_document() -> None:
    path = document(ENDPOINTS, "broker", "1")["paths"]["/v1/rows/{name}"]
    assert "`view`" in path["get"]["description"]
    assert "security" not in path["delete"]
