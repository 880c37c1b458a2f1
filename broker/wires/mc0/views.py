"""What operators are shown of mc0: its sessions, and the topics of all wires."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from itertools import islice

from broker.core.interfaces import ILeases, ITopics
from broker.wires.mc0.sessions.conversation import Mc0
from broker.wires.mc0.sessions.session import Session, shown

MAX_LISTED = 1_000
"""Sessions or topics of one answer: more than anybody reads. A pattern finds more."""

MAX_TOPICS = 50
"""Topics that are shown of one session: a real node has 10 to 20."""


def sessions(mc0: Mc0, leases: ILeases, pattern: str = "*") -> list[dict[str, object]]:
    """The sessions whose identity or key name matches a shell pattern, the oldest first."""

    def wanted(session: Session) -> bool:
        return fnmatchcase(str(session), pattern) or fnmatchcase(session.key_name, pattern)

    return [_session(each, leases.now) for each in islice(filter(wanted, mc0.sessions()), MAX_LISTED)]


def topics(topics: ITopics, pattern: str = "*") -> list[dict[str, object]]:
    """The topics whose name matches a shell pattern, with their subscribers and the messages they had, by name."""
    infos = ((shown(each.name), each) for each in topics.describe())
    found = ((name, each) for name, each in infos if fnmatchcase(name, pattern))
    return [
        {"topic": name, "subscribers": each.subscribers, "published": each.published}
        for name, each in islice(found, MAX_LISTED)
    ]


def views(mc0: Mc0, all_topics: ITopics, leases: ILeases) -> dict[str, Callable[[str], object]]:
    """The console's commands, by name. Each is given a pattern."""
    return {
        "mc0 sessions": lambda pattern: sessions(mc0, leases, pattern),
        "mc0 topics": lambda pattern: topics(all_topics, pattern),
    }


def _session(session: Session, now: float) -> dict[str, object]:
    about: dict[str, object] = {"identity": str(session), "address": session.address}
    if session.key:
        about |= {"key": session.key, "name": session.key_name}
    about["ttl"] = round(session.ttl * 1000)
    about["heard"] = round(now - session.heard, 1)
    about["subscriptions"] = len(session.topics)
    about["topics"] = [shown(topic) for topic in islice(session.topics, MAX_TOPICS)]
    if session.refused:
        about["refused"] = [shown(topic) for topic in islice(session.refused, MAX_TOPICS)]
    about["dropped"] = session.dropped
    return about
