"""Client for services over plain HTTP: the standard library alone, without Twisted and ZeroMQ.

    with HttpClient(["http://broker-a:9080", "http://broker-b:9080"], token="...") as client:
        with client.offer("bank", "bank.example.com:7000", zone="east") as offer:
            print(client.find("shop", filter='zone=east and "v2" in tags'))

`HttpClient` blocks, `AsyncHttpClient` has the same methods for asyncio.

Rules:
- A request goes to the broker that answered last, and to the next one in a circle if that gives no answer, or answers
  502 to 504. Other brokers of a cluster are learned from their ``Link``.
- If none answers, the call raises `broker.client.errors.Unreachable` with their causes; a refusal raises `Refused`.
- An offer is renewed in a thread of its own, and registered again where the broker does not know it any more, until it
  is withdrawn. A refusal ends it: `Offer.error`.
- An offer and a watch go on after 429 and 500: the answers to too many requests, and to a fault of the broker.
- A watch begins with an "up" for each service, and goes on with the differences, over restarts and changes of brokers.

The file is longer than others: offers and watches are in tables of their client, which ends them.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import re
import socket
import ssl
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from broker.backoff import Pauses
from broker.client.errors import Refused, Unreachable

CONNECT = 2.0
"""Seconds for the look-up of a name, and for a connection."""

TIMEOUT = 5.0
"""Seconds for an answer, beyond those of a wait."""

SILENCE = 60.0
"""Seconds without a byte after which a watch connects again: the broker sends a comment more often."""

MAX_BODY = 32 * 1024 * 1024
"""Bytes of an answer."""

MAX_LINE = 1024 * 1024
"""Bytes of a line of a watch: an event has some hundred."""

MAX_SERVERS = 100
"""Brokers that one answer names: more than a cluster has."""

KINDS = ("offered", "withdrawn", "amended", "checked", "hidden", "shown")
"""Events of services; loads change all the time."""

LIMIT = 1_000
"""Services of one answer, at most."""

FIRST_PAUSE, MOST_PAUSE = 0.1, 10.0
"""Seconds between two attempts of an offer or a watch to reach a broker: doubled from the first to the most."""

MAX_CALLS = 1_000
"""Calls of one `AsyncHttpClient` at a time, each in a thread: a watch holds one, and a find while it waits."""

_AWAY = (502, 503, 504)
_PASSING = (429, 500)
_ALTERNATE = re.compile(r'<(https?://[^>]+)>;\s*rel="alternate"')

Service = Mapping[str, Any]
"""A service as in docs/protocols/http.md: ``hostport``, ``protocol``, ``provider``, ``load``, ``zone``, ``tags`` ..."""

Result = TypeVar("Result")


class Change(NamedTuple):
    """A change of a service: "up", "update" or "down", with the last state of the service."""

    event: Literal["up", "update", "down"]
    service: Service


class HttpClient:
    """A client that blocks. Any number of threads may use it.

    ``urls`` are those of brokers. ``token``, or ``user`` and ``password``, are credentials. ``ca`` is a file of
    certificates, in place of the authorities of the system.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        token: str = "",
        user: str = "",
        password: str = "",
        ca: str | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        self.urls = [url.rstrip("/") for url in ([urls] if isinstance(urls, str) else urls)]
        """The brokers, the one in use first."""
        self._given = tuple(self.urls)
        for url in self.urls or [""]:
            if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
                raise ValueError(f"{url!r} is no URL of a broker, such as http://127.0.0.1:9080")
        self._timeout = timeout
        self._headers = {"Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        elif user:
            self._headers["Authorization"] = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
        self._tls = None
        if any(url.startswith("https:") for url in self.urls):
            self._tls = ssl.create_default_context(cafile=ca)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._offers: set[Offer] = set()
        self._watches: weakref.WeakSet[_Watch] = weakref.WeakSet()

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Withdraw all offers, and end all watches."""
        self._closed.set()
        for offer in list(self._offers):
            offer.withdraw()
        for watch in list(self._watches):
            watch.end()

    def find(self, name: str, *, wait: float = 0.0, **query: Any) -> list[Service]:
        """Return the services of a name, the best one first; none at once, or after ``wait`` seconds.

        ``query``: ``protocol``, ``near`` ("load" or "zone"), ``zone``, ``filter``, ``limit``.
        """
        try:
            query["wait"] = wait or None
            answer = self.request("GET", _path(name), query, seconds=wait, has={"services": list})
        except Refused as refused:
            if refused.code == 404:
                return []
            raise
        return list(answer["services"])

    def offer(self, name: str, hostport: str, *, instance: str = "", ttl: float = 30.0, **more: Any) -> Offer:
        """Offer a service, and renew it until it is withdrawn. Returns when it is registered.

        ``instance`` is the hostport by default. ``more``: ``load``, ``protocol``, ``label``, ``zone``, ``tags``,
        ``meta``, ``info``; ``owner_token``, that of an earlier `Offer` of the instance at another address.
        """
        token = more.pop("owner_token", "")
        return Offer(self, _path(name, instance or hostport), {"hostport": hostport, "ttl": ttl, **more}, token)

    def watch(self, name: str) -> Iterator[Change]:
        """Yield the services of a name, and then how they change, until the client is closed.

        A service that comes and goes between two requests of the client is not seen.
        """
        return self._watched(name, _Watch())

    def _watched(self, name: str, watch: _Watch) -> Iterator[Change]:
        known: dict[tuple[Any, ...], Service] = {}
        place, pauses = "", Pauses(FIRST_PAUSE, MOST_PAUSE)
        self._watches.add(watch)
        while not (watch.ended.is_set() or self._closed.is_set()):
            try:
                with closing(self._stream(name, place)) as stream:
                    watch.reads(stream)
                    yield from self._differences(name, known)
                    pauses.reset()
                    while line := stream.readline(MAX_LINE):
                        field, _, value = line.decode(errors="replace").partition(":")
                        if field == "id":
                            place = value.strip()
                        elif field == "data":
                            yield from self._differences(name, known)
            except (OSError, http.client.HTTPException, ValueError, Unreachable):
                self._next(self.urls[0])
            except Refused as refused:
                if refused.code not in _PASSING:
                    raise
            watch.ended.wait(pauses.next())

    def _differences(self, name: str, known: dict[tuple[Any, ...], Service]) -> Iterator[Change]:
        found = {(each["provider"], each["protocol"], each["hostport"]): each for each in self.find(name, limit=LIMIT)}
        for key in [key for key in known if key not in found]:
            yield Change("down", known.pop(key))
        for key, service in found.items():
            before, known[key] = known.get(key), service
            if before != service:
                yield Change("up" if before is None else "update", service)

    # requests

    def request(
        self, method: str, path: str, query: Mapping[str, Any] | None = None, body: object = None, **more: Any
    ) -> Any:
        """Return the JSON of an answer, None without a body. Raises `Refused` and `Unreachable`.

        ``more``: ``headers``, ``seconds`` for the answer beyond the time limit of the client, and members that it
        ``has`` with their types: a server whose answer is without them is no broker.
        """
        chosen = {name: value for name, value in (query or {}).items() if value is not None}
        target = path + (f"?{urlencode(chosen, doseq=True)}" if chosen else "")
        faults: list[str] = []
        for url in list(self.urls):
            try:
                return self._answer(url, method, target, body, **more)
            except (OSError, http.client.HTTPException) as error:
                faults.append(f"{url}: {_cause(error)}")
                self._next(url)
        raise Unreachable("; ".join(faults))

    def _answer(
        self,
        url: str,
        method: str,
        target: str,
        body: object,
        headers: Any = None,
        seconds: float = 0.0,
        has: Mapping[str, type] = {},
    ) -> Any:
        with closing(self._ask(url, method, target, body, headers or {}, self._timeout + seconds)) as response:
            data = response.read(MAX_BODY)
        others = [other.rstrip("/") for other in _ALTERNATE.findall(response.headers.get("Link", ""))[:MAX_SERVERS]]
        with self._lock:
            for other in others:
                if urlsplit(other).scheme == urlsplit(url).scheme and other not in self.urls:
                    self.urls.append(other)
            if len(self.urls) > len(self._given) + MAX_SERVERS:
                # Those that this answer does not name any more: brokers come and go with their addresses.
                self.urls[:] = [each for each in self.urls if each in (*self._given, *others, url)]
        try:
            answer = json.loads(data) if data else None
        except ValueError:
            raise OSError(f"the server is no broker: its answer {response.status} is no JSON") from None
        if response.status < 400:
            members = answer if isinstance(answer, dict) else {}
            missing = [name for name, kind in has.items() if not isinstance(members.get(name), kind)]
            if missing:
                raise OSError(f"the server is no broker: its answer {response.status} has no {missing[0]}")
            return answer
        raise _refusal(response, answer)

    def _ask(
        self, url: str, method: str, target: str, body: object, headers: Mapping[str, str], seconds: float
    ) -> http.client.HTTPResponse:
        parts = urlsplit(url)
        _look_up(parts.hostname or "")
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=CONNECT)
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=CONNECT, context=self._tls
            )
        try:
            connection.connect()
            sock = connection.sock
            sock.settimeout(seconds)
            data = None if body is None else json.dumps(body).encode()
            sent = {**self._headers, **headers, "Connection": "close"}
            connection.request(method, parts.path + target, data, sent)
            response = connection.getresponse()
        except BaseException:
            connection.close()
            raise
        response.sock = sock  # type: ignore[attr-defined]
        return response

    def _stream(self, name: str, place: str) -> http.client.HTTPResponse:
        """Open the stream of changes of a name. Raises `Refused`."""
        query = {"pattern": re.sub(r"([*?\[])", r"[\1]", name), "kinds": KINDS}
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": place} if place else {})}
        target = f"/v1/watch?{urlencode(query, doseq=True)}"
        response = self._ask(self.urls[0], "GET", target, None, headers, self._timeout)
        if response.status != 200:
            with closing(response):
                raise _refusal(response, None)
        response.sock.settimeout(SILENCE)  # type: ignore[attr-defined]
        return response

    def _next(self, url: str) -> None:
        """Use the next broker, unless another thread has changed it already."""
        with self._lock:
            if self.urls[0] == url:
                # In one step: other threads read the list without the lock, and the only one may not be missing.
                self.urls[:] = [*self.urls[1:], url]


class _Watch:
    """The end of a watch, by another thread than that which reads it."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self._stream: http.client.HTTPResponse | None = None

    def reads(self, stream: http.client.HTTPResponse) -> None:
        """Set the stream that is read from now on."""
        self._stream = stream
        if self.ended.is_set():  # meanwhile: the end has not seen this stream
            self.end()

    def end(self) -> None:
        """End the watch. Its reader does not wait any more."""
        self.ended.set()
        if self._stream is not None:
            with suppress(OSError):  # it is closed already
                self._stream.sock.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]


class Offer:
    """An offer, until `withdraw`. ``token`` is the owner token, ``provider`` the id of its provider, ``warnings`` are
    remarks of the broker on the address, ``error`` is what ended it, a refusal as a rule."""

    def __init__(self, client: HttpClient, path: str, body: dict[str, Any], token: str) -> None:
        self.token = token
        self.provider = 0
        self.warnings: list[str] = []
        self.error: Exception | None = None
        self._client = client
        self._path = path
        self._body = body
        self._ended = threading.Event()
        self._register({})
        client._offers.add(self)
        if client._closed.is_set():  # since the request: no close has seen this offer
            self.withdraw()
        threading.Thread(target=self._renew, name=f"offer {path}", daemon=True).start()

    def __enter__(self) -> Offer:
        return self

    def __exit__(self, *error: object) -> None:
        self.withdraw()

    def load(self, load: float, **details: Any) -> None:
        """Report a load with the next renewal, which is sent at once."""
        self._body = {**self._body, "load": load}
        self._report({"load": load, **details})

    def withdraw(self) -> None:
        """Withdraw the offer. A broker that does not answer ends it after its TTL."""
        if not self._ended.is_set():
            self._end()
            self._delete()

    def _end(self) -> None:
        self._ended.set()
        self._client._offers.discard(self)

    def _delete(self) -> None:
        # Since a change of brokers, the one in use may not know it: another has it until its TTL.
        for url in list(self._client.urls):
            with suppress(Refused, OSError, http.client.HTTPException):
                self._client._answer(url, "DELETE", self._path, None, self._headers())
                return

    def _send(self, method: str, more: str, body: object, has: Mapping[str, type] = {}) -> Any:
        return self._client.request(method, self._path + more, None, body, headers=self._headers(), has=has)

    def _headers(self) -> dict[str, str]:
        return {"Owner-Token": self.token} if self.token else {}

    def _report(self, report: dict[str, Any]) -> None:
        """Renew the offer, or register it again, with a report of its load."""
        try:
            self._send("POST", "/renew", report)
        except Refused as refused:
            if refused.code != 404 or self._ended.is_set():
                raise
            self._register(report)
            if self._ended.is_set():  # it was withdrawn before that, which is why the broker did not know it
                self._delete()

    def _register(self, report: Mapping[str, Any]) -> None:
        answer = self._send("PUT", "", {**self._body, **report}, {"owner_token": str, "provider": int})
        self.token, self.provider = answer["owner_token"], answer["provider"]
        self.warnings = answer.get("warnings", [])

    def _renew(self) -> None:
        third = self._body["ttl"] / 3
        pauses, pause = Pauses(FIRST_PAUSE, MOST_PAUSE), third
        while not self._ended.wait(pause):
            try:
                load = self._body.get("load")
                self._report({} if load is None else {"load": load})
                pauses.reset()
                pause = third
            except Unreachable:
                pause = min(pauses.next(), third)
            except Exception as error:  # an answer that no broker gives, too
                if isinstance(error, Refused) and error.code in _PASSING:
                    continue
                if not self._ended.is_set():  # else it is the answer to a renewal after the withdrawal
                    self.error = error
                    self._end()


class AsyncHttpClient:
    """The client for asyncio: each call runs in a thread, so that a slow broker blocks nothing else."""

    def __init__(self, urls: str | Sequence[str], **more: Any) -> None:
        self.client = HttpClient(urls, **more)
        """The client that blocks."""
        # Not asyncio's own threads: the whole program has a few of them, and each watch would hold one.
        self._threads = ThreadPoolExecutor(MAX_CALLS, "elkobroker")

    async def __aenter__(self) -> AsyncHttpClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """See `HttpClient.close`."""
        # By another thread than calls, which wait until this has ended them.
        await asyncio.to_thread(self.client.close)

    async def find(self, name: str, **more: Any) -> list[Service]:
        """See `HttpClient.find`."""
        return await self._in_thread(self.client.find, name, **more)

    async def offer(self, name: str, hostport: str, **more: Any) -> Offer:
        """See `HttpClient.offer`. Methods of the offer block: ``await asyncio.to_thread(offer.load, 0.5)``.

        An offer whose await is cancelled is not renewed: it ends after its TTL, unless it is offered again.
        """
        registered = self._threads.submit(self.client.offer, name, hostport, **more)
        try:
            return await asyncio.wrap_future(registered)
        except asyncio.CancelledError:
            # No withdrawal, which could meet the registration of a second attempt: both are one instance.
            self._threads.submit(lambda: registered.result()._end())
            raise

    async def watch(self, name: str) -> AsyncIterator[Change]:
        """See `HttpClient.watch`."""
        watch = _Watch()
        changes = self.client._watched(name, watch)
        try:
            while (change := await self._in_thread(_following, changes)) is not None:
                yield change
        finally:
            # Else its thread would read on after a cancellation, and the interpreter waits for all threads at its end.
            watch.end()

    def _in_thread(self, function: Callable[..., Result], *arguments: Any, **more: Any) -> Awaitable[Result]:
        return asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *arguments, **more))


def _following(changes: Iterator[Change]) -> Change | None:
    """Return the next change, None after the last one."""
    return next(changes, None)


def _look_up(host: str) -> None:
    """Look up a host in a thread, since a name server that does not answer blocks for half a minute. Raises OSError."""
    found: list[str] = []

    def look_up() -> None:
        try:
            socket.getaddrinfo(host, None)
            found.append("")
        except (OSError, UnicodeError) as error:
            found.append(f"the name of the host cannot be looked up: {getattr(error, 'strerror', None) or error}")

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(CONNECT)
    if not found or found[0]:
        raise OSError(found[0] if found else "no answer to the look-up of its name")


def _refusal(response: http.client.HTTPResponse, answer: Any) -> Exception:
    text = str(answer.get("detail", response.reason) if isinstance(answer, dict) else response.reason)
    return OSError(f"{response.status} {text}") if response.status in _AWAY else Refused(response.status, text)


def _path(*names: str) -> str:
    return "/v1/services/" + "/".join(quote(name, safe="") for name in names)


def _cause(error: Exception) -> str:
    """Return the cause of a failed request as a sentence."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (
            f"TLS: {(error.reason or 'the handshake failed').replace('_', ' ').lower()}; the server may speak http only"
        )
    if isinstance(error, http.client.RemoteDisconnected | ConnectionResetError):
        return "the server closes the connection without an answer; it may require TLS, https"
    if isinstance(error, http.client.HTTPException):
        return "the server does not speak HTTP"
    if isinstance(error, TimeoutError):
        return f"no answer in time{': ' + str(error) if error.errno is None and str(error) != 'timed out' else ''}"
    return getattr(error, "strerror", None) or str(error)
