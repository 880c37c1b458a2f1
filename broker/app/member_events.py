"""Events of the cluster for notifications: brokers that have gone, and those that are back.

Rules:
- A member is *gone* when it leaves or when its lease ends: an orderly stop is an event, too. ``draining`` tells if
  the broker had sent its peers away before.
- It is *back* when a member of that name joins after that. A new member is no event.
- Names that are gone are remembered, up to `MAX_GONE`; a name that is forgotten has no "back".
"""

from __future__ import annotations

from collections import OrderedDict

from broker.core.cluster.cluster_interfaces import IMembers, Member
from broker.core.interfaces import INotifications, IWait

MAX_GONE = 1_000
"""Names that are gone: more than a cluster has brokers. The oldest is forgotten."""


class MemberEvents:
    """The source. It watches from `start` on; this broker itself is no subject."""

    def __init__(self, notifications: INotifications, members: IMembers) -> None:
        self._notifications = notifications
        self._members = members
        self._present: dict[str, Member] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._watch: IWait | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._present = {each.name: each for each in self._members.members()}
        self._watch = self._members.watch_members(self._changed)

    def stop(self) -> None:
        """End. No-op if it does not watch."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _changed(self, name: str, member: Member | None) -> None:
        if name == self._members.name:
            return
        if member is None:
            last = self._present.pop(name, None)
            if last is None:
                return
            self._gone[name] = None
            if len(self._gone) > MAX_GONE:
                self._gone.popitem(last=False)
            self._notifications.event("member-gone", name, _about(last))
        else:
            self._present[name] = member
            if self._gone.pop(name, self) is None:
                self._notifications.event("member-back", name, _about(member))


def _about(member: Member) -> dict[str, object]:
    return {"version": member.version, "draining": member.draining}
