"""Build metric families that share a prefix and the label ``schema``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from pg_scheduler.base.figures import BOUNDS, DURATIONS, Histogram
from pg_scheduler.telemetry.process_metrics import Labels, items_of

Key = TypeVar("Key", bound=Labels)


class Families:
    """The families of one scrape."""

    def __init__(self, prefix: str, schema: str | None) -> None:
        self._prefix = prefix
        self._names: Labels = () if schema is None else ("schema",)
        self._values: Labels = () if schema is None else (schema,)
        self.all: list[Metric] = []
        """The families that were added, in this order."""

    def gauge(self, name: str, text: str, values: float | Mapping[Key, float], *labels: str) -> None:
        """Add a gauge, with a value for each tuple of label values, or a single one."""
        family = GaugeMetricFamily(self._prefix + name, text, labels=[*self._names, *labels])
        for key, value in items_of(values):
            family.add_metric([*self._values, *key], value)
        self.all.append(family)

    def counter(self, name: str, text: str, values: float | Mapping[Key, float], *labels: str) -> None:
        """Add a counter, whose name gets the suffix ``_total``."""
        family = CounterMetricFamily(self._prefix + name, text, labels=[*self._names, *labels])
        for key, value in items_of(values):
            family.add_metric([*self._values, *key], value)
        self.all.append(family)

    def histogram(
        self,
        name: str,
        text: str,
        values: Mapping[Key, Histogram],
        *labels: str,
        bounds: Sequence[float] = DURATIONS,
    ) -> None:
        """Add a histogram with a part of its buckets."""
        family = HistogramMetricFamily(self._prefix + name, text, labels=[*self._names, *labels])
        marks = [(str(bound), BOUNDS.index(bound)) for bound in bounds]
        for key, histogram in values.items():
            sums = list(accumulate(histogram.buckets))
            buckets = [*((mark, sums[place]) for mark, place in marks), ("+Inf", sums[-1])]
            family.add_metric([*self._values, *key], buckets, histogram.total)
        self.all.append(family)
