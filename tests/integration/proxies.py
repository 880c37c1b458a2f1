"""nginx and haproxy before a daemon, each with little more than the address of the broker in its configuration.

By `proxy` both serve HTTP of the broker at ``/`` and below ``/farm/``, and its Elko listeners for WebSocket and HTTP at
``/web`` and ``/poll/``. By `proxying` they have any configuration.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from tests.packages import program
from tests.patience import PATIENCE
from tests.ports import free_port


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
  {servers}
}}
"""

NGINX_BEHIND = """
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
"""

HAPROXY_BEHIND = """
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

PROXIES = {"nginx": NGINX_BEHIND, "haproxy": HAPROXY_BEHIND}
"""The configuration of each proxy; of nginx, the servers in it."""


@contextmanager
def proxy(name: str, behind: Behind, directory: Path) -> Iterator[int]:
    """A proxy before these listeners: its port. Skips the test if the program is missing."""
    directory.mkdir()
    with proxying(name, directory, 1, lambda ports: PROXIES[name].format(port=ports[0], behind=behind)) as ports:
        yield ports[0]


@contextmanager
def proxying(name: str, directory: Path, count: int, text: Callable[[Sequence[int]], str]) -> Iterator[Sequence[int]]:
    """A proxy that listens on so many ports. Skips the test if the program is missing.

    ``text`` returns the configuration of haproxy, or the servers of nginx, for the ports.
    """
    executable = program(name)
    for _ in range(3):  # the ports are free, and may be taken by others before the proxy does
        ports = [free_port() for _ in range(count)]
        path = directory / "configuration"
        servers = text(ports)
        path.write_text(NGINX.format(directory=directory, servers=servers) if name == "nginx" else servers)
        with (directory / "output").open("w") as output:
            option = {"nginx": "-c", "haproxy": "-f"}[name]
            process = subprocess.Popen([executable, option, str(path)], stdout=output, stderr=output)
        try:
            if all(_listens(process, port) for port in ports):
                yield ports
                return
        finally:
            process.terminate()  # nginx ends its worker processes by that
            process.wait()
    raise AssertionError((directory / "output").read_text())


def _listens(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        try:
            # From an address that no peer of a test has: the broker may log it.
            socket.create_connection(("127.0.0.1", port), 1.0, ("127.0.0.9", 0)).close()
            return True
        except OSError:
            time.sleep(0.02)
    return False
