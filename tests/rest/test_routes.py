"""Routing of methods and paths to endpoints."""

from __future__ import annotations

import pytest

from broker.rest.http_endpoint import LONGEST, MATCHES, Call, Endpoint, Routes, path_of
from broker.rest.messages import Response
from broker.rest.problem import Problem


def handle(call: Call) -> Response:
    return Response()


def endpoint(method: str, path: str) -> Endpoint:
    return Endpoint(method, path, f"{method} {path}", "", handle)


LIST = [
    endpoint("GET", "/"),
    endpoint("GET", "/v1/services"),
    endpoint("GET", "/v1/services/{name}"),
    endpoint("PUT", "/v1/services/{name}/{instance}"),
    endpoint("DELETE", "/v1/services/{name}/{instance}"),
]


@pytest.fixture
def routes() -> Routes:
    made = Routes(LIST)
    return made


@pytest.mark.parametrize(
    ("method", "path", "found", "variables"),
    [
        ("GET", "/", "GET /", {}),
        ("HEAD", "/v1/services", "GET /v1/services", {}),
        ("GET", "/v1/services/a", "GET /v1/services/{name}", {"name": "a"}),
        ("GET", "/v1/services/a%2Fb", "GET /v1/services/{name}", {"name": "a/b"}),
        ("GET", "/v1/services/%C3%A9%25", "GET /v1/services/{name}", {"name": "é%"}),
        ("GET", "/v1/%73ervices/%61", "GET /v1/services/{name}", {"name": "a"}),
        ("PUT", "/v1/services/a/b", "PUT /v1/services/{name}/{instance}", {"name": "a", "instance": "b"}),
    ],
)
def test_a_path_has_an_endpoint_and_variables(
    routes: Routes, method: str, path: str, found: str, variables: dict[str, str]
) -> None:
    endpoint, given = routes.find(method, path)
    assert (endpoint.name, given) == (found, variables)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2", 404),
        ("GET", "", 404),
        ("GET", "*", 404),
        ("GET", "//", 404),
        ("GET", "//v1/services", 404),
        ("GET", "/v1//services", 404),
        ("GET", "/v1/services/", 404),
        ("GET", "/v1/services/a/", 404),
        ("GET", "/v1/services/a/b/c", 404),
        ("GET", "/v1/../v1/services", 404),
        ("GET", "/v1/services/%FF", 400),
        ("POST", "/v1/services", 405),
        ("GET", "/v1/services/a/b", 405),
    ],
)
def test_other_paths_and_methods_are_problems(routes: Routes, method: str, path: str, status: int) -> None:
    with pytest.raises(Problem) as caught:
        routes.find(method, path)
    assert caught.value.status == status


def test_a_problem_of_the_method_has_the_other_methods(routes: Routes) -> None:
    with pytest.raises(Problem) as caught:
        routes.find("GET", "/v1/services/a/b")
    assert caught.value.headers == (("Allow", "DELETE, OPTIONS, PUT"),)


def test_endpoints_of_a_wire_that_opens_later_are_found() -> None:
    routes = Routes(LIST[:1])
    for _ in range(2):
        with pytest.raises(Problem):
            routes.find("GET", "/v1/services")
    routes.add(LIST[1:])
    assert routes.find("GET", "/v1/services")[0] is LIST[1]
    assert routes.endpoints == LIST


def test_matches_that_are_kept_are_bounded(routes: Routes) -> None:
    for number in range(2 * MATCHES):
        assert routes.find("GET", f"/v1/services/{number}")[1] == {"name": str(number)}
    long = "x" * 2 * LONGEST
    assert routes.find("GET", f"/v1/services/{long}")[1] == {"name": long}
    assert routes._kept.cache_info().currsize == MATCHES


def test_the_path_of_an_endpoint_leads_back_to_it(routes: Routes) -> None:
    path = path_of(LIST[3], name="a/b c", instance="%é")
    assert path == "/v1/services/a%2Fb%20c/%25%C3%A9"
    assert routes.find("PUT", path) == (LIST[3], {"name": "a/b c", "instance": "%é"})
