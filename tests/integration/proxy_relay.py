"""A proxy with the PROXY protocol, whose client has any address: those of real proxies here have loopback addresses."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType


class Relay:
    """Listens at ``port``, and passes on each connection to the port ``to`` of this machine, as one of ``client``."""

    def __init__(self, to: int, client: str) -> None:
        self._to = to
        family, here = ("TCP6", "::1") if ":" in client else ("TCP4", "127.0.0.1")
        self._header = f"PROXY {family} {client} {here} 40000 80\r\n".encode()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._listening.close()
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                inner, _ = self._listening.accept()
                outer = socket.create_connection(("127.0.0.1", self._to))
                outer.sendall(self._header)
                self._open += [inner, outer]
                for source, target in ((inner, outer), (outer, inner)):
                    threading.Thread(target=_pass_on, args=(source, target), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
