"""Responses by UDP that are kept, by the bytes of their queries.

Rules:
- A response is kept with its basis (`broker.wires.dns.zone.Basis`), and is sent again only if the zone would make the
  same bytes: nothing is invalidated when something changes, and no answer is ever older than the registry.
- A query of another case, with other flags or another EDNS payload is another query.
- A name with n places has up to n responses, which begin with different ones. The place that comes first is drawn for
  each query, as for a new response.
- Responses without services, and negative ones, are not kept: names that do not exist are without number.
- At a limit all are discarded. A flood of different queries then costs what it would without them.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from broker.wires.dns.dns_settings import Dns
from broker.wires.dns.zone import Basis, Zone

KEPT_BYTES = 16 * 1024 * 1024
"""Limit of what is kept, in bytes: 16,000 responses with 24 places each, and some ten times as many short ones."""

ENTRY_BYTES = 700
"""Bytes of an entry besides its query, its response and its references to services: measured, rounded up."""

REFERENCE_BYTES = 8
"""Bytes of a reference to a service."""


@attrs.frozen(eq=False)
class KeptAnswer:
    """A response without its id, and the kind under which it is counted."""

    data: bytes
    kind: str
    is_truncated: bool
    basis: Basis


class KeptAnswers:
    """The responses that are kept from ``zone``. ``begin(n)`` returns which of n places comes first."""

    def __init__(self, zone: Zone, begin: Callable[[int], int]) -> None:
        self._zone = zone
        self._begin = begin
        self._kept: dict[bytes, tuple[Basis, dict[int, KeptAnswer]]] = {}
        """By the query without its id: what all responses have in common, and those by the place that comes first."""
        self._bytes = 0

    def find(self, query: bytes, dns: Dns, serial: Callable[[], int]) -> KeptAnswer | None:
        """Return the response to a query, if one is kept that would be made again."""
        entry = self._kept.get(query)
        if entry is None:
            return None
        common, answers = entry
        zone = self._zone
        if not zone.holds(common, dns):
            self._discard(query)
            return None
        answer = answers.get(self._begin(common.places))
        if answer is None:
            return None
        basis = answer.basis
        if not zone.weighs(basis) or (basis.serial is not None and basis.serial != serial()):
            return None
        return answer

    def add(self, query: bytes, answer: KeptAnswer) -> None:
        """Keep a response, in the place of one that was made of other loads."""
        if self._bytes >= KEPT_BYTES:
            self._kept.clear()
            self._bytes = 0
        basis = answer.basis
        entry = self._kept.get(query)
        if entry is not None and not self._zone.holds(entry[0], basis.dns):
            self._discard(query)
            entry = None
        if entry is None:
            entry = self._kept[query] = (basis, {})
        answers = entry[1]
        before = answers.get(basis.first)
        self._bytes += _size(answer) - (0 if before is None else _size(before))
        answers[basis.first] = answer

    def _discard(self, query: bytes) -> None:
        self._bytes -= sum(map(_size, self._kept.pop(query)[1].values()))


def _size(answer: KeptAnswer) -> int:
    services = sum(len(services) for _, services, _ in answer.basis.found)
    return ENTRY_BYTES + 2 * len(answer.data) + REFERENCE_BYTES * (services + len(answer.basis.loads))
