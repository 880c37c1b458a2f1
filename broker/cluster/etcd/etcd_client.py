"""The client of etcd: `IEtcd` over the HTTP/JSON gateway, with several endpoints."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

import attrs
from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore, TimeoutError
from zope.interface import implementer

from broker.cluster.etcd import codec
from broker.cluster.etcd.codec import Request, Unintelligible
from broker.cluster.etcd.connections import MAX_BODY, TIMEOUT, Endpoint
from broker.cluster.etcd.etcd_credentials import Tls, TlsFiles
from broker.cluster.etcd.etcd_interface import (
    Compacted,
    Compare,
    Denied,
    EtcdError,
    Granted,
    IEtcd,
    IEtcdWatch,
    LeaseGone,
    Operation,
    RangeResult,
    Status,
    TxnResult,
    Unavailable,
    Watcher,
)
from broker.cluster.etcd.failures import together
from broker.cluster.etcd.watching import Watch
from broker.core.interfaces import InThread
from broker.core.turns import Turns

CALLS = 6
"""Concurrent calls. Twisted opens a connection for each, and etcd has the same throughput with six as with more."""

RENEWALS = 2
"""Renewals of leases at a time, which do not wait for other calls: a lease ends in a few seconds."""

RENEWAL_TIMEOUT = 2.0
"""Seconds for a renewal at one endpoint, so that another endpoint gets it in time."""

WAIT = 10.0
"""Seconds for which a call waits for its turn, when other calls are slow."""

CLOSED = "the client of etcd is closed"

T = TypeVar("T")


def connect(
    reactor: Any,
    in_thread: InThread,
    endpoints: Sequence[str],
    tls: TlsFiles | None = None,
    user: str = "",
    password: str = "",
    rng: random.Random | None = None,
    limit: int = MAX_BODY,
    turns: Turns | None = None,
) -> EtcdClient:
    """Return a client; nothing is connected before the first call. Raises ValueError for unusable settings.

    - ``in_thread``: calls a function in the thread that reads files of operators.
    - ``endpoints``: URLs ``http://host:port`` or ``https://host:port``, tried in this order from a random one on
      (``rng``), so that the brokers of a cluster use different members of etcd.
    - ``tls``: files for endpoints ``https``; None trusts the authorities of the system.
    - ``user``, ``password``: credentials of etcd's authentication, empty without it.
    - ``limit``: bytes of the body of an answer.
    - ``turns``: the turns in which watches pass on their events.
    """
    urls = [checked(each) for each in endpoints]
    if not urls:
        raise ValueError("no endpoint of etcd is given")
    if len(set(urls)) < len(urls):
        raise ValueError("an endpoint of etcd is given twice")
    secure: Tls | None = None
    if any(each.startswith("https:") for each in urls):
        secure = Tls(tls or TlsFiles(), reactor, in_thread)
    if secure is None and tls is not None and tls != TlsFiles():
        raise ValueError("certificates for etcd are given, but no endpoint is https")
    first = (rng or random).randrange(len(urls))
    members = [
        Endpoint(reactor, url, secure, user, password, CALLS + RENEWALS, limit) for url in urls[first:] + urls[:first]
    ]
    return EtcdClient(reactor, members, turns or Turns(reactor))


def checked(url: str) -> str:
    """Return the URL of an endpoint without a trailing slash. Raises ValueError for any other form."""
    plain = url.rstrip("/")
    try:
        parts = urlsplit(plain)
        host, _port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"{url} is not an endpoint of etcd, such as http://etcd1:2379") from None
    if (
        parts.scheme not in ("http", "https")
        or not host
        or parts.path
        or parts.query
        or parts.fragment
        or parts.username
    ):
        raise ValueError(f"{url} is not an endpoint of etcd, such as http://etcd1:2379")
    return plain


@implementer(IEtcd)
class EtcdClient:
    """`IEtcd` over several endpoints, of which one is preferred until it fails.

    A call is tried at each endpoint at most once, within a bounded time. A write with an unknown result is not repeated
    unless a repetition does no harm.
    """

    def __init__(self, reactor: Any, endpoints: Sequence[Endpoint], turns: Turns) -> None:
        self._reactor = reactor
        self._turns = turns
        self._endpoints = list(endpoints)
        self._preferred = 0
        self._calls = DeferredSemaphore(CALLS)
        self._renewals = DeferredSemaphore(RENEWALS)
        self._running: set[Deferred[Any]] = set()
        self._watches: set[Watch] = set()
        self._closed = False

    @property
    def endpoint(self) -> str:
        """URL of the preferred endpoint."""
        return self._endpoints[self._preferred].url

    def range(self, key: bytes, end: bytes | None = None, limit: int = 0, revision: int = 0) -> Deferred[RangeResult]:
        return self._start(self._call(codec.range_request(key, end, limit, revision), codec.range_result))

    def txn(
        self, compare: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> Deferred[TxnResult]:
        return self._start(self._call(codec.txn_request(compare, success, failure), codec.txn_result))

    def grant(self, ttl: int) -> Deferred[Granted]:
        return self._start(self._call(codec.grant_request(ttl), codec.granted))

    def keep_alive(self, lease: int) -> Deferred[int]:
        async def renew() -> int:
            request = codec.keep_alive_request(lease)
            ttl = await self._call(request, codec.renewed, self._renewals, RENEWAL_TIMEOUT)
            if ttl <= 0:
                raise LeaseGone(f"lease {lease} does not exist in etcd")
            return ttl

        return self._start(renew())

    def revoke(self, lease: int) -> Deferred[None]:
        async def end() -> None:
            with suppress(LeaseGone):
                await self._call(codec.revoke_request(lease), codec.nothing)

        return self._start(end())

    def time_to_live(self, lease: int) -> Deferred[int]:
        async def remaining() -> int:
            ttl = await self._call(codec.time_to_live_request(lease), codec.time_to_live)
            if ttl < 0:
                raise LeaseGone(f"lease {lease} does not exist in etcd")
            return ttl

        return self._start(remaining())

    def status(self) -> Deferred[Status]:
        return self._start(self._call(codec.status_request(), codec.status))

    def examine(self) -> Deferred[Status]:
        """Return the state with the number of leases and the time; fails as `status` does."""

        async def all() -> Status:
            found = await self._call(codec.status_request(), codec.status)
            with suppress(ValueError):
                at = parsedate_to_datetime(self._endpoints[self._preferred].date).timestamp()
                found = attrs.evolve(found, time=at)
            try:
                return attrs.evolve(found, leases=await self._call(codec.leases_request(), codec.lease_count))
            except Denied:  # a user of etcd without the right
                return found

        return self._start(all())

    def compact(self, revision: int) -> Deferred[None]:
        async def discard() -> None:
            with suppress(Compacted):
                await self._call(codec.compact_request(revision), codec.nothing)

        return self._start(discard())

    def watch(self, key: bytes, end: bytes, revision: int, watcher: Watcher) -> IEtcdWatch:
        endpoint = self._endpoints[self._preferred]

        async def present() -> int:
            read = codec.range_request(key, None, 1, 0)
            return codec.range_result(await endpoint.call(read)).revision

        def finished(watch: Watch, failed: bool) -> None:
            self._watches.discard(watch)
            if failed:
                self._failed(endpoint)

        watch = Watch(self._reactor, self._turns, endpoint, (key, end, revision), watcher, present, finished)
        self._watches.add(watch)
        if self._closed:
            self._reactor.callLater(0, watch.fail, CLOSED)
        return watch

    def change_endpoint(self, watch: IEtcdWatch | None = None) -> None:
        preferred = self._endpoints[self._preferred]
        if not isinstance(watch, Watch) or watch.endpoint is preferred:
            self._preferred = (self._preferred + 1) % len(self._endpoints)

    def close(self) -> Deferred[None]:
        async def close() -> None:
            self._closed = True
            for watch in list(self._watches):
                watch.fail(CLOSED)
            for each in list(self._running):
                each.cancel()
            for endpoint in self._endpoints:
                await endpoint.close()

        return Deferred.fromCoroutine(close())

    def _start(self, call: Coroutine[Any, Any, T]) -> Deferred[T]:
        """Run a call, which `close` cancels."""
        running = Deferred.fromCoroutine(call)
        if not running.called:
            self._running.add(running)
            running.addBoth(self._done, running)
        return running

    def _done(self, result: T, running: Deferred[Any]) -> T:
        self._running.discard(running)
        return result

    async def _call(
        self,
        request: Request,
        decode: Callable[[bytes], T],
        turns: DeferredSemaphore | None = None,
        seconds: float = TIMEOUT,
    ) -> T:
        if self._closed:
            raise Unavailable(CLOSED)
        turns = turns or self._calls
        try:
            await turns.acquire().addTimeout(WAIT, self._reactor)
        except TimeoutError:
            raise Unavailable(f"the calls of etcd that are under way take longer than {WAIT:g} s") from None
        except CancelledError:
            raise self._cancelled(False) from None
        try:
            return await self._tried(request, decode, seconds)
        except CancelledError:
            raise self._cancelled(request.writes) from None
        finally:
            turns.release()

    async def _tried(self, request: Request, decode: Callable[[bytes], T], seconds: float) -> T:
        """Try a call at each endpoint, the preferred one first."""
        failures: list[EtcdError] = []
        unknown = False
        for endpoint in self._endpoints[self._preferred :] + self._endpoints[: self._preferred]:
            try:
                body = await endpoint.call(request, seconds)
                try:
                    return decode(body)
                except Unintelligible as error:
                    raise Unavailable(f"{endpoint.url} does not answer as etcd does: {error}", unknown=True) from None
            except (Unavailable, Denied) as error:
                if self._closed:
                    # A cancelled resolution of a name is no CancelledError.
                    raise Unavailable(CLOSED, request.writes) from None
                failures.append(error)
                self._failed(endpoint)
                unknown = unknown or (request.writes and isinstance(error, Unavailable) and error.unknown)
                if unknown and not request.repeatable:
                    break
        raise together(failures, unknown)

    def _failed(self, endpoint: Endpoint) -> None:
        """Prefer another endpoint than this one."""
        if self._endpoints[self._preferred] is endpoint:
            self.change_endpoint()

    def _cancelled(self, unknown: bool) -> Exception:
        return Unavailable(CLOSED, unknown) if self._closed else CancelledError()
