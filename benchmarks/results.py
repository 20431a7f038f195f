"""Measurements and goals."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the value below which this share of the samples lies."""
    ordered = sorted(samples)
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass
class Series:
    """The values of one measure of one contestant, one for each round."""

    contestant: str
    measure: str
    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        """The minimum and the maximum."""
        return min(self.values), max(self.values)


@dataclass(frozen=True)
class Goal:
    """A bound for a measure, or for its ratio to another's.

    Attributes:
        measure: The measure.
        of: The contestant.
        than: The contestant to compare with, or `BEST`; None for a bound on the value itself.
        than_measure: The measure to compare with, if it differs.
        least: The lower bound.
        most: The upper bound.
    """

    measure: str
    of: str = "ours"
    than: str | None = None
    than_measure: str | None = None
    least: float | None = None
    most: float | None = None

    def text(self) -> str:
        """Return the goal as text."""
        sign, bound = (">=", self.least) if self.least is not None else ("<=", self.most)
        if self.than is None:
            return f"{self.measure} of {self.of} {sign} {bound:g}"
        other = self.than if self.than_measure is None else f"{self.than_measure} of {self.than}"
        return f"{self.measure} of {self.of} {sign} {bound:g} x {other}"


BEST = "the best peer"
"""The value of ``than`` for the peer with the greatest median."""


@dataclass(frozen=True)
class Verdict:
    """The result of a goal: the measured value or ratio, None if it was not measured."""

    goal: Goal
    value: float | None

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None if it was not measured."""
        if self.value is None:
            return None
        if self.goal.least is not None:
            return self.value >= self.goal.least
        return self.goal.most is not None and self.value <= self.goal.most


@dataclass
class Curve:
    """One line of a plot."""

    plot: str
    label: str
    x: list[float]
    y: list[float]


@dataclass
class Outcome:
    """The results of one row of the table."""

    name: str
    title: str
    goals: Sequence[Goal]
    series: dict[tuple[str, str], Series] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, contestant: str, measure: str, value: float) -> None:
        """Add a value."""
        self.series.setdefault((contestant, measure), Series(contestant, measure)).values.append(value)

    def note(self, text: str) -> None:
        """Add a note unless it exists."""
        if text not in self.notes:
            self.notes.append(text)

    def verdicts(self, peers: Sequence[str]) -> list[Verdict]:
        """Return the verdict on each goal."""
        return [Verdict(goal, self._value(goal, peers)) for goal in self.goals]

    def _value(self, goal: Goal, peers: Sequence[str]) -> float | None:
        own = self.series.get((goal.of, goal.measure))
        if own is None:
            return None
        if goal.than is None:
            return own.median
        measure = goal.than_measure or goal.measure
        if goal.than == BEST:
            others = [self.series[peer, measure] for peer in peers if (peer, measure) in self.series]
        else:
            others = [self.series[goal.than, measure]] if (goal.than, measure) in self.series else []
        greatest = max((other.median for other in others), default=0.0)
        return own.median / greatest if greatest else None

    def as_dict(self, peers: Sequence[str]) -> dict[str, Any]:
        """Return the JSON representation."""
        return {
            "name": self.name,
            "title": self.title,
            "seconds": round(self.seconds, 1),
            "goals": [
                {"goal": verdict.goal.text(), "value": verdict.value, "met": verdict.met}
                for verdict in self.verdicts(peers)
            ],
            "series": [
                {"contestant": s.contestant, "measure": s.measure, "median": s.median, "values": s.values}
                for s in self.series.values()
            ],
            "notes": self.notes,
            "curves": [vars(curve) for curve in self.curves],
        }
