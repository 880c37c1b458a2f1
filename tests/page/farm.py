"""A real daemon with peers, as a browser sees it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import attrs

from tests.integration.daemon import Daemon, Peer
from tests.patience import PATIENCE

ACCESS = '[access]\nfile = "users.toml"\n'
"""The table of a daemon with users."""


def configuration(*tables: str) -> str:
    """The configuration of a daemon with Elko and HTTP alone, and further tables."""
    endpoint = 'endpoint = "tcp:0:interface=127.0.0.1"\n'
    off = (f"[{wire}]\nenabled = false\n" for wire in ("mc0", "dbp", "mtl"))
    return "".join((f"[[elko.listeners]]\n{endpoint}", f"[http]\n{endpoint}", *off, *tables))


@attrs.frozen(eq=False)
class Farm:
    """A daemon, its page, and peers that offer services."""

    daemon: Daemon

    def url(self, place: str = "") -> str:
        """The address of a place of the page: ``services?q=bank``."""
        return f"http://127.0.0.1:{self.daemon.http_port()}/#/{place}"

    def provider(self, label: str, services: Sequence[Mapping[str, object]]) -> Peer:
        """A connected Elko peer that offers services."""
        peer = self.daemon.connect("client", label=label)
        peer.send(to="client", op="willserve", services=services)
        peer.done()
        return peer

    def bank(self, label: str = "bank-1", name: str = "bank", hostport: str = "10.0.0.1:80") -> Peer:
        """A connected Elko peer that offers one service."""
        return self.provider(label, [{"service": name, "hostport": hostport}])

    def call(self, method: str, path: str, body: object = None, token: str | None = None) -> Any:
        """The JSON answer to a request over HTTP, None for an empty one; it must succeed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.daemon.http_port(), timeout=PATIENCE)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        assert response.status < 300, (method, path, response.status, text)
        return json.loads(text) if text else None

    def put(self, name: str, hostport: str, **more: object) -> Any:
        """Offer a service by HTTP."""
        return self.call("PUT", f"/v1/services/{quote(name, safe='')}/1", {"hostport": hostport, "ttl": 600, **more})
