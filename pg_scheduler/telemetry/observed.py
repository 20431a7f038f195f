"""Export what a process counts as observable instruments of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from pg_scheduler.scheduler import Scheduler
from pg_scheduler.telemetry.process_metrics import add_counters, add_gauges, items_of
from pg_scheduler.worker.health import gauges_of

PREFIX: Final = "pg_scheduler."


class Readings:
    """The values of all instruments at one instant, by name. Histograms are left out: they need records."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.counters: dict[str, list[Observation]] = {}
        self.gauges: dict[str, list[Observation]] = {}

    def gauge(self, name: str, text: str, values: float | Mapping[Any, float], *labels: str) -> None:
        """Add a gauge."""
        self.texts[name] = text
        self.gauges[name] = _observations(values, labels)

    def counter(self, name: str, text: str, values: float | Mapping[Any, float], *labels: str) -> None:
        """Add a counter."""
        self.texts[name] = text
        self.counters[name] = _observations(values, labels)

    def histogram(self, *_args: object, **_options: object) -> None:
        """Leave out a histogram."""


class _Reader:
    """Reads a Scheduler once per collection, in the thread of the exporter."""

    def __init__(self, source: Callable[[], Scheduler]) -> None:
        self._source = source
        self._last = Readings()
        self._asked: set[str] | None = None

    def read(self, name: str) -> Readings:
        """Return the values of this collection; an instrument that asks again begins another one."""
        if self._asked is None or name in self._asked:
            self._last, self._asked = _readings_of(self._source()), set()
        self._asked.add(name)
        return self._last


def observe(meter: Meter, source: Callable[[], Scheduler]) -> None:
    """Create the instruments of a Scheduler.

    Args:
        meter: Creates them.
        source: Returns the Scheduler at each collection.
    """
    reader = _Reader(source)
    known = _readings_of(source())

    def values(kind: str, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _options: getattr(reader.read(name), kind)[name]

    for kind, create in (
        ("counters", meter.create_observable_counter),
        ("gauges", meter.create_observable_gauge),
    ):
        for name in getattr(known, kind):
            unit = "s" if name.endswith("_seconds") else ""
            create(PREFIX + name, [values(kind, name)], unit, known.texts[name])


def _readings_of(scheduler: Scheduler) -> Readings:
    readings = Readings()
    add_gauges(readings, gauges_of(scheduler._parts.life, scheduler._parts.store.connections))  # noqa: SLF001 - a front end
    meter = scheduler._parts.meter  # noqa: SLF001
    if meter is not None:
        add_counters(readings, meter.snapshot(), is_running=scheduler.is_running)
    return readings


def _observations(values: float | Mapping[Any, float], labels: tuple[str, ...]) -> list[Observation]:
    return [Observation(value, dict(zip(labels, key, strict=True))) for key, value in items_of(values)]
