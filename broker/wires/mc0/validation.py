"""Validation of mc0's configuration values."""

from __future__ import annotations

from collections.abc import Iterator

from broker.config import zmq_endpoint
from broker.config.endpoint import BadEndpoint
from broker.config.files import KEY_LENGTH, is_curve_key
from broker.config.problem import Problem, in_ranges
from broker.config.zmq_endpoint import ZEndpoint
from broker.net.interfaces.limits import ROUTER_RANGES
from broker.wires.mc0.config import Mc0

MC0_RANGES: dict[str, tuple[float, float]] = {
    **ROUTER_RANGES,
    # The range of connections, since most connections have a session.
    "sessions": (1, 1_000_000),
    "subscriptions": (0, 100_000),
    # Ordinary frames must fit, and the memory must hold a few of the largest.
    "max_message": (1_024, 1024 * 1024 * 1024),
}
"""Minimum and maximum of each limit of mc0, in the units of `Mc0`."""


def mc0_place(mc0: Mc0) -> ZEndpoint | None:
    """Return the endpoint of mc0; None if the value is invalid."""
    try:
        return zmq_endpoint.parse(mc0.endpoint)
    except BadEndpoint:
        return None


def mc0_problems(mc0: Mc0) -> Iterator[Problem]:
    """Yield the problems of the values of mc0."""
    try:
        zmq_endpoint.parse(mc0.endpoint)
    except BadEndpoint as error:
        yield Problem("mc0.endpoint", str(error))
    yield from in_ranges("mc0", mc0, MC0_RANGES)
    if mc0.secret_key is not None and not is_curve_key(mc0.secret_key):
        yield Problem("mc0.secret_key", f"is no CURVE key, which has {KEY_LENGTH} Z85 characters")
