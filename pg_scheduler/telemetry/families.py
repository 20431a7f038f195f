"""Build the families of a scrape, with a prefix and the label ``schema``."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Final

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from pg_scheduler.base.figures import BOUNDS, Histogram
from pg_scheduler.telemetry.metrics import Family
from pg_scheduler.telemetry.process_metrics import Labels, Values, items_of

_CLASSES: Final = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,  # it adds the suffix ``_total`` to the name
    "histogram": HistogramMetricFamily,
}


class Families:
    """The families of one scrape.

    Args:
        table: The families that there may be, by name.
        prefix: The prefix of their names.
        schema: The value of the label ``schema``; None for no such label.
    """

    def __init__(self, table: Mapping[str, Family], prefix: str, schema: str | None) -> None:
        self._table = table
        self._prefix = prefix
        self._names: Labels = () if schema is None else ("schema",)
        self._values: Labels = () if schema is None else (schema,)
        self.all: list[Metric] = []
        """The families that were added, in this order."""

    def add(self, name: str, values: Values) -> None:
        """Add a family of the table, with a value for each tuple of label values, or a single one."""
        definition = self._table[name]
        labels = [*self._names, *definition.labels]
        family: Any = _CLASSES[definition.kind](self._prefix + name, definition.text, labels=labels)
        # A histogram has a bucket for each of all bounds, and a family exports the sums up to some of them.
        # These are the exported bounds as text, with their places among all bounds.
        bounds = [(str(bound), BOUNDS.index(bound)) for bound in definition.bounds]
        for key, value in items_of(values):
            label_values = [*self._values, *key]
            if isinstance(value, Histogram):
                # In Prometheus, a bucket has the number of all values up to its bound.
                sums = list(accumulate(value.buckets))
                buckets = [(bound, sums[index]) for bound, index in bounds]
                buckets.append(("+Inf", sums[-1]))
                family.add_metric(label_values, buckets, value.total)
            else:
                family.add_metric(label_values, value)
        self.all.append(family)
