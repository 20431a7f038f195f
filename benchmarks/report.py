"""Render a run as Markdown for the documentation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.table import number

VERDICTS = {True: "met", False: "**not met**", None: "not measured"}


def report(results: dict[str, Any]) -> str:
    """Return the machine, the goals, and every measure with its spread."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: dict[str, Any]) -> Iterator[str]:
    machine = results["machine"]
    yield (
        f"Measured on {machine['cores']} cores ({machine['processor']}), {machine['memory_gib']} GiB, "
        f"{machine['system']}, PostgreSQL {machine['postgresql']} on {machine['disk']}, Python "
        f"{machine['python']}, asyncpg {machine['asyncpg']}, uvloop {machine['uvloop']}, at commit "
        f"{machine['commit']}, {results['rounds']} round(s){', quick' if results['quick'] else ''}. "
        f"Load before the start: {machine['load_before']:.2f}."
    )
    yield ""
    settings = ", ".join(f"`{name} = {value}`" for name, value in machine["settings"].items())
    yield f"Server: {settings}."
    for name, reason in results["skipped"].items():
        yield f"\nNot measured: {name} ({reason})."
    yield "\n| Goal | Value | Result |\n|---|---|---|"
    for row in results["rows"]:
        for goal in row["goals"]:
            reached = "" if goal["value"] is None else number(goal["value"])
            yield f"| {row['title']}: {goal['goal']} | {reached} | {VERDICTS[goal['met']]} |"
    for row in results["rows"]:
        yield f"\n## {row['title'][:1].upper()}{row['title'][1:]}\n"
        yield "| Measure | Contestant | Median | Minimum .. maximum |\n|---|---|---|---|"
        for series in sorted(row["series"], key=lambda each: each["measure"]):
            spread = f"{number(min(series['values']))} .. {number(max(series['values']))}"
            yield f"| {series['measure']} | {series['contestant']} | {number(series['median'])} | {spread} |"
        for note in row["notes"]:
            yield f"\n{note}"
