"""One request of HTTP, on Twisted's implementation, with a bounded body."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from twisted.web.http import Request

from broker.core.errors import Reason, Refusal
from broker.core.memory_budget import Share
from broker.net.pieces import Pieces
from broker.net.web_origins import FROM_ELSEWHERE

if TYPE_CHECKING:
    from broker.net.http.channel import HttpChannel

BODILESS = (204, 304)
"""Statuses of responses without a body, and so without its length (RFC 9110, 8.6)."""


class HttpRequest(Request):
    """One request. The factory of its channel serves it when it is complete, and answers it by `reply`."""

    channel: HttpChannel
    content: Pieces
    _refused = False

    def parseCookies(self) -> None:
        """Override without cookies: no protocol here uses them."""

    def gotLength(self, length: int | None) -> None:
        """Handle the end of the head. ``length`` is that of the body, or None if it is chunked."""
        self.content = Pieces()
        if length is not None and length > self.channel.bounds.body:
            self._refuse_body()

    def handleContentChunk(self, data: bytes) -> None:
        """Append a piece of the body, within the limits."""
        if self._refused:
            return
        self.content.write(data)
        size = self.content.tell()
        if size > self.channel.bounds.body:
            self._refuse_body()
        else:
            self.channel.memory.hold(self.channel, Share.INPUT, size)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """Pass a complete request on. (Twisted's own method would also parse forms, of any size in one step.)"""
        channel = self.channel
        if self._refused or channel.hanging_up:
            return
        self.method, self.uri, self.clientproto = command, path, version
        channel.complete(self)

    def text(self, header: str) -> str | None:
        """Return a header of the request. Non-ASCII bytes are decoded as ISO 8859-1 (RFC 9110, 5.5)."""
        value = self.requestHeaders.getRawHeaders(header.encode())
        return None if value is None else value[-1].decode("latin-1")

    @property
    def local(self) -> bool:
        """True if no header indicates a web page or a proxy."""
        return not any(map(self.requestHeaders.hasHeader, FROM_ELSEWHERE))

    @property
    def over(self) -> bool:
        """True if the request is answered, or its connection is lost."""
        return bool(self._disconnected or self.finished)

    @property
    def refused(self) -> bool:
        """True if the request was refused before it was complete."""
        return self._refused

    def reply(
        self, status: int, body: bytes, content_type: str = "text/plain", headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Answer, unless the connection is lost."""
        if self.over:
            return
        self.head(status, content_type, headers)
        if status not in BODILESS:
            self.responseHeaders.setRawHeaders("Content-Length", [str(len(body))])
        self.write(body)  # type: ignore[no-untyped-call]
        self.end()

    def head(self, status: int, content_type: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Set the status and headers of the answer. Twisted sends them with the first piece of the body.

        ``Connection: close`` closes the connection after the answer. Without a Content-Length, the body is sent in
        chunks, or until the end of the connection with HTTP/1.0.
        """
        self.setResponseCode(status, HTTPStatus(status).phrase.encode())
        for name, value in headers:
            if (name.lower(), value) == ("connection", "close"):
                self.last()
            else:
                self.responseHeaders.addRawHeader(name, value)
        if status not in BODILESS:
            self.responseHeaders.setRawHeaders("Content-Type", [content_type])

    def end(self) -> None:
        """Complete the answer. The next request of the connection is handled in a later step."""
        channel: Any = self.channel
        self.finish()  # type: ignore[no-untyped-call]
        channel.push()

    def last(self) -> None:
        """Close the connection after the answer."""
        self.responseHeaders.setRawHeaders("Connection", ["close"])
        self.channel.persistent = False

    def _refuse_body(self) -> None:
        limit = self.channel.bounds.body
        self.refuse_body(Refusal(Reason.TOO_LARGE, f"the body of a request has more than {limit} bytes"))

    def refuse_body(self, refusal: Refusal) -> None:
        """Free the incomplete body, and close."""
        self._refused = True
        self.content = Pieces()
        channel = self.channel
        channel.memory.drop(channel, Share.INPUT)
        channel.refused(refusal)
        channel.last_words(413, "Content Too Large", refusal.text)
