"""Answers to info requests of last values: ``lvc:TOPIC`` is the newest message of a topic that was kept.

Each value is listed like a service, by an object with the topic, its body as ``text`` (``base64`` where that is not
UTF-8), the headers that are text, and ``time``, when it was published. Topics without a value, and those that the users
file does not let peers without a user subscribe to, are an error. See docs/protocols/dbp.md, "Last values".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from broker.core.interfaces import ITopics
from broker.wires.common.registry_topics import TopicRights
from broker.wires.dbp.codec.listings import ERROR, LVC, listing

MAX_BODIES = 1024 * 1024
"""Bytes of the bodies of one answer: their encoding takes 3 to 20 ms of one turn."""


class TopicValues:
    """The last values of ``topics``. ``rights`` are those of peers without a user; a reload may replace them. ``shown``
    returns a message as JSON: `broker.core.control.topic_message`."""

    def __init__(
        self,
        topics: ITopics,
        rights: TopicRights,
        shown: Callable[[bytes, Sequence[bytes], bytes], dict[str, object]],
    ) -> None:
        self._topics = topics
        self._shown = shown
        self.rights = rights

    def named(self, names: Sequence[str]) -> bytes:
        """Return the body of the answer to a request for these names."""
        found: dict[str, bytes] = {}
        missing: list[str] = []
        room = MAX_BODIES
        for name in names:
            topic = name.removeprefix(LVC).encode("utf-8", "surrogateescape")
            value = self._topics.last(topic) if name.startswith(LVC) and self.rights.may_subscribe(topic) else None
            size = 0 if value is None else sum(map(len, value.body))
            if value is None:
                missing.append(f"No Last Value of the Topic {name.removeprefix(LVC)}")
            elif size > room:
                missing.append(f"No Room for the Last Value of the Topic {name.removeprefix(LVC)}")
            else:
                room -= size
                about = self._shown(topic, value.headers, b"".join(value.body))
                found[name] = msgspec.json.encode({**about, "time": value.stamp})
        return listing(iter(found.items()), {ERROR: "; ".join(missing)} if missing else None)
