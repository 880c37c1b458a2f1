"""The running broker: its answers, its readiness, its clock."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Sequence

from broker.brokerctl.doctor.files import expiry
from broker.brokerctl.doctor.finding import Finding, error, ok, warning
from broker.brokerctl.failures import Exit, Failure
from broker.brokerctl.http.answers import Answer, mapping
from broker.brokerctl.http.client import Client
from broker.brokerctl.output.units import text

SKEW, FAR = 5.0, 60.0
"""Seconds by which two clocks may differ before it is a warning, and an error: tokens expire by the second, and
times in logs of several machines are compared."""

VERIFY_SECONDS = 900.0
"""Limit of time of a verification, in seconds: a store in PostgreSQL may have some gigabytes."""

SHOWN = 5
"""Damaged rows of one store that are named."""


async def examine(client: Client, verify: bool = False) -> Sequence[Finding]:
    """Return the findings. The first one is an error if the broker does not answer. ``verify``: also those about the
    rows of its stores."""
    try:
        begun = time.time()
        health = await client.request("GET", "/healthz")
        health.value()
    except Failure as failure:
        return [error("broker", str(failure))]
    took = time.time() - begun
    found = [ok("broker", f"{client.where} answers in {1000 * took:.0f} ms")]
    if client.certificate_ends is not None:
        found.append(expiry(f"certificate of {client.where}", client.certificate_ends, time.time()))
    found += _skew(health, begun + took / 2)
    try:
        answer = await client.request("GET", "/readyz")
        ready = mapping(answer.json() if answer.status in (200, 503) else answer.value())
    except Failure as failure:
        return [*found, error("readiness", str(failure))]
    for key, weight in (("reasons", error), ("degraded", warning)):
        reasons = ready.get(key)
        found += [
            weight(text(reason.get("what")), text(reason.get("reason")))
            for reason in (reasons if isinstance(reasons, list) else [])
            if isinstance(reason, dict)
        ]
    if ready.get("ready") is True:
        found.append(ok("readiness", "ready: all listeners are open, and the state is stored"))
    try:
        about = mapping(await client.get("/v1/status"))
        found.append(ok("version", f"elkobroker {text(about.get('version'))}"))
    except Failure as failure:
        weight = warning if failure.code is Exit.DENIED else error
        found.append(weight("status", str(failure)))
    if verify:
        found += await _verified(client)
    return found


async def _verified(client: Client) -> Sequence[Finding]:
    """Return the findings about the checksums of the broker's stores."""
    try:
        answer = await client.request("GET", "/v1/verification", timeout=VERIFY_SECONDS)
        stores = mapping(answer.value()).get("stores")
    except Failure as failure:
        return [error("verification", str(failure))]
    found = []
    for each in stores if isinstance(stores, list) else []:
        store = mapping(each)
        what = f"verification of {text(store.get('store'))}"
        rows, damaged, named = store.get("rows"), store.get("damaged"), store.get("named")
        if damaged == 0:
            found.append(ok(what, f"{text(rows)} rows match their checksums"))
        else:
            first = ", ".join(map(text, named[:SHOWN])) if isinstance(named, list) else ""
            more = ", ..." if isinstance(named, list) and len(named) > SHOWN else ""
            told = f"{text(damaged)} of {text(rows)} rows were changed on the disk ({first}{more})"
            found.append(error(what, f"{told}. The next start does not use them; examine the disk and the memory"))
        if aside := store.get("aside"):
            found.append(warning(what, f"{text(aside)} damaged rows are kept in its table damaged"))
    return found


def _skew(answer: Answer, now: float) -> list[Finding]:
    try:
        there = email.utils.parsedate_to_datetime(answer.headers.get("date", "")).timestamp()
    except (ValueError, TypeError, OverflowError):
        return []
    # The field has whole seconds, without the rest.
    skew = max(0.0, abs(there + 0.5 - now) - 0.5)
    if skew > FAR:
        return [error("clocks", f"that of the broker differs from that of this machine by {skew:.0f} s")]
    if skew > SKEW:
        return [warning("clocks", f"that of the broker differs from that of this machine by {skew:.0f} s")]
    return [ok("clocks", "the broker has the time of this machine")]
