"""Metrics of counters: the mapping from a counter's name to a metric and its labels.

Rules, for a counter ``NAME.REASON`` (`broker.wires.counter`):
- ``NAME`` is ``WIRE`` and the name of its subject, joined by an underscore. The subjects of `SHARED` mean the same on
  every wire, so that they are one metric with the wire as a label: ``mc0_dropped`` is
  ``elkobroker_dropped_total{wire="mc0"}``. Any other name stays as it is: ``mtl_contents`` is
  ``elkobroker_mtl_contents_total``.
- The reason is a label if the family is documented, and a part of the name if the counter or gauge itself is.
- Values of labels come from the code, never from a peer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from broker.wires.counter import Counter, Documentation

PREFIX = "elkobroker_"

SHARED = frozenset({"accept", "connections", "datagrams", "debug", "dropped", "refused", "sessions", "unsent"})
"""Subjects of counters that several wires have, with the same meaning."""

BASE_UNITS = ("bytes", "seconds")
"""Units that end the name of a metric, by the conventions of Prometheus."""

_OTHER = re.compile("[^a-z0-9_]")


@attrs.frozen
class Family:
    """A metric: its name with the suffix, its help, its labels in order, and True for a gauge."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    gauge: bool = False

    def metric(self) -> Metric:
        """Return the metric without samples."""
        kind = GaugeMetricFamily if self.gauge else CounterMetricFamily
        return kind(self.name, self.help, labels=self.labels)


class CounterMetrics:
    """The metrics of all documented counters."""

    def __init__(self, documentation: Documentation) -> None:
        self._documentation = documentation
        helps: dict[str, dict[str, list[str]]] = {}
        self._families: dict[str, Family] = {}
        for counter in documentation:
            for family in self._all_of(counter):
                self._families[family.name] = family
                wire = self._subject(counter.name.partition(".")[0])[0]
                helps.setdefault(family.name, {}).setdefault(counter.help, []).append(wire)
        for name, texts in helps.items():
            self._families[name] = attrs.evolve(self._families[name], help=_joined(texts))

    def families(self) -> Sequence[Family]:
        """Return the metrics of all counters whose names are known, by name. Gauges of a family are not among them."""
        return [self._families[name] for name in sorted(self._families)]

    def collect(self, counts: Mapping[str, int]) -> Iterator[Metric]:
        """Yield the metrics with their values. Metrics without a value are yielded too, for their help."""
        metrics = {name: family.metric() for name, family in self._families.items()}
        for name, count in counts.items():
            family, values = self.place(name)
            metric = metrics.get(family.name)
            if metric is None:
                metric = metrics[family.name] = family.metric()
            metric.add_metric(values, count)  # type: ignore[attr-defined]
        yield from (metrics[name] for name in sorted(metrics))

    def place(self, name: str) -> tuple[Family, list[str]]:
        """Return the metric of a counter, and the values of its labels."""
        about = self._documentation.of(name) or Counter(name, "A counter without documentation")
        _, _, reason = name.partition(".")
        family = self._family(name, about)
        wire, _ = self._subject(name.partition(".")[0])
        values = {"wire": wire, "reason": reason}
        return self._families.get(family.name, family), [values[label] for label in family.labels]

    def _all_of(self, counter: Counter) -> Iterable[Family]:
        """Return the metrics of a documented counter that are known by name; those of a gauge's family are not."""
        if "." in counter.name:
            return [self._family(counter.name, counter)]
        return [] if counter.gauge else [self._family(counter.name + ".", counter)]

    def _family(self, name: str, about: Counter) -> Family:
        first, _, reason = name.partition(".")
        wire, subject = self._subject(first)
        labels = ["wire"] if wire else []
        parts = [subject]
        if "." in about.name or about.gauge:
            parts.append(reason)
        else:
            labels.append("reason")
        stem = _OTHER.sub("_", "_".join(parts))
        if about.unit in BASE_UNITS and not stem.endswith(about.unit):
            stem = f"{stem}_{about.unit}"
        suffix = "" if about.gauge else "_total"
        return Family(f"{PREFIX}{stem}{suffix}", f"{about.help}.", tuple(labels), about.gauge)

    @staticmethod
    def _subject(name: str) -> tuple[str, str]:
        """Return the wire of a counter's name and its shared subject, or else an empty text and the name."""
        wire, _, subject = name.rpartition("_")
        return (wire, subject) if wire and subject in SHARED else ("", name)


def _joined(helps: Mapping[str, Sequence[str]]) -> str:
    """Return the help of a metric that several wires have."""
    if len(helps) == 1:
        return f"{next(iter(helps))}."
    return "; ".join(f"{', '.join(wires)}: {text}" for text, wires in helps.items()) + "."
