"""Whether finished jobs are deleted, and the table stays small."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pg_scheduler.inspect.doctor.check import Check, Found, SharedFacts
from pg_scheduler.inspect.doctor.codes import FindingCode, Severity
from pg_scheduler.inspect.doctor.findings import Finding, UnmadeCheck
from pg_scheduler.inspect.doctor.growth import check_growth
from pg_scheduler.inspect.doctor.thresholds import Thresholds
from pg_scheduler.inspect.paths import UNSUCCESSFUL
from pg_scheduler.inspect.store.doctor import TableRow
from pg_scheduler.inspect.texts import length
from pg_scheduler.jobs.model import Worker

DAY_S: Final = 86_400
FACTOR: Final = 2
"""Multiple of its policy that the oldest job may have."""

STATUSES: Final = ("failed", "cancelled", "expired")


async def _check_retention(facts: SharedFacts, thresholds: Thresholds) -> Found:
    found: list[Finding | UnmadeCheck] = [
        *judge_size(await facts.tables(), thresholds.table_bytes),
        *await check_growth(facts, thresholds),
    ]
    if UNSUCCESSFUL in await facts.missing_indexes():
        reason = f"the age of failed jobs needs the index {UNSUCCESSFUL}; see INDEX-MISSING"
        return [*found, UnmadeCheck(FindingCode.RETENTION, reason)]
    workers = [each for each in await facts.workers() if each.is_alive]
    return [*found, *judge_ages(await facts.store.doctor.oldest(), policies_of(workers))]


def policies_of(workers: Sequence[Worker]) -> dict[str, float]:
    """Return the shortest retention in days by status, of the workers that delete finished jobs."""
    policies: dict[str, float] = {}
    for worker in workers:
        if worker.settings.get("vacuum_enabled") is not True:
            continue
        for status in STATUSES:
            days = _entry(_entry(worker.settings, "vacuum"), status).get("days")
            if isinstance(days, int | float):
                policies[status] = min(policies.get(status, days), days)
    return policies


def judge_ages(oldest: Mapping[str, float], policies: Mapping[str, float]) -> Iterator[Finding]:
    """Yield statuses whose oldest job is twice as old as the policy of the live workers allows."""
    for status, seconds in sorted(oldest.items()):
        days = policies.get(status)
        if days is not None and seconds > max(FACTOR * days, 1) * DAY_S:
            yield Finding(
                FindingCode.RETENTION,
                Severity.WARNING,
                status,
                f"the oldest {status} job ended {length(seconds)} ago; the workers keep such jobs for "
                f"{days:g} days",
                "pg-scheduler vacuum; read the logs of the workers for errors of the vacuum",
            )


def judge_size(tables: Sequence[TableRow], most: int) -> Iterator[Finding]:
    """Yield tables that are large."""
    for table in tables:
        if table.bytes >= most:
            yield Finding(
                FindingCode.RETENTION,
                Severity.WARNING,
                table.name,
                f"the table {table.name} has {table.bytes / 1e9:.1f} GB, without its indexes",
                "vacuum_enabled=True with a shorter retention; VACUUM FULL or pg_repack gives the space back",
            )


def _entry(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    return found if isinstance(found, dict) else {}


CHECKS: Final = (Check((FindingCode.RETENTION,), _check_retention),)
