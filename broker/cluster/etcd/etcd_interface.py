"""Interface of etcd, version 3: key-value operations, leases and watches, as values and Deferreds.

`broker.cluster.etcd.etcd_client` implements it over the HTTP gateway. Every call ends within a bounded time, by a
result or an `EtcdError`. Keys and values are bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Literal, Protocol

import attrs
from twisted.internet.defer import Deferred
from zope.interface import Interface


class EtcdError(Exception):
    """A call of etcd failed. The message is a sentence for operators."""


class Unavailable(EtcdError):
    """No endpoint answered, or the cluster has no quorum. The call may be tried again.

    ``unknown`` is True if the call may have taken effect.
    """

    def __init__(self, text: str, unknown: bool = False) -> None:
        super().__init__(text)
        self.unknown = unknown


class LeaseGone(EtcdError):
    """The lease does not exist (any more)."""


class LeaseExists(EtcdError):
    """A lease with that id exists already."""


class Compacted(EtcdError):
    """The requested revision was compacted."""


class FutureRevision(EtcdError):
    """The requested revision is higher than the present one: etcd's data were replaced."""


class NoSpace(EtcdError):
    """The database of etcd has reached its quota: writes and new leases are refused."""


class Denied(EtcdError):
    """Wrong or missing credentials, no permission, or an unusable certificate. Retrying does not help."""


class BadRequest(EtcdError):
    """etcd refuses the request as invalid or too large. Retrying does not help."""


@attrs.frozen
class KeyValue:
    """A key with its value. ``lease`` is 0 without one."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0


@attrs.frozen
class Compare:
    """Condition of a transaction: ``target`` of ``key`` equals ``value``. A missing key has 0 for each target."""

    target: Literal["CREATE", "MOD", "LEASE"]
    key: bytes
    value: int


@attrs.frozen
class Put:
    """Write of a key, under a lease. ``lease`` 0 writes a key without one."""

    key: bytes
    value: bytes
    lease: int


@attrs.frozen
class Delete:
    """Deletion of a key, or of the keys from ``key`` up to, not including, ``end``."""

    key: bytes
    end: bytes | None = None


@attrs.frozen
class Get:
    """Read of a key, or of the keys from ``key`` up to, not including, ``end``, within a transaction."""

    key: bytes
    end: bytes | None = None


@attrs.frozen
class Nested:
    """Write or deletion within a transaction, under a condition of its own."""

    compare: Compare
    operation: Put | Delete


Operation = Put | Delete | Get | Nested

MAX_OPERATIONS = 128
"""Limit of the operations of a transaction, etcd's ``--max-txn-ops`` default. A key may occur once only."""

MAX_REQUEST = 1_500_000
"""Limit of the values of a transaction together, in bytes: etcd's ``--max-request-bytes`` default is 1.5 MiB."""


@attrs.frozen
class TxnResult:
    """Result of a transaction. ``found`` has the keys of each `Get` of the branch that was executed, in order;
    ``nested`` whether the condition of each `Nested` held."""

    succeeded: bool
    revision: int
    found: tuple[tuple[KeyValue, ...], ...] = ()
    nested: tuple[bool, ...] = ()


@attrs.frozen
class RangeResult:
    """Page of a range: the keys in order, the revision of the whole read, and True if more keys follow."""

    keys: tuple[KeyValue, ...]
    revision: int
    more: bool
    count: int


@attrs.frozen
class Granted:
    """A granted lease: its id and its TTL in seconds, which etcd may raise."""

    lease: int
    ttl: int


@attrs.frozen
class Status:
    """State of the member of etcd that answered: ``size`` of the database in bytes, ``used`` of it, its ``version``,
    and its ``errors``, such as a missing leader or an alarm. ``leases`` is their number and ``time`` the time of day of
    its machine, in whole seconds; None where they were not asked for, or are not known."""

    version: str
    size: int
    used: int
    errors: tuple[str, ...] = ()
    leases: int | None = None
    time: float | None = None


@attrs.frozen
class Event:
    """Event of a watch. ``value`` is None for a deletion, whose ``revision`` is that of the deletion."""

    key: bytes
    value: KeyValue | None
    revision: int


class Ended(enum.Enum):
    """Reason for the end of a watch."""

    FAILED = "failed"
    """The connection or the endpoint failed: continue from the next revision."""
    COMPACTED = "compacted"
    """The start revision was compacted, or is later than the present one: read everything again."""
    DENIED = "denied"
    """The credentials do not permit the watch."""


class Watcher(Protocol):
    """Receiver of a watch."""

    def events(self, revision: int, events: Sequence[Event]) -> None:
        """Events in the order of their revisions. ``revision`` is the last one of which all have come: those of one
        revision may come in several calls."""

    def ended(self, reason: Ended, text: str) -> None:
        """The watch has ended by itself; not called after `IEtcdWatch.cancel`. No further calls."""


class IEtcdWatch(Interface):
    """Handle of a watch."""

    def cancel() -> None:
        """End the watch. Idempotent."""


class IEtcd(Interface):
    """Client of etcd. All methods are for the reactor thread. Each may fail with any `EtcdError`."""

    def range(key: bytes, end: bytes | None = ..., limit: int = ..., revision: int = ...) -> Deferred[RangeResult]:
        """Read a key, or the keys from ``key`` up to, not including, ``end``: linearizable, at a past ``revision`` if
        that is not 0, at most ``limit`` of them if that is not 0."""

    def txn(
        compare: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ...
    ) -> Deferred[TxnResult]:
        """Execute ``success`` if all comparisons hold, otherwise ``failure``."""

    def grant(ttl: int) -> Deferred[Granted]:
        """Create a lease with that TTL in seconds."""

    def keep_alive(lease: int) -> Deferred[int]:
        """Renew a lease. Fires with its TTL in seconds; fails with `LeaseGone`."""

    def revoke(lease: int) -> Deferred[None]:
        """End a lease, and delete its keys. No-op for one that is gone."""

    def time_to_live(lease: int) -> Deferred[int]:
        """Return the remaining seconds of a lease, rounded down; fails with `LeaseGone`."""

    def status() -> Deferred[Status]:
        """Return the state of the present endpoint."""

    def compact(revision: int) -> Deferred[None]:
        """Discard the history before a revision. No-op if it was discarded already."""

    def watch(key: bytes, end: bytes, revision: int, watcher: Watcher) -> IEtcdWatch:
        """Watch the keys from ``key`` up to ``end`` from a revision on, 0 for the present one.

        A watch may be silent for ever although keys change, after a fault of etcd: the caller proves that it is alive
        by its own writes, and calls `change_endpoint` otherwise.
        """

    def change_endpoint(watch: IEtcdWatch | None = ...) -> None:
        """Prefer the next endpoint for all later calls and watches. With a ``watch``: an endpoint that is not its own,
        which is the present one if failed calls have led there."""

    def close() -> Deferred[None]:
        """End all watches, as failed ones, and all calls; these fail with `Unavailable`. Fires when all connections are
        closed."""
