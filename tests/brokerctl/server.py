"""A server of canned answers that records its requests, and the command line run against it in this process."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import attrs
from click.testing import CliRunner, Result

from broker.brokerctl.cli import cli

UNSET = ("ELKOBROKER_URL", "ELKOBROKER_TOKEN", "ELKOBROKER_CONTEXTS", "XDG_CONFIG_HOME", "NO_COLOR")
ENVIRONMENT: dict[str, str | None] = dict.fromkeys(UNSET)


@attrs.frozen
class Recorded:
    """A request as it came."""

    method: str
    path: str
    query: Mapping[str, Sequence[str]]
    headers: Mapping[str, str]
    body: Any


@attrs.frozen
class Canned:
    """An answer: JSON, or text as it is."""

    body: object = None
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def data(self) -> bytes:
        """The body as bytes."""
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


def problem(status: int, detail: str) -> Canned:
    """The answer of a broker that refuses."""
    about = {"title": "", "status": status, "detail": detail, "code": "parameter", "type": "about:blank"}
    return Canned(about, status, "application/problem+json")


def page(*rows: Mapping[str, object], total: int | None = None, **more: object) -> dict[str, object]:
    """The answer of a list."""
    count = len(rows) if total is None else total
    return {"rows": list(rows), "total": count, "offset": 0, "limit": 100, "epoch": 7, "revision": 42, **more}


Answer = Canned | Callable[[Recorded], Canned | None]


class Server:
    """A running server. ``answers`` are found by method and path; a function may write its answer itself: None.

    With ``settings`` it is one over TLS.
    """

    def __init__(self, settings: ssl.SSLContext | None = None) -> None:
        self.answers: dict[tuple[str, str], Any] = {}
        self.requests: list[Recorded] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                pass

            def handle_any(self) -> None:
                parts = urlsplit(self.path)
                length = int(self.headers.get("content-length", 0))
                sent = self.rfile.read(length)
                recorded = Recorded(
                    self.command,
                    unquote(parts.path),
                    parse_qs(parts.query),
                    {name.lower(): value for name, value in self.headers.items()},
                    json.loads(sent) if sent else None,
                )
                outer.requests.append(recorded)
                found = outer.answers.get((self.command, unquote(parts.path)))
                if callable(found) and not isinstance(found, Canned):
                    found = found(recorded) if found.__code__.co_argcount == 1 else found(recorded, self)
                    if found is None:
                        self.close_connection = True
                        return
                if found is None:
                    found = problem(404, f"there is no {parts.path}")
                self.send_response(found.status)
                if found.content_type:
                    self.send_header("Content-Type", found.content_type)
                for name, value in found.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(found.data)))
                self.end_headers()
                self.wfile.write(found.data)

            do_GET = do_POST = do_PUT = do_DELETE = handle_any

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """A client that goes is no error."""

            def finish_request(self, request: Any, client_address: Any) -> None:
                """Make the handshake in the thread of the connection."""
                if settings is not None:
                    request = settings.wrap_socket(request, server_side=True)
                super().finish_request(request, client_address)
                if settings is not None:
                    request.close()

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http{'' if settings is None else 's'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        """Stop, and close the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, path: str, body: object, method: str = "GET") -> None:
        """Set an answer: a `Canned`, a function, or a value that is sent as JSON."""
        self.answers[method, path] = body if isinstance(body, Canned) or callable(body) else Canned(body)

    @property
    def last(self) -> Recorded:
        """The last request."""
        return self.requests[-1]


@contextmanager
def serving() -> Iterator[Server]:
    """A server for a while."""
    server = Server()
    try:
        yield server
    finally:
        server.stop()


def ctl(*words: object, input: str | None = None, **env: str) -> Result:
    """The result of a command line, run in this process."""
    runner = CliRunner(env={**ENVIRONMENT, "HOME": "/nonexistent", **env})
    result = runner.invoke(cli, [str(word) for word in words], input=input, prog_name="brokerctl")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
