"""The verdict as text: for a terminal, and as a Markdown table for the documentation."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from tools.chaos.evidence import Verdict

SHOWN = 5


def render(verdict: Verdict) -> str:
    """Return the verdict as lines for a terminal."""
    return "\n".join(_lines(verdict))


def table(verdict: Verdict, title: str) -> str:
    """Return the verdict as a Markdown table."""
    rows = [f"| {title} | |", "|---|---|", *(f"| {name} | {value} |" for name, value in _rows(verdict))]
    return "\n".join(rows) + "\n"


def _lines(verdict: Verdict) -> Iterator[str]:
    for name, value in _rows(verdict):
        yield f"  {name:<56} {value:>24}"
    for guarantee, problems in verdict.problems.items():
        for problem in problems[:SHOWN]:
            yield f"  {guarantee.upper()}: {problem}"
        if len(problems) > SHOWN:
            yield f"  ... and {len(problems) - SHOWN} more"


def _rows(verdict: Verdict) -> Iterator[tuple[str, str]]:
    yield "faults", f"{sum(verdict.faults.values()):,}"
    for kind, count in sorted(verdict.faults.items()):
        yield f"- {kind}", f"{count:,}"
    for name, figure in verdict.figures.items():
        yield name, f"{figure:,}"
    for guarantee, problems in verdict.problems.items():
        yield guarantee, f"{len(problems):,}"
    yield "delay until jobs of a dead worker run again, p50 / p99 / max", _spread(verdict.recoveries)
    yield "lateness from 5 s after the last fault, p50 / p99 / max", _spread(verdict.late)


def _spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return "-"
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return f"{cuts[49]:.3f} / {cuts[98]:.3f} / {max(values):.3f} s"
