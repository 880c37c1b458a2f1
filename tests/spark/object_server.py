"""Moto's server of S3, with puts that are atomic as those of real stores.

Moto looks for the object of a conditional put (`If-None-Match`) and stores the new one in two steps. Two threads of its
server can both find none, and both clients are answered that theirs was taken.
"""

from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


def one_put_at_a_time(application: Application) -> Application:
    """Wrap a WSGI application so that it handles one PUT at a time."""
    lock = Lock()

    def handle(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "PUT":
            return application(environ, start_response)
        with lock:
            return application(environ, start_response)

    return handle


def main() -> None:
    """Serve on a free port of the loopback interface; the log on stderr names it."""
    application = DomainDispatcherApplication(create_backend_app)
    run_simple("127.0.0.1", 0, one_put_at_a_time(application), threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main()
