"""The conversations over HTTP and RTCP that the document on transports shows are real: our broker holds them."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from broker.net.http.request import RequestIds
from broker.net.web_origins import Origins
from broker.wires.elko.sessions.authentication import Policy
from broker.wires.elko.transports.long_poll import LongPollFactory
from broker.wires.elko.transports.rtcp import RtcpFactory
from broker.wires.elko.transports.transport_limits import TransportLimits
from tests.transcripts.replay import Broker, Setting
from tests.wires.elko.transports.virtual_links import CarriedLink

DOCUMENT = (Path(__file__).parents[2] / "docs/protocols/elko-transports.md").read_text()

SESSION = re.compile(r'(?:^start |"sessionid": ")([0-9]+)')


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", DOCUMENT, re.DOTALL)


class Conversation:
    """The actions of clients in a block, and the messages to them."""

    def __init__(self, factory: Any, http: bool) -> None:
        self._factory = factory
        self._http = http
        self._links: dict[str, CarriedLink] = {}
        self._session = ""
        self.held: list[str] = []

    def hold(self, block: str) -> None:
        lines = [line for line in block.split("\n") if line]
        for (conn, kind), group in groupby(lines, key=lambda line: (line[0], line[2])):
            said = list(group)
            if kind == "<":
                continue
            self.held += said
            link = self._links.get(conn) or self._links.setdefault(conn, CarriedLink(self._factory))
            if kind == "*":
                link.lose()
            elif self._http:
                self._request(link, [line[4:] for line in said])
            else:
                link.send(self._real("".join(line[4:] + "\n" for line in said)))
            self._write_down(conn)

    def _request(self, link: CarriedLink, lines: list[str]) -> None:
        method, path = lines[0].split()
        link.request(self._real(path), "\n".join(lines[1:]) or None, method=method)

    def _write_down(self, first: str) -> None:
        for conn in sorted(self._links, key=lambda conn: conn != first):
            link = self._links[conn]
            text = "".join(body for _, body in link.responses()) if self._http else link.said()
            for line in text.split("\n")[:-1]:
                found = SESSION.search(line)
                self._session = found[1] if found else self._session
                shown = line.replace(self._session, "SESSION") if self._session else line
                self.held.append(f"{conn} < {shown}".rstrip())

    def _real(self, text: str) -> str:
        return text.replace("SESSION", self._session)


@pytest.mark.parametrize("kind", ["http", "rtcp"])
def test_conversation(kind: str) -> None:
    [block] = blocks(kind)
    lines = Broker(Setting(Policy())).listeners["open"]
    http = kind == "http"
    limits = TransportLimits()
    factory = (
        LongPollFactory(lines, limits, "/elko", Origins([]), RequestIds("start"))
        if http
        else RtcpFactory(lines, limits)
    )
    conversation = Conversation(factory, http)
    conversation.hold(block)
    assert conversation.held == [line.rstrip() for line in block.split("\n") if line]
