"""The HTTP listeners of the brokers of a cluster, for clients: their URLs, and the header ``Link`` of answers."""

from __future__ import annotations

from broker.core.cluster.cluster_interfaces import IMembers, Member

MAX_LINKS = 8
"""Other brokers in a ``Link`` header: more than one that is lost needs, in some 300 bytes."""


class OtherBrokers:
    """The listeners of the title ``listener`` of all ``members``. All brokers of a cluster have TLS, or none has: the
    members publish addresses only."""

    def __init__(self, members: IMembers, listener: str) -> None:
        self._members = members
        self._listener = listener
        self._links: dict[bool, list[tuple[str, str]]] = {}
        """The headers by scheme, until a member changes."""
        members.watch_members(lambda name, member: self._links.clear())

    def urls(self, secure: bool) -> list[str]:
        """Return the URLs of all brokers that other machines reach, this one first; none without a cluster."""
        scheme = "https" if secure else "http"
        present = sorted(self._members.members(), key=lambda each: each.name != self._members.name)
        return [f"{scheme}://{place}" for place in map(self._place, present) if place]

    def links(self, secure: bool) -> list[tuple[str, str]]:
        """Return the header with the URLs of the other brokers (RFC 8288); none without any."""
        known = self._links.get(secure)
        if known is None:
            here = self._members.member(self._members.name)
            own = f"{'https' if secure else 'http'}://{self._place(here)}" if here is not None else ""
            others = [f'<{url}/>; rel="alternate"' for url in self.urls(secure) if url != own][:MAX_LINKS]
            known = self._links[secure] = [("Link", ", ".join(others))] if others else []
        return known

    def _place(self, member: Member) -> str:
        return member.listeners.get(self._listener, "").removeprefix("tcp://")
