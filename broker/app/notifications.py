"""Notifications: events that rules of the configuration send to webhooks and commands.

Rules:
- Each rule has a queue of its own, and sends one notification at a time, in order: a slow webhook delays no other rule.
- A failed attempt is repeated with growing pauses, up to the rule's number of attempts; then the notification is
  dropped. A full queue and the rate limit of a rule drop the newest one. Each drop is counted.
- A notification is about an event that has happened: it is sent even if the opposite has happened since.
- A reload keeps the queue of a rule whose name stays. At the stop of the daemon, waiting notifications are dropped.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter as Counts
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import attrs
import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.web.client import Agent, HTTPConnectionPool
from zope.interface import implementer

from broker.app.core_parts import Core
from broker.app.event_sources import EventSources, MemberEvents, report_damage, report_plan
from broker.backoff import Backoff
from broker.config.daemon_settings import Notify, NotifyRule
from broker.core.interfaces import INotifications
from broker.core.model import EVENTS, Listening, NotReady
from broker.core.plan import PlanFile
from broker.core.rates import Bucket
from broker.http_bodies import TooLong, Uncompressed, collect
from broker.wall_clock import wall
from broker.wires.tables import AnyView, Column, Row, View

# Webhooks: one POST of a JSON body to a URL, signed, with a deadline.

MAX_ANSWER = 64 * 1024
"""Bytes of an answer that are read and discarded; a longer one ends the connection."""


class WebhookFailed(Exception):
    """A webhook did not accept the request; the message gives the reason."""


class Webhooks:
    """The client of all webhooks."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._client: Any = None
        """Made for the first request: most brokers have no webhooks, and run without treq."""

    async def post(self, url: str, body: bytes, secret: str | None, seconds: float) -> None:
        """Send a request. Raises `WebhookFailed` unless the answer has a status from 200 to 299.

        A redirection is a failure: the secret and the content are for the configured URL.
        """
        headers: dict[bytes | str, bytes | str] = {"Content-Type": "application/json", "User-Agent": "elkobroker"}
        if secret is not None:
            stamp = str(int(wall(self._reactor)))
            headers |= {"X-Elkobroker-Timestamp": stamp, "X-Elkobroker-Signature": signature(secret, stamp, body)}
        request: Deferred[Any] = Deferred.fromCoroutine(self._post(url, body, headers))
        request.addTimeout(seconds, self._reactor)
        try:
            await request
        except WebhookFailed:
            raise
        except Exception as error:
            raise WebhookFailed(str(error) or type(error).__name__) from None

    def _made(self) -> Any:
        if self._client is None:
            # Imported here: treq imports the reactor, which the command line chooses.
            from treq.client import HTTPClient

            pool = HTTPConnectionPool(self._reactor, persistent=False)
            self._client = HTTPClient(Uncompressed(Agent(self._reactor, pool=pool)))
        return self._client

    async def _post(self, url: str, body: bytes, headers: dict[bytes | str, bytes | str]) -> None:
        answer = await self._made().post(url, data=body, headers=headers, allow_redirects=False, unbuffered=True)
        try:
            await collect(answer, MAX_ANSWER)
        except TooLong:
            raise WebhookFailed("the answer is too long") from None
        if not 200 <= answer.code < 300:
            raise WebhookFailed(f"the answer has status {answer.code}")


def signature(secret: str, stamp: str, body: bytes) -> str:
    """Return the signature of a request: ``sha256=`` and the HMAC of its time, a dot and its body, in hexadecimal."""
    return "sha256=" + hmac.new(secret.encode(), stamp.encode() + b"." + body, hashlib.sha256).hexdigest()


MAX_WAITING = 100
"""Notifications of one rule that wait: more than a person reads, and some 100 kB."""

_BACKOFF = Backoff(1.0, 60.0)
"""Pauses between attempts: eight attempts take two minutes, for which a webhook may be restarted."""

Send = Callable[[NotifyRule, bytes], Awaitable[None]]
"""Makes one attempt. Raises an exception with the reason if it fails."""

COLUMNS = (
    Column("rule", "Name of the rule"),
    Column("way", "Its webhook or command"),
    Column("events", "Events for which it is called"),
    Column("sent", "Notifications that were taken", "notifications"),
    Column("failed", "Attempts that failed", "attempts"),
    Column("dropped", "Notifications dropped: too many attempts, a full queue, the rate limit", "notifications"),
    Column("waiting", "Notifications that wait, or are being sent", "notifications"),
    Column("error", "Reason of the last failure, until the next success"),
)


@attrs.define(eq=False)
class _Rule:
    config: NotifyRule
    bucket: Bucket
    waiting: deque[bytes] = attrs.field(factory=deque)
    timer: IDelayedCall | None = None
    sending: bool = False
    attempts: int = 0
    """Failed attempts for the first notification in the queue."""
    over: bool = False
    sent: int = 0
    failed: int = 0
    dropped: int = 0
    error: str = ""


@implementer(INotifications)
class Notifications:
    """The notifications. ``send`` makes one attempt; ``broker`` is the name of this broker in each notification."""

    log = Logger()

    def __init__(self, clock: IReactorTime, send: Send, broker: str) -> None:
        self._clock = clock
        self._send = send
        self._broker = broker
        self._rules: dict[str, _Rule] = {}
        self._number = 0
        self._counts: Counts[str] = Counts()

    def use(self, rules: Iterable[NotifyRule]) -> None:
        """Use these rules from now on."""
        before, self._rules = self._rules, {}
        for config in rules:
            rule = before.pop(config.name, None) or _Rule(config, Bucket(config.per_minute, self._clock.seconds()))
            changed, rule.config = rule.config != config, config
            self._rules[config.name] = rule
            if changed and rule.timer is not None:
                # The failures were those of the receiver before.
                rule.attempts = 0
                rule.timer.reset(0)
        for rule in before.values():
            self._end(rule)

    def event(self, kind: str, name: str, about: Mapping[str, object] | None = None) -> None:
        """See `INotifications`."""
        assert kind in EVENTS, kind
        self._counts["events"] += 1
        wanted = [
            rule
            for rule in self._rules.values()
            if kind in rule.config.events and fnmatchcase(name, rule.config.pattern)
        ]
        if not wanted:
            return
        self._number += 1
        now = datetime.fromtimestamp(wall(self._clock), UTC).isoformat(timespec="milliseconds")
        message = {
            "id": self._number,
            "event": kind,
            "name": name,
            "time": now.replace("+00:00", "Z"),
            "broker": self._broker,
            "about": dict(about or {}),
        }
        body = msgspec.json.encode(message)
        for rule in wanted:
            self._add(rule, body)

    def counts(self) -> Mapping[str, int]:
        """Return the counters."""
        rules = self._rules.values()
        return {
            **{f"notifications.{name}": count for name, count in self._counts.items()},
            "notifications.waiting": sum(len(rule.waiting) for rule in rules),
        }

    def view(self) -> AnyView:
        """Return the view of the rules."""
        return View(
            "broker notifications",
            "Shows the rules of [notify], and the outcome of their notifications. A pattern selects names.",
            COLUMNS,
            lambda: list(self._rules.values()),
            _row,
            lambda rule: (rule.config.name,),
        )

    def stop(self) -> None:
        """Drop all waiting notifications."""
        for rule in self._rules.values():
            self._end(rule)
        self._rules.clear()

    def _add(self, rule: _Rule, body: bytes) -> None:
        config = rule.config
        if not rule.bucket.take(config.per_minute / 60, config.per_minute, self._clock.seconds()):
            self._drop(rule, "rate", f"more than {config.per_minute:g} a minute")
        elif len(rule.waiting) >= MAX_WAITING:
            self._drop(rule, "full", f"{MAX_WAITING} notifications wait already")
        else:
            rule.waiting.append(body)
            self._go_on(rule)

    def _go_on(self, rule: _Rule) -> None:
        """Send the first notification of the queue, unless one is being sent or waits for its next attempt."""
        if rule.waiting and not rule.sending and rule.timer is None and not rule.over:
            rule.sending = True
            Deferred.fromCoroutine(self._attempt(rule)).addErrback(
                lambda failure: self.log.failure("a notification made the broker fail", failure)
            )

    async def _attempt(self, rule: _Rule) -> None:
        try:
            await self._send(rule.config, rule.waiting[0])
        except Exception as error:
            rule.sending = False
            self._failed(rule, str(error) or type(error).__name__)
        else:
            rule.sending = False
            if rule.over:
                return
            rule.waiting.popleft()
            rule.attempts = 0
            rule.sent += 1
            self._counts["sent"] += 1
            if rule.error:
                self.log.info("notify {rule}: works again", rule=rule.config.name)
                rule.error = ""
            self._go_on(rule)

    def _failed(self, rule: _Rule, why: str) -> None:
        if rule.over:
            return
        rule.failed += 1
        rule.attempts += 1
        self._counts["failed"] += 1
        if not rule.error:
            self.log.warn("notify {rule}: {why}; it is tried again", rule=rule.config.name, why=why)
        rule.error = why
        pause = _BACKOFF.after(rule.attempts)
        if rule.attempts >= rule.config.attempts:
            rule.waiting.popleft()
            rule.attempts = 0
            self._drop(rule, "attempts", why)
        rule.timer = self._clock.callLater(pause, self._retry, rule)

    def _retry(self, rule: _Rule) -> None:
        rule.timer = None
        self._go_on(rule)

    def _drop(self, rule: _Rule, reason: str, why: str) -> None:
        rule.dropped += 1
        self._counts[f"dropped_{reason}"] += 1
        rule.error = why

    def _end(self, rule: _Rule) -> None:
        rule.over = True
        if rule.timer is not None:
            rule.timer.cancel()
            rule.timer = None


def _way(config: NotifyRule) -> str:
    """Return the program of the command, or the host of the URL: arguments and paths often are secrets."""
    if config.url is None:
        return " ".join((config.command[0], *["..."] * (len(config.command) > 1)))
    parts = urlsplit(config.url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/..."


def _row(rule: _Rule) -> Row:
    about: dict[str, object] = {
        "rule": rule.config.name,
        "way": _way(rule.config),
        "events": list(rule.config.events),
        "sent": rule.sent,
        "failed": rule.failed,
        "dropped": rule.dropped,
        "waiting": len(rule.waiting),
    }
    if rule.error:
        about["error"] = rule.error
    return about


# Reports of events: their sources, and the notifications with the ways in which they are sent.


class EventReports:
    """Events of one daemon. ``name`` is this broker for those who are notified.

    ``listeners`` returns the states of all listeners, ``degradations`` the stores that cannot be written,
    ``full`` the listeners without a free place, ``cluster`` what is missing of the cluster.
    """

    def __init__(
        self,
        name: str,
        core: Core,
        plan: PlanFile,
        reactor: Any,
        listeners: Callable[[], Iterable[Listening]],
        degradations: Callable[[], Iterable[NotReady]],
        full: Callable[[], Iterable[NotReady]],
        cluster: Callable[[], Iterable[NotReady]],
    ) -> None:
        registry = core.registry
        self._programs = core.programs
        self._plan = plan
        self._reactor = reactor
        self._webhooks = Webhooks(reactor)
        self.notifications = notifications = Notifications(reactor, self._send, name)
        self._sources = EventSources(
            notifications,
            registry,
            core.restored,
            reactor,
            core.turns,
            registry.check_of,
            listeners,
            degradations,
            full,
            cluster,
        )
        self._damages = core.damages
        self._members = MemberEvents(notifications, core.cluster.members)
        self.listeners_changed = self._sources.listeners_changed

    def start(self, config: Notify) -> None:
        """Begin to report, as soon as the reactor runs."""
        self.use(config)
        self._plan.watch(partial(report_plan, self.notifications))
        self._reactor.callWhenRunning(self._sources.start)
        self._reactor.callWhenRunning(self._members.start)
        self._reactor.callWhenRunning(self._damages.report, partial(report_damage, self.notifications))

    def use(self, config: Notify) -> None:
        """Apply the rules of a configuration."""
        self.notifications.use(config.rules)
        self._sources.use(config.settle)

    def stop(self) -> None:
        """End. To be called before the stop closes connections, whose services are not gone."""
        self._sources.stop()
        self._members.stop()
        self.notifications.stop()

    async def _send(self, rule: NotifyRule, body: bytes) -> None:
        """Send one notification."""
        if rule.url is not None:
            await self._webhooks.post(rule.url, body, rule.secret, rule.timeout)
        else:
            await self._programs.run(rule.name, list(rule.command), body, rule.timeout)
