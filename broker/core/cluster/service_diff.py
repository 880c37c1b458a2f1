"""Difference between two lists of services of one provider."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from broker.core.model import Service


def differences(
    old: Sequence[Service], new: Sequence[Service]
) -> tuple[list[Service], list[Service], list[tuple[Service, Service]], list[Service]]:
    """Compare the present services of a provider with the wanted ones.

    Returns the wanted list, in the order of ``new``, with each equal service as the present object; those
    of it that are to be offered, pairs of an old and a new service that differ as `IRegistry.amend` permits, and the
    old ones to be withdrawn. Services that are kept stay in their order: one that has moved before another is withdrawn
    and offered.
    """
    places: dict[tuple[str, str], list[int]] = {}
    for place, service in enumerate(old):
        places.setdefault((service.name, service.protocol), []).append(place)
    used: set[int] = set()
    # The place of the last kept service of each name and protocol: only their order is visible to finds.
    last: dict[tuple[str, str], int] = {}
    kept: list[Service] = []
    offered: list[Service] = []
    amended: list[tuple[Service, Service]] = []
    for service in new:
        key = (service.name, service.protocol)
        after = [place for place in places.get(key, ()) if place > last.get(key, -1)]
        same = next((place for place in after if old[place] == service), None)
        if same is None:
            same = next((place for place in after if _amendable(old[place], service)), None)
            if same is not None:
                # Another object than the one that was passed: it may be registered already.
                changed = attrs.evolve(service)
                amended.append((old[same], changed))
                kept.append(changed)
        else:
            kept.append(old[same])
        if same is None:
            added = attrs.evolve(service)
            offered.append(added)
            kept.append(added)
            continue
        used.add(same)
        last[key] = same
    withdrawn = [service for place, service in enumerate(old) if place not in used]
    return kept, offered, amended, withdrawn


def _amendable(old: Service, new: Service) -> bool:
    return attrs.evolve(old, info=new.info, lasting=new.lasting, interval=new.interval) == new
