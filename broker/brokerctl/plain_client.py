"""The client of the HTTP API for single requests without TLS: over a socket that blocks, without Twisted.

Most commands send one request or a few to a broker on this machine or behind a proxy of theirs; to import Twisted's
client takes three times as long as all of that, and `http.client` of the standard library a sixth (it imports TLS and
the headers of mail). `broker.brokerctl.http_client` has TLS, streams and many requests at once.
"""

from __future__ import annotations

import io
import re
import socket
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from broker.brokerctl.answers import Answer, Exit, Failure, usage
from broker.brokerctl.contexts import Context

TIMEOUT = 20.0
"""Seconds for one request and its complete answer, including name resolution and handshakes."""

ATTEMPT = 2.0
"""Seconds for a connection to an address, if the host has further ones: an IPv6 that leads nowhere is common."""

MAX_HEAD = 128 * 1024
"""Bytes before the body: headers, and the handshake of TLS does not count."""

MAX_BODY = 32 * 1024 * 1024
"""Bytes of a body, after decompression: a page of 1,000 rows has less than one hundredth of it. One piece of compressed
input may become 64 MiB before it is counted."""

Query = Mapping[str, str | int | float | Sequence[str]]


class ApiClient:
    """A client of one broker. ``authorization`` is the field of that name, "" for none. All methods raise `Failure`."""

    reactor: Any = None
    """The reactor that runs it; None for a client that blocks."""

    def __init__(self, context: Context, timeout: float, authorization: str) -> None:
        self.where = context.url.rstrip("/")
        """The address, for messages."""
        self._parts = urlsplit(self.where)
        self._host = self._parts.hostname or ""
        self._port = self._parts.port or (443 if context.secure else 80)
        self.timeout = timeout
        self._authorization = {"Authorization": authorization} if authorization else {}

    @property
    def certificate_ends(self) -> float | None:
        """The end of the server's certificate in seconds since the epoch; None without TLS, or before an answer."""
        return None

    async def get(self, path: str, query: Query | None = None) -> Any:
        """Return the JSON of a resource."""
        return (await self.request("GET", path, query)).value()

    async def post(self, path: str, body: object, method: str = "POST") -> Any:
        """Send JSON, and return that of the answer, or None."""
        return (await self.request(method, path, None, body)).value()

    async def request(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: object = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Return the complete answer, whatever its status. ``path`` is percent-encoded. ``timeout`` replaces that of
        the client."""
        limit = self.timeout if timeout is None else timeout
        return await self._request(method, path, query, body, limit, headers or {})

    async def _request(
        self, method: str, path: str, query: Query | None, body: object, limit: float, headers: Mapping[str, str]
    ) -> Answer:
        raise NotImplementedError

    # failures of an exchange

    def _too_much(self) -> Failure:
        return Failure(f"{self.where} answers with more than {MAX_BODY} bytes", Exit.UNINTELLIGIBLE)

    def _too_late(self, limit: float) -> Failure:
        return Failure(f"{self.where} gives no complete answer within {limit:g} s", Exit.UNREACHABLE)

    def _cut_off(self) -> Failure:
        return Failure(f"{self.where} closes the connection without a complete answer", Exit.UNREACHABLE)

    def _no_http(self) -> Failure:
        return Failure(f"{self.where} does not answer as an HTTP server does", Exit.UNINTELLIGIBLE)

    def _unknown_host(self) -> Failure:
        return Failure(f"{self.where}: the name of the host is unknown", Exit.UNREACHABLE)

    def _unreachable(self, reason: object) -> Failure:
        return Failure(f"{self.where} cannot be reached: {reason}", Exit.UNREACHABLE)


def segment(text: str) -> str:
    """Return a text as one segment of a path. Dots alone are encoded too, since servers resolve them.

    Raises `Failure` for an empty one: the path would be another.
    """
    if not text:
        raise usage("a name is empty")
    encoded = quote(text, safe="")
    return encoded.replace(".", "%2E") if encoded in (".", "..") else encoded


def parameters(query: Query | None) -> list[tuple[str, str]]:
    """Return the parameters of a query, each with its text."""
    return [
        (name, str(each))
        for name, value in (query or {}).items()
        for each in ([value] if isinstance(value, str | int | float) else value)
    ]


class _TooMuch(Exception):
    """More bytes than an answer may have."""


class _Received(io.RawIOBase):
    """The input of a connection until a deadline, and within a number of bytes."""

    def __init__(self, connection: socket.socket, end: float) -> None:
        self._connection = connection
        self._end = end
        self._left = MAX_HEAD + MAX_BODY

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(_left(self._end))
        count = self._connection.recv_into(buffer)
        self._left -= count
        if self._left < 0:
            raise _TooMuch
        return count


class _CutOff(Exception):
    """The connection ended within an answer."""


class _NoHttp(Exception):
    """The server does not speak HTTP."""


_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: [^\r\n]*)?\r?\n")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n]*?)[ \t]*\r?\n")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r?\n")
_LENGTH = re.compile(r"[0-9]{1,16}")


class _Response:
    """The status and the fields of an answer, by lower-case name, with its body still to be read."""

    def __init__(self, file: io.BufferedReader, method: str) -> None:
        self._file = file
        self.status = 100
        while 100 <= self.status < 200:  # interim answers
            if (line := _STATUS.fullmatch(self._line())) is None:
                raise _NoHttp
            self.status = int(line[1])
            self.fields = self._fields()
        self._empty = method == "HEAD" or self.status in (204, 304)

    def field(self, name: str) -> str:
        """Return a field by its lower-case name, "" if it is absent."""
        return self.fields.get(name, "")

    def body(self) -> bytes:
        """Return the body. Raises `_CutOff`, `_NoHttp`, and what its reader raises."""
        if self._empty:
            return b""
        if self.field("transfer-encoding").lower() == "chunked":
            return b"".join(self._chunks())
        length = self.field("content-length")
        if not length:
            return self._file.read()
        if not _LENGTH.fullmatch(length):
            raise _NoHttp
        return self._exactly(int(length))

    def _chunks(self) -> Iterator[bytes]:
        while True:
            if (head := _CHUNK.fullmatch(self._line())) is None:
                raise _NoHttp
            size = int(head[1], 16)
            if not size:
                self._fields()
                return
            yield self._exactly(size)
            if self._line().rstrip(b"\r\n"):
                raise _NoHttp

    def _fields(self) -> dict[str, str]:
        fields, left = {}, MAX_HEAD
        while (line := self._line()).rstrip(b"\r\n"):
            left -= len(line)
            if left < 0:
                raise _TooMuch
            if (field := _FIELD.fullmatch(line)) is None:
                raise _NoHttp
            fields[field[1].decode().lower()] = field[2].decode("latin-1")
        return fields

    def _line(self) -> bytes:
        line = self._file.readline(MAX_HEAD)
        if not line.endswith(b"\n"):
            raise _TooMuch if len(line) == MAX_HEAD else _CutOff
        return line

    def _exactly(self, size: int) -> bytes:
        if size > MAX_BODY:
            raise _TooMuch
        data = self._file.read(size)
        if len(data) < size:
            raise _CutOff
        return data


class PlainClient(ApiClient):
    """A client without TLS."""

    def __init__(self, context: Context, timeout: float = TIMEOUT, authorization: str = "") -> None:
        super().__init__(context, timeout, authorization)
        agreed = {"Host": self._parts.netloc, "Accept": "application/json", "User-Agent": "brokerctl"}
        self._fields = {**agreed, **self._authorization}

    async def _request(
        self, method: str, path: str, query: Query | None, body: object, limit: float, headers: Mapping[str, str]
    ) -> Answer:
        end = time.monotonic() + limit
        target = self._parts.path + path + (f"?{urlencode(parameters(query))}" if query else "")
        data = b"" if body is None else msgspec.json.encode(body)
        fields = {**self._fields, "Connection": "close", **headers}
        if body is not None:
            fields |= {"Content-Type": "application/json", "Content-Length": str(len(data))}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        request = f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + data
        try:
            return self._exchange(request, method, path, end)
        except TimeoutError:
            raise self._too_late(limit) from None
        except _TooMuch:
            raise self._too_much() from None
        except (ConnectionError, _CutOff):
            raise self._cut_off() from None
        except (_NoHttp, zlib.error):
            raise self._no_http() from None
        except OSError as error:  # of the network: left to the command, it would be one of the output
            raise self._unreachable(error.strerror or error) from None

    def _exchange(self, request: bytes, method: str, path: str, end: float) -> Answer:
        with self._connected(end) as connection:
            connection.settimeout(_left(end))
            connection.sendall(request)
            response = _Response(io.BufferedReader(_Received(connection, end), 65_536), method)
            body = response.body()
        if response.field("content-encoding").lower() == "gzip":
            unpacking = zlib.decompressobj(zlib.MAX_WBITS | 16)
            body = unpacking.decompress(body, MAX_BODY + 1)
        if len(body) > MAX_BODY:
            raise _TooMuch
        return Answer(response.status, response.field("content-type"), body, self.where, path, response.fields)

    def _connected(self, end: float) -> socket.socket:
        """Connect to the first address that accepts. Raises `Failure`, and TimeoutError at the deadline."""
        problem = OSError("")
        found = _resolved(self._host, self._port, end)
        for left, (family, kind, protocol, _, address) in zip(range(len(found), 0, -1), found, strict=True):
            try:
                connection = socket.socket(family, kind, protocol)  # not each system has IPv6
            except OSError as error:
                problem = error
                continue
            try:
                connection.settimeout(_left(end) if left == 1 else min(ATTEMPT, _left(end) / left))
                connection.connect(address)
            except OSError as error:
                connection.close()
                problem = error
            else:
                return connection
        if isinstance(problem, TimeoutError):
            raise problem
        if not problem.strerror:
            raise self._unknown_host()
        raise self._unreachable(problem.strerror)


def _left(end: float) -> float:
    """Return the seconds until a deadline. Raises TimeoutError after it."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _resolved(host: str, port: int, end: float) -> Sequence[Any]:
    """Return the addresses of a host, none for an unknown name. A name server that does not answer holds a thread."""
    found: list[Sequence[Any]] = []

    def look_up() -> None:
        try:
            found.append(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM))
        except (OSError, UnicodeError):
            found.append(())

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(_left(end))
    if not found:
        raise TimeoutError
    return found[0]
