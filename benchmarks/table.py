"""Results as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.results import Outcome, Verdict

__all__ = ["number", "render"]


def number(value: float) -> str:
    """Three digits that count, and thousands apart."""
    if value != value:  # noqa: PLR0124 - not a number
        return "-"
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 or size == 0 else f"{value:.3f}"


def render(outcome: Outcome, peers: Sequence[str]) -> str:
    """A row of the table of goals: the medians with their spread, how they compare, and the goals."""
    return "\n".join(_lines(outcome, peers))


def _lines(outcome: Outcome, peers: Sequence[str]) -> Iterator[str]:
    yield f"{outcome.name}: {outcome.title}  ({outcome.seconds:.0f} s)"
    for measure in dict.fromkeys(measure for _, measure in outcome.series):
        ours = outcome.series.get(("ours", measure))
        for (who, this), series in outcome.series.items():
            if this != measure:
                continue
            low, high = series.spread
            spread = f"{number(low)} .. {number(high)}" if len(series.values) > 1 else ""
            ratio = ""
            if ours is not None and series is not ours and series.median:
                ratio = f"ours = {number(ours.median / series.median)} x"
            yield f"    {measure:<26} {who:<22} {number(series.median):>10}  {spread:<22} {ratio}".rstrip()
    for verdict in outcome.verdicts(peers):
        yield f"    {_word(verdict):<8} {verdict.goal.text()}: {_reached(verdict)}"
    for note in outcome.notes:
        yield f"    note: {note}"


def _word(verdict: Verdict) -> str:
    return {True: "met", False: "NOT MET", None: "open"}[verdict.met]


def _reached(verdict: Verdict) -> str:
    if verdict.value is None:
        return "not measured"
    return number(verdict.value) + (" x" if verdict.goal.than is not None else "")
