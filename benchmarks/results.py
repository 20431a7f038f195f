"""What was measured and what was wished for."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Curve", "Goal", "Outcome", "Series", "Verdict", "percentile"]


def percentile(samples: Sequence[float], share: float) -> float:
    """The value below which that share of the samples lies."""
    ordered = sorted(samples)
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass
class Series:
    """The values of one measure of one contestant, one for each round."""

    who: str
    measure: str
    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the greatest."""
        return min(self.values), max(self.values)


@dataclass(frozen=True)
class Goal:
    """A bound for a measure, or for its ratio to another's.

    Attributes:
        measure: The measure.
        of: Whose.
        than: Who it is compared with; None for a bound on the value itself.
        than_measure: Which measure of that one, if it is another.
        least: The bound from below.
        most: The bound from above.
        best: Compare with the best of all peers that were measured, rather than with one.
    """

    measure: str
    of: str = "ours"
    than: str | None = None
    than_measure: str | None = None
    least: float | None = None
    most: float | None = None

    def text(self) -> str:
        """As a reader sees it."""
        sign, bound = (">=", self.least) if self.least is not None else ("<=", self.most)
        if self.than is None:
            return f"{self.measure} of {self.of} {sign} {bound:g}"
        other = self.than if self.than_measure is None else f"{self.than_measure} of {self.than}"
        return f"{self.measure} of {self.of} {sign} {bound:g} x {other}"


BEST = "the best peer"
"""As ``than`` of a goal: whichever peer has the greatest median."""


@dataclass(frozen=True)
class Verdict:
    """What became of a goal: the value or ratio reached, None if it was not measured."""

    goal: Goal
    value: float | None

    @property
    def met(self) -> bool | None:
        """None if it was not measured."""
        if self.value is None:
            return None
        if self.goal.least is not None:
            return self.value >= self.goal.least
        return self.goal.most is not None and self.value <= self.goal.most


@dataclass
class Curve:
    """Points for a plot."""

    plot: str
    label: str
    x: list[float]
    y: list[float]


@dataclass
class Outcome:
    """Everything about one row of the table."""

    name: str
    title: str
    goals: Sequence[Goal]
    series: dict[tuple[str, str], Series] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, who: str, measure: str, value: float) -> None:
        """One more value."""
        self.series.setdefault((who, measure), Series(who, measure)).values.append(value)

    def note(self, text: str) -> None:
        """Something to be told once."""
        if text not in self.notes:
            self.notes.append(text)

    def verdicts(self, peers: Sequence[str]) -> list[Verdict]:
        """What became of each goal."""
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
        """For the JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "seconds": round(self.seconds, 1),
            "goals": [
                {"goal": verdict.goal.text(), "value": verdict.value, "met": verdict.met}
                for verdict in self.verdicts(peers)
            ],
            "series": [
                {"who": s.who, "measure": s.measure, "median": s.median, "values": s.values}
                for s in self.series.values()
            ],
            "notes": self.notes,
            "curves": [vars(curve) for curve in self.curves],
        }
