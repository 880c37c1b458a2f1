"""The endpoint ``/metrics``, rendered family by family in turns of the reactor by `prometheus_client`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest

from broker.access.registry_reading import RegistryReading
from broker.web.http_endpoint import Call, Endpoint
from broker.web.messages import Response

Collect = Callable[[], Iterable[Metric | None]]
"""Yields metrics, and None for a unit of work without a result."""


class _One:
    """One metric in the form of a registry."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return [self._metric]


def endpoints(
    collectors: Sequence[Collect], of_services: Callable[[RegistryReading], Iterable[Metric | None]]
) -> list[Endpoint]:
    """Return the endpoint of all metrics. ``of_services`` yields those with samples of services, as a user may find."""

    def metrics(call: Call) -> Response:
        headers = [("Cache-Control", "no-store")]
        named = partial(of_services, RegistryReading.of(call.grants))
        return Response(body=render([*collectors, named]), content_type=CONTENT_TYPE_PLAIN_0_0_4, headers=headers)

    return [
        Endpoint(
            "GET",
            "/metrics",
            "get_metrics",
            "Returns all metrics in the text format of Prometheus.",
            metrics,
            tag="health",
        )
    ]


def render(collectors: Sequence[Collect]) -> Iterator[bytes]:
    """Yield the text of each metric, and empty pieces for work without a result."""
    for collect in collectors:
        for metric in collect():
            yield b"" if metric is None else generate_latest(_One(metric))
