"""Queries by UDP for one service, and the places that the servers know of it.

The response to a query is compared with the query: id, question, and the number of records.
"""

from __future__ import annotations

import socket
import struct
import time
from itertools import cycle

from bench.peers.elko import auth, willserve
from bench.servers import HOST, Server, WireServer
from bench.traffic import STUCK, Sample, Stuck, opened

PLACES = 4
"""Services of the name that is asked for."""

DOMAIN = "service.elkobroker"

TYPES = {"A": 1, "SRV": 33}

WINDOW = 64
"""Queries in flight: fewer datagrams than any receive buffer has room for."""

IDS = 512
"""Distinct ids of queries."""

_Header = struct.Struct(">6H")


def _name(text: str) -> bytes:
    return b"".join(bytes((len(label),)) + label.encode() for label in text.split(".")) + b"\0"


class Questions:
    """One client that keeps `WINDOW` queries for the services of a name in flight."""

    def __init__(self, server: Server, kind: str) -> None:
        if isinstance(server, WireServer) and server.broker:
            self._providers = [
                opened(server.elko, auth(f"server {number}") + willserve(["bank"], f"10.0.0.{number}:80"), 0)
                for number in range(1, PLACES + 1)
            ]
            time.sleep(0.5)  # they are not answered
        question = _name(f"bank.{DOMAIN}") + struct.pack(">HH", TYPES[kind], 1)
        self._queries = [_Header.pack(number, 0x0100, 1, 0, 0, 0) + question for number in range(IDS)]
        self._question = question
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.settimeout(STUCK)
        self._socket.connect((HOST, server.port))

    def run(self, seconds: float) -> Sample:
        """Ask for so long. Counts responses."""
        send, receive, unpack = self._socket.send, self._socket.recv, _Header.unpack_from
        queries, question = cycle(self._queries), self._question
        end = _Header.size + len(question)
        count = 0
        start = time.perf_counter()
        while time.perf_counter() < start + seconds:
            asked = [next(queries) for _ in range(WINDOW)]
            for query in asked:
                send(query)
            try:
                answers = [receive(4096) for _ in asked]
            except TimeoutError:
                raise Stuck(f"a response did not come within {STUCK:g} s") from None
            for query, answer in zip(asked, answers, strict=True):
                if answer[:2] != query[:2] or unpack(answer)[3] != PLACES or answer[_Header.size : end] != question:
                    raise Stuck(f"{answer!r:.300} came for {query!r}")
            count += WINDOW
        return Sample(count, time.perf_counter() - start)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
