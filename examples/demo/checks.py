"""The verdict: pure arithmetic over the ledger."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from examples.demo import jobs
from examples.demo.ledger import DONE, FAILED, Run

__all__ = ["Check", "Table", "Verdict", "judge"]

PERIODIC: Final = {"interval": jobs.INTERVAL, "cron": jobs.CRON_STEP}
TITLES: Final = {
    "reminder": "one-off jobs at their times",
    "import": "bulk load",
    "order, critical": "orders, critical",
    "order, high": "orders, high",
    "order, normal": "orders, normal",
    "order, low": "orders, low",
    "card": "cards, charged at the 3rd try",
    "broken": "broken, fails for good",
    "video": "videos, some taken over",
    "interval": "interval job, every second",
    "cron": "cron job, every 2nd second",
}


@dataclass(frozen=True, slots=True)
class Table:
    """Something to show; the first column is words, the others are figures."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold."""

    says: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """All that is to be said at the end."""

    tables: list[Table] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether every check does."""
        return all(check.holds for check in self.checks)


ORDERS = {
    "critical": "orders, critical",
    "high": "orders, high",
    "normal": "orders, normal",
    "low": "orders, low, behind the 2,000",
}


def judge(
    expected: Mapping[str, str],
    runs: Sequence[Run],
    nodes: Sequence[str],
    victim: str,
    killed_at: datetime,
) -> Verdict:
    """Count.

    Args:
        expected: Every one-off job that was scheduled, and its kind.
        runs: What the jobs wrote.
        nodes: All nodes.
        victim: The one that was killed.
        killed_at: When.
    """
    tries: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        tries[run.job_id].append(run)
    return Verdict(
        [_where(runs, nodes, victim), _lateness(runs)],
        [
            _nothing_lost(expected, tries),
            _nothing_doubled(tries),
            _broken_failed(expected, tries),
            _taken_over(tries, victim, killed_at),
            *(_windows(kind, step, runs) for kind, step in PERIODIC.items()),
        ],
    )


def _where(runs: Sequence[Run], nodes: Sequence[str], victim: str) -> Table:
    ended: Counter[tuple[str, str]] = Counter()
    for run in runs:
        if run.outcome == (FAILED if run.kind == "broken" else DONE):
            # The broken job ends once, by its last try.
            ended[run.kind, run.node] += run.kind != "broken" or run.attempt == jobs.TRIES_OF_BROKEN

    def row(title: str, kinds: Iterable[str]) -> list[str]:
        counts = [sum(ended[kind, node] for kind in kinds) for node in nodes]
        return [title, *(f"{count:,}" for count in [*counts, sum(counts)])]

    rows = [*(row(title, [kind]) for kind, title in TITLES.items()), row("all", TITLES)]
    names = [f"{node} (killed)" if node == victim else node for node in nodes]
    return Table("What ended where", ["jobs", *names, "in all"], rows)


def _lateness(runs: Sequence[Run]) -> Table:
    def row(title: str, late: list[float]) -> list[str]:
        if not late:
            return [title, "0", "-", "-", "-"]
        return [title, str(len(late)), *(f"{value * 1000:,.1f} ms" for value in _percentiles(late))]

    first = [run for run in runs if run.attempt == 1]
    rows = [row("at their times", [run.late for run in first if run.kind == "reminder"])]
    rows += [row("interval and cron", [run.late for run in first if run.kind in PERIODIC])]
    rows += [
        row(ORDERS[level], [run.late for run in first if run.kind == f"order, {level}"]) for level in ORDERS
    ]
    return Table("How late they started", ["jobs", "count", "p50", "p99", "max"], rows)


def _percentiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[98], max(values)


def _nothing_lost(expected: Mapping[str, str], tries: Mapping[str, Sequence[Run]]) -> Check:
    wanted = [job_id for job_id, kind in expected.items() if kind != "broken"]
    lost = [job_id for job_id in wanted if _times_done(tries.get(job_id, ())) == 0]
    return Check(
        f"nothing lost: {len(wanted) - len(lost):,} of {len(wanted):,} one-off jobs completed", not lost
    )


def _nothing_doubled(tries: Mapping[str, Sequence[Run]]) -> Check:
    doubled = [job_id for job_id, runs in tries.items() if _times_done(runs) > 1]
    return Check(f"nothing doubled: {len(doubled)} of {len(tries):,} jobs completed twice", not doubled)


def _broken_failed(expected: Mapping[str, str], tries: Mapping[str, Sequence[Run]]) -> Check:
    broken = [tries.get(job_id, ()) for job_id, kind in expected.items() if kind == "broken"]
    counts = [sum(run.outcome == FAILED for run in runs) for runs in broken]
    right = counts == [jobs.TRIES_OF_BROKEN] * len(broken) and not any(map(_times_done, broken))
    return Check(f"the broken job was tried {counts[0] if counts else 0} times, then failed for good", right)


def _taken_over(tries: Mapping[str, Sequence[Run]], victim: str, killed_at: datetime) -> Check:
    cut_off = [
        runs for runs in tries.values() if any(run.node == victim and run.outcome is None for run in runs)
    ]
    again = [
        min(run.started_at for run in runs if run.started_at > killed_at)
        for runs in cut_off
        if any(run.started_at > killed_at for run in runs)
    ]
    right = bool(cut_off) and len(again) == len(cut_off)
    when = f", {(min(again) - killed_at).total_seconds():.1f} s after it died" if again else ""
    return Check(
        f"{len(again)} of the {len(cut_off)} jobs that {victim} left behind were started again{when}", right
    )


def _windows(kind: str, step: timedelta, runs: Sequence[Run]) -> Check:
    done = Counter(run.due for run in runs if run.kind == kind and run.outcome == DONE)
    if not done:
        return Check(f"{kind} job: no window ran", False)
    due = (max(done) - min(done)) // step + 1
    once = sum(count == 1 for count in done.values())
    each_once = once == due == len(done)
    return Check(f"{kind} job: {once} of {due} windows ran once, on one of the nodes", each_once)


def _times_done(runs: Sequence[Run]) -> int:
    return sum(run.outcome == DONE for run in runs)
