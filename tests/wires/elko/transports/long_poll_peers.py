"""A listener of HTTP in memory, and peers with sessions on it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from broker.net.http.request import RequestIds
from broker.net.web_origins import Origins
from broker.wires.elko.transports.long_poll import LongPollFactory
from broker.wires.elko.transports.transport_limits import TransportLimits
from tests.wires.elko.transports.virtual_links import CarriedLink, Carrier, WordHub


class Web(Carrier):
    """A listener of HTTP, whose answers are JSON in these tests."""

    def __init__(self, limits: TransportLimits | None = None, root: str = "/", origins: Iterable[str] = ()) -> None:
        hub = WordHub(limits)
        super().__init__(hub, LongPollFactory(hub.factory, hub.limits, root, Origins(origins), RequestIds("start")))

    def start(self) -> Peer:
        """A session."""
        link = self.connect()
        return Peer(self, link, link.get("/connect")["sessionid"])


class Peer:
    """One session, and a connection for its messages; each select has one of its own."""

    def __init__(self, web: Web, link: CarriedLink, session: str) -> None:
        self.web = web
        self.link = link
        self.session = session
        self.sent = 1
        self.heard = 1

    def say(self, *words: str) -> Any:
        """Send words in one body. Returns the answer."""
        answer = self.link.get(f"/xmit/{self.session}/{self.sent}", "\n".join(words))
        if "seqnum" in answer:
            self.sent += 1
            assert answer == {"seqnum": str(self.sent)}
        return answer

    def wait(self, number: int | None = None) -> CarriedLink:
        """Begin a select."""
        link = self.web.connect()
        link.request(f"/select/{self.session}/{self.heard if number is None else number}")
        return link

    def hear(self, link: CarriedLink | None = None) -> list[Any] | None:
        """The answer to a select, or None while it waits."""
        responses = (self.wait() if link is None else link).responses()
        if not responses:
            return None
        [(status, text)] = responses
        answer = json.loads(text)
        assert status == 200
        if "error" in answer:
            return [answer["error"]]
        self.heard = int(answer["seqnum"])
        return list(answer["msgs"])
