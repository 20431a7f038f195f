"""Render results as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.results import Outcome, Verdict


def number(value: float) -> str:
    """Format with three significant digits and separators of thousands."""
    if value != value:  # noqa: PLR0124 - NaN
        return "-"
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 or size == 0 else f"{value:.3f}"


def render(outcome: Outcome, peers: Sequence[str]) -> str:
    """Render a row: the medians with their spread and ratio, the goals, and the notes."""
    return "\n".join(_lines(outcome, peers))


def _lines(outcome: Outcome, peers: Sequence[str]) -> Iterator[str]:
    yield f"{outcome.name}: {outcome.title}  ({outcome.seconds:.0f} s)"
    for measure in dict.fromkeys(measure for _, measure in outcome.series):
        ours = outcome.series.get(("ours", measure))
        for (contestant, this), series in outcome.series.items():
            if this != measure:
                continue
            low, high = series.spread
            spread = f"{number(low)} .. {number(high)}" if len(series.values) > 1 else ""
            ratio = ""
            if ours is not None and series is not ours and series.median:
                ratio = f"ours = {number(ours.median / series.median)} x"
            median = number(series.median)
            yield f"    {measure:<26} {contestant:<22} {median:>10}  {spread:<22} {ratio}".rstrip()
    for verdict in outcome.verdicts(peers):
        yield f"    {_label(verdict):<8} {verdict.goal.text()}: {_value(verdict)}"
    for note in outcome.notes:
        yield f"    note: {note}"


def _label(verdict: Verdict) -> str:
    return {True: "met", False: "NOT MET", None: "unknown"}[verdict.met]


def _value(verdict: Verdict) -> str:
    if verdict.value is None:
        return "not measured"
    return number(verdict.value) + (" x" if verdict.goal.than is not None else "")
