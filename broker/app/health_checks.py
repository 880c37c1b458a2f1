"""Health checks of the daemon: joins the schedule with the pings of the wires and with connections."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from broker.config import checks_settings
from broker.core.checks.check_rules import CheckKind, CheckRule, CheckSettings, Outcome, Pinger, Question
from broker.core.checks.check_schedule import Schedule
from broker.core.checks.registered_checks import RegisteredChecks
from broker.core.errors import Refusal
from broker.core.interfaces import ILeases
from broker.core.model import Policy
from broker.core.registry import Registry
from broker.core.silence import AT_ONCE, SilenceSettings, Verification
from broker.core.turns import Turns
from broker.net.check_connections import ConnectionChecks
from broker.net.outgoing_addresses import Outgoing
from broker.net.refusal_log import Counters


class HealthChecks:
    """The health checks. ``pinger_of`` returns the ping of a wire by its name, None if it has none or is not open.

    ``outgoing`` is the rule on the addresses that are connected to; ``own`` returns those of the open listeners.
    """

    def __init__(
        self,
        config: checks_settings.Checks,
        registry: Registry,
        leases: ILeases,
        reactor: Any,
        turns: Turns,
        pinger_of: Callable[[str], Pinger | None],
        own: Callable[[], Iterable[str]],
        counters: Counters,
    ) -> None:
        self._registry = registry
        self._reactor = reactor
        self._pinger_of = pinger_of
        self.outgoing = Outgoing(config.networks, own, partial(counters.count, "checks_refused"))
        self._connections = ConnectionChecks(reactor, self.outgoing)
        registry.use_panic(config.panic)
        self.schedule = Schedule(reactor, leases, self, random.random, settings_of(config))
        self.silence = Verification(registry, leases, reactor, self._connections.ask, silence_of(config))
        counters.include(self.silence.counts)
        self._registered = RegisteredChecks(registry, self.schedule, reactor, turns, leases)

    def use(self, config: checks_settings.Checks) -> None:
        """Apply a new configuration."""
        self.outgoing.use(config.networks)
        self._registry.use_panic(config.panic)
        self.silence.settings = silence_of(config)
        self._registered.use(settings_of(config))

    def stop(self) -> None:
        """End all checks. Services keep their state."""
        self._registered.stop()
        self.schedule.stop()
        self.silence.stop()

    # as `broker.core.checks.check_rules.Asker`

    def pings(self, wire: str) -> bool:
        """Return True if a wire has a ping."""
        return self._pinger_of(wire) is not None

    def unreachable(self, question: Question) -> bool:
        """Return True if the host of a pinged peer does not acknowledge."""
        pinger = self._pinger_of(question.wire)
        return pinger is not None and pinger.unreachable(question.number)

    def ask(self, question: Question, answered: Callable[[Outcome], None]) -> Callable[[], None] | None:
        """Make one check."""
        if question.rule.kind is not CheckKind.PING:
            return self._connections.ask(question, answered)
        pinger = self._pinger_of(question.wire)

        def ended(alive: bool | None) -> None:
            answered(Outcome(alive, _PING_REASONS[alive]))

        try:
            if pinger is None or not pinger.ping(question.number, question.rule.timeout, ended):
                return None
        except Refusal as refusal:
            # In the next turn: an outcome must not arrive within `ask`.
            self._reactor.callLater(0, answered, Outcome(None, f"not checked: {refusal.text}"))
        return _no_effect


def _no_effect() -> None:
    """End a ping: an answer that arrives later has no effect anyway."""


_PING_REASONS = {True: "a ping was answered", False: "no answer to a ping", None: "a ping could not be sent"}


def settings_of(config: checks_settings.Checks) -> CheckSettings:
    """Return the settings of a configuration."""
    rules = tuple(_rule(each) for each in config.rules) if config.enabled else ()
    return CheckSettings(rules, config.concurrency, config.panic)


def silence_of(config: checks_settings.Checks) -> SilenceSettings:
    """Return the settings for many silent peers of a configuration. Without checks none is verified."""
    return SilenceSettings(config.silent_share if config.enabled else 1.0, config.silent_ttls)


def _rule(rule: checks_settings.CheckRule) -> CheckRule:
    least, most = rule.statuses
    return CheckRule(
        services=rule.services,
        kind=CheckKind(rule.kind),
        wires=rule.wires,
        protocols=rule.protocols,
        interval=rule.interval,
        timeout=rule.timeout,
        up=rule.up,
        down=rule.down,
        policy=Policy(rule.policy),
        path=rule.path,
        statuses=(least, most),
    )


def connections_of(config: checks_settings.Checks) -> int:
    """Return the number of file descriptors that checks may take."""
    if not config.enabled:
        return 0
    verified = AT_ONCE if config.silent_share < 1 else 0
    return verified + (config.concurrency if any(rule.kind != "ping" for rule in config.rules) else 0)
