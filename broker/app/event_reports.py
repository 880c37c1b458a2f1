"""Reports of events: their sources, and the notifications with the ways in which they are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from broker.app.core import Core
from broker.app.event_sources import EventSources, report_damage, report_plan
from broker.app.member_events import MemberEvents
from broker.app.notifications import Notifications
from broker.config.daemon_settings import Notify, NotifyRule
from broker.core.model import Listening, NotReady
from broker.core.plan import PlanFile
from broker.net.webhooks import Webhooks


class EventReports:
    """Events of one daemon. ``name`` is this broker for those who are notified.

    ``listeners`` returns the states of all listeners, ``degradations`` the stores that cannot be written,
    ``full`` the listeners without a free place.
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
    ) -> None:
        registry = core.registry
        self._programs = core.programs
        self._plan = plan
        self._reactor = reactor
        self._webhooks = Webhooks(reactor)
        self.notifications = notifications = Notifications(reactor, self._send, name)
        self._sources = EventSources(notifications, registry, reactor, registry.check_of, listeners, degradations, full)
        self._damages = core.damages
        self._members = MemberEvents(notifications, core.members)
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
        self._sources.settle = config.settle

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
