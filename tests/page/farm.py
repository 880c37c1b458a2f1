"""A real daemon with peers, as a browser sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import attrs

from tests.integration.configurations import OFF, TCP, listener
from tests.integration.daemon import Daemon, Peer
from tests.integration.http_api import ask


def configuration(*tables: str) -> str:
    """The configuration of a daemon with Elko and HTTP alone, and further tables."""
    return "".join((listener("main"), f'[http]\nendpoint = "{TCP}"\n', OFF, *tables))


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
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        status, answer = ask(self.daemon, method, path, body, **headers)
        assert status < 300, (method, path, status, answer)
        return answer

    def put(self, name: str, hostport: str, **more: object) -> Any:
        """Offer a service by HTTP."""
        return self.call("PUT", f"/v1/services/{quote(name, safe='')}/1", {"hostport": hostport, "ttl": 600, **more})
