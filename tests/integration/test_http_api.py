"""The HTTP API of a running daemon, held against its own document by a property-based tester."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from openapi_spec_validator import validate
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.integration.daemon import Daemon
from tests.packages import program
from tests.patience import PATIENCE

EXAMPLES = 6
"""Requests of each kind for each operation: the whole test takes less than a minute."""

ENDLESS = r"^/v1/(watch|topics/.*/messages|actions/shutdown|actions/drain)$"
"""Paths that are left out: streams without an end, and the ends of the daemon."""


CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


class Http:
    """A client of the daemon's API."""

    def __init__(self, daemon: Daemon) -> None:
        self.url = f"http://127.0.0.1:{daemon.http_port()}"

    def ask(self, path: str, method: str = "GET", body: Any = None) -> Any:
        """The JSON answer of a request."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urlopen(request, timeout=PATIENCE) as answer:
            return json.loads(answer.read() or b"null")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("api"), "--director-port", "0") as running:
        Http(running).ask("/v1/services/bank/one", "PUT", {"hostport": "h:1", "ttl": 600})
        yield running
        assert not [line for line in running.log if "Traceback" in line]


@pytest.fixture
def http(daemon: Daemon) -> Http:
    return Http(daemon)


@pytest.mark.long
def test_each_operation_keeps_to_the_document(http: Http) -> None:
    """Each answer has a status, a content type and a body of the document, whatever the parameters are."""
    schema: Any = schemathesis.openapi.from_dict(http.ask("/openapi.json"))
    schema.config.update(base_url=http.url)
    operations = [each.ok() for each in schema.exclude(path_regex=ENDLESS).get_all_operations()]
    assert len(operations) > 20
    for operation in operations:
        for mode in GenerationMode:
            _keeps(operation, mode)


def _keeps(operation: Any, mode: GenerationMode) -> None:
    """Send requests that keep to the document, or requests that do not."""

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    def check(case: Any) -> None:
        if case.query and "wait" in case.query:
            case.query["wait"] = 0
        case.call_and_validate(checks=CHECKS, timeout=PATIENCE)

    # An operation without parameters cannot be called wrongly.
    with suppress(Unsatisfiable):
        check()


@pytest.mark.long
def test_the_document_is_valid_openapi(http: Http) -> None:
    document = http.ask("/openapi.json")
    validate(document)
    names = [each["operationId"] for path in document["paths"].values() for each in path.values()]
    assert len(names) == len(set(names))


def test_the_end_of_a_lease_is_told(http: Http) -> None:
    http.ask("/v1/services/leased/one", "PUT", {"hostport": "h:2", "ttl": 600})
    [entry] = http.ask("/v1/why/leased")["entries"]
    assert 0 < entry["left"] <= 601
    assert entry["ends"] == f"in {entry['left']:.1f} s without another sign of life, or when it is withdrawn"
    assert all(each["left"] is None for each in http.ask("/v1/why/broker-client")["entries"])


def test_every_view_is_served(http: Http) -> None:
    views = http.ask("/v1/views")["rows"]
    assert [view["title"].lower() for view in views] == [view["name"] for view in views]
    titles = {view["title"] for view in views}
    assert {"Elko sessions", "mc0 topics", "DBP services", "MTL queues", "HTTP instances", "Broker plan"} <= titles
    for view in views:
        answer = http.ask(f"{view['path']}?limit=5&sort=-{view['columns'][0]['name']}")
        assert len(answer["rows"]) == min(5, answer["total"]), view["name"]
        columns = {column["name"] for column in view["columns"]}
        assert all(row.keys() <= columns for row in answer["rows"])


def test_promtool_finds_nothing_wrong_in_the_metrics_of_a_daemon(http: Http) -> None:
    promtool = program("promtool")
    with urlopen(f"{http.url}/metrics", timeout=PATIENCE) as answer:
        text = answer.read()
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_a_restart_is_told_to_a_watcher_that_resumes(tmp_path: Path) -> None:
    with Daemon(tmp_path) as before:
        place = Http(before).ask("/v1/registry")
    with Daemon(tmp_path) as after:
        http = Http(after)
        old = Request(f"{http.url}/v1/watch", headers={"Last-Event-ID": f"{place['epoch']}-{place['revision']}"})
        with urlopen(old, timeout=PATIENCE) as stream:
            assert stream.headers["Content-Type"] == "text/event-stream"
            lines = [stream.readline().decode().strip() for _ in range(3)]
        now = http.ask("/v1/registry")
        assert lines[0] == "event: resync"
        assert lines[1].startswith(f"id: {now['epoch']}-")


def test_a_client_of_http_is_traced(daemon: Daemon, http: Http) -> None:
    http.ask("/v1/trace/127.0.0.1", "PUT", {"seconds": 30})
    http.ask("/v1/registry")
    daemon.wait_for(r"GET /v1/registry'?$")
    daemon.wait_for(r"200 application/json")
    http.ask("/v1/trace/127.0.0.1", "DELETE")
