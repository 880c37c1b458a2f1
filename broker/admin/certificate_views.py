"""The view of TLS certificates of listeners, and warnings before they expire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.wall_clock import wall
from broker.wires.views import AnyView, Column, Row, View

SOON = 14 * 86_400.0
"""Seconds before the expiry from which operators are warned."""

CHECK = 3_600.0
"""Seconds between checks of expiry."""

COLUMNS = (
    Column("certificate", "File of the certificate"),
    Column("names", "Common name and DNS names"),
    Column("expires", "Time at which it expires, or the first one of its chain, in UTC"),
    Column("days", "Time until then; negative if it has expired", "days"),
    Column("clients", "True if clients must have a certificate"),
    Column("state", "valid, soon (within 14 days), or expired"),
)


class Certificate(Protocol):
    """The certificate of a listener; `broker.net.tls.Certificates` implements it."""

    path: str

    @property
    def expires(self) -> float:
        """The time in seconds of the epoch at which it expires."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its common name and DNS names."""

    @property
    def asks_clients(self) -> bool:
        """True if clients must have a certificate."""


Certificates = Callable[[], Iterable[Certificate]]
"""Returns the certificates of the open listeners."""


def state(certificate: Certificate, now: float) -> str:
    """Return "valid", "soon" or "expired"."""
    if certificate.expires <= now:
        return "expired"
    return "soon" if certificate.expires <= now + SOON else "valid"


def certificates(shown: Certificates, clock: IReactorTime) -> AnyView:
    """Return the view of all certificates."""
    return View(
        "broker certificates",
        "Shows the TLS certificates of the listeners. A pattern selects files and names.",
        COLUMNS,
        shown,
        partial(_certificate, clock),
        lambda each: (each.path, *each.names),
    )


def _certificate(clock: IReactorTime, certificate: Certificate) -> Row:
    now = wall(clock)
    return {
        "certificate": certificate.path,
        "names": " ".join(certificate.names),
        "expires": datetime.fromtimestamp(certificate.expires, UTC).isoformat(),
        "days": round((certificate.expires - now) / 86_400, 1),
        "clients": certificate.asks_clients,
        "state": state(certificate, now),
    }


class CertificateWatch:
    """Warnings in the log: one for each certificate that expires soon, and one that has expired."""

    log = Logger()

    def __init__(self, shown: Certificates, clock: IReactorTime) -> None:
        self._shown = shown
        self._clock = clock
        self._warned: set[tuple[str, float, str]] = set()
        self._timer: IDelayedCall | None = None

    def start(self) -> None:
        """Check now, and every `CHECK` seconds."""
        self.check()
        self._timer = self._clock.callLater(CHECK, self.start)

    def stop(self) -> None:
        """Check no more."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None

    def check(self) -> Sequence[str]:
        """Log warnings that are due. Returns them."""
        now = wall(self._clock)
        found = []
        for each in self._shown():
            key = (each.path, each.expires, state(each, now))
            if key[2] == "valid" or key in self._warned:
                continue
            self._warned.add(key)
            days = (each.expires - now) / 86_400
            text = "has expired" if days <= 0 else f"expires in {days:.1f} days"
            self.log.warn("the certificate {path} {text}", path=each.path, text=text)
            found.append(f"{each.path} {text}")
        return found
