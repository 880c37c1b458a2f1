"""nginx and haproxy before a daemon, each with little more than the address of the broker in its configuration.

Both serve HTTP of the broker at ``/`` and below ``/farm/``, and its Elko listeners for WebSocket and HTTP at ``/web``
and ``/poll/``.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from tests.packages import program
from tests.patience import PATIENCE


@attrs.frozen
class Behind:
    """The ports of the broker's listeners: HTTP, and Elko over WebSocket and over HTTP."""

    http: int
    web: int
    poll: int


NGINX = """
daemon off;
pid {directory}/pid;
error_log {directory}/errors;
events {{}}
http {{
  access_log off;
  client_body_temp_path {directory}/1;
  proxy_temp_path {directory}/2;
  fastcgi_temp_path {directory}/3;
  uwsgi_temp_path {directory}/4;
  scgi_temp_path {directory}/5;
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://127.0.0.1:{behind.http}; }}
    location /farm/ {{ proxy_pass http://127.0.0.1:{behind.http}/; }}
    location /poll/ {{ proxy_pass http://127.0.0.1:{behind.poll}; }}
    location /web {{
      proxy_pass http://127.0.0.1:{behind.web};
      proxy_http_version 1.1;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection upgrade;
    }}
  }}
}}
"""

HAPROXY = """
defaults
  mode http
  timeout connect 10s
  timeout client 120s
  timeout server 120s
  timeout tunnel 120s
  http-reuse always
frontend all
  bind 127.0.0.1:{port}
  http-request replace-path /farm(/.*) \\1
  use_backend poll if {{ path_beg /poll/ }}
  use_backend web if {{ path /web }}
  default_backend broker
backend broker
  server broker 127.0.0.1:{behind.http}
backend poll
  server poll 127.0.0.1:{behind.poll}
backend web
  server web 127.0.0.1:{behind.web}
"""

PROXIES = {"nginx": (NGINX, "-c"), "haproxy": (HAPROXY, "-f")}
"""The configuration of each proxy, and the option that names the file."""


@contextmanager
def proxy(name: str, behind: Behind, directory: Path) -> Iterator[int]:
    """A proxy before these listeners: its port. Skips the test if the program is missing."""
    executable = program(name)
    text, option = PROXIES[name]
    directory.mkdir()
    for _ in range(3):  # the port is free, and may be taken by another before the proxy does
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        path = directory / "configuration"
        path.write_text(text.format(directory=directory, port=port, behind=behind))
        with (directory / "output").open("w") as output:
            process = subprocess.Popen([executable, option, str(path)], stdout=output, stderr=output)
        try:
            if _listens(process, port):
                yield port
                return
        finally:
            process.terminate()
            process.wait()
    raise AssertionError((directory / "output").read_text())


def _listens(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return True
        except OSError:
            time.sleep(0.02)
    return False
