"""Requests to the HTTP API of a daemon."""

from __future__ import annotations

import json
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

from tests.integration.daemon import Daemon
from tests.patience import PATIENCE


def call(
    daemon: Daemon, method: str, path: str, body: Any = None, source: str = "", **headers: str
) -> tuple[int, Any, dict[str, str]]:
    """The status, the JSON and the header fields of an answer to a request from ``source``."""
    port, bound = daemon.http_port(), (source, 0)
    with closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE, source_address=bound)) as connection:
        data = None if body is None else json.dumps(body)
        given = {} if data is None else {"Content-Type": "application/json"}
        connection.request(method, path, data, {**given, **headers})
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None, dict(answer.getheaders())


def ask(daemon: Daemon, method: str, path: str, body: Any = None, source: str = "", **headers: str) -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    return call(daemon, method, path, body, source, **headers)[:2]
