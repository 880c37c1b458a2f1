"""Certificates as operators see them, and the warnings before they expire."""

from __future__ import annotations

import attrs
import pytest
from twisted.internet.task import Clock

from broker.operate.broker_tables import CHECK, Certificate, CertificateWatch, certificate_view
from broker.pem import EXPIRES_SOON

DAY = 86_400.0


@attrs.define
class Shown:
    """A certificate."""

    path: str
    expires: float
    names: tuple[str, ...] = ("broker.example",)
    asks_clients: bool = False


@pytest.mark.parametrize(
    ("expires", "state"), [(EXPIRES_SOON + 1, "valid"), (EXPIRES_SOON, "soon"), (1.0, "soon"), (0.0, "expired")]
)
def test_the_view_shows_the_state(expires: float, state: str) -> None:
    shown: list[Certificate] = [Shown("a.pem", expires)]
    view = certificate_view(lambda: shown, Clock())
    (row,) = map(view.row, view.items())
    assert (row["state"], row["days"]) == (state, round(expires / DAY, 1))


def test_each_certificate_is_warned_of_once_before_and_once_after_its_end() -> None:
    clock = Clock()
    shown: list[Certificate] = [Shown("a.pem", EXPIRES_SOON + 1.5 * CHECK), Shown("b.pem", 10 * EXPIRES_SOON)]
    watch = CertificateWatch(lambda: shown, clock)
    assert watch.check() == []
    clock.advance(2 * CHECK)
    assert [text.split()[:2] for text in watch.check()] == [["a.pem", "expires"]]
    assert watch.check() == []
    clock.advance(EXPIRES_SOON)
    assert watch.check() == ["a.pem has expired"]
    shown[0] = Shown("a.pem", 20 * EXPIRES_SOON)
    assert watch.check() == []


def test_the_watch_stops() -> None:
    clock = Clock()
    watch = CertificateWatch(list, clock)
    watch.start()
    clock.advance(CHECK)
    assert len(clock.getDelayedCalls()) == 1
    watch.stop()
    assert not clock.getDelayedCalls()
