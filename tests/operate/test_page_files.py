"""The files of the page: contents, headers, references."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from broker.access.principal import Principal
from broker.operate.page_files import FOLDER, TYPES, endpoints, files
from broker.rest.http_endpoint import Call, NoParameters, Routes
from broker.rest.messages import Request, Response
from broker.rest.problem import Problem


def get(path: str, headers: Mapping[str, str] | None = None) -> Response:
    routes = Routes(endpoints())
    endpoint, variables = routes.find("GET", path)
    call = Call(Request("GET", path, headers=headers or {}), Principal(), variables, NoParameters())
    answer = endpoint.handler(call)
    assert isinstance(answer, Response)
    return answer


def test_the_page_is_html_and_needs_no_right() -> None:
    page = get("/")
    assert (page.status, page.content_type) == (200, "text/html; charset=utf-8")
    assert isinstance(page.body, bytes)
    assert page.body.startswith(b"<!doctype html>")
    assert [endpoint.operation for endpoint in endpoints()] == [None, None]


@pytest.mark.parametrize("path", ["/", "/assets/main.js", "/assets/base.css", "/assets/icon.svg"])
def test_every_file_has_the_policies(path: str) -> None:
    headers = dict(get(path).headers)
    policies = dict(policy.split(" ", 1) for policy in headers["Content-Security-Policy"].split("; "))
    assert policies["default-src"] == "'none'"
    assert policies["script-src"] == policies["style-src"] == policies["connect-src"] == "'self'"
    assert policies["frame-ancestors"] == policies["base-uri"] == policies["form-action"] == "'none'"
    assert policies["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer"


def test_a_current_copy_is_not_sent_again() -> None:
    first = get("/assets/main.js")
    tag = dict(first.headers)["ETag"]
    again = get("/assets/main.js", {"if-none-match": tag})
    assert (again.status, again.body) == (304, b"")
    assert get("/assets/main.js", {"if-none-match": '"other"'}).status == 200
    assert get("/assets/dom.js", {"if-none-match": tag}).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/assets/",
        "/assets/none.js",
        "/assets/..",
        "/assets/%2e%2e",
        "/assets/..%2ffiles.py",
        "/assets/%2fetc%2fpasswd",
        "/assets/main.js%00",
        "/assets/main.js/",
    ],
)
def test_nothing_else_is_served(path: str) -> None:
    with pytest.raises(Problem) as caught:
        get(path)
    assert caught.value.status == 404


def test_all_files_of_the_folder_are_served() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(files())
    assert {Path(name).suffix for name in files()} == set(TYPES)


def test_the_files_refer_to_files_of_the_page_only() -> None:
    """Nothing is loaded from elsewhere, and no module is missing."""
    for name, file in files().items():
        text = file.data.decode()
        assert not re.search(r"(src|href)=\"(https?:)?//|url\(|@import", text), name
        modules = re.findall(r"^(?:import|export)\b[^;]*? from \"\./([^\"]+)\"", text, re.MULTILINE)
        assets = re.findall(r"(?:src|href)=\"/assets/([^\"]+)\"", text)
        assert {*modules, *assets} <= set(files()), name


@pytest.mark.parametrize("name", [name for name in files() if name.endswith(".js")])
def test_no_text_becomes_html_or_script(name: str) -> None:
    text = files()[name].data.decode()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|srcdoc", text
    )
