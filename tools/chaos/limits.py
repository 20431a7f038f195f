"""The checks of limits, and the copy of the log of starts that one of them reads.

The library deletes the starts that a limit counts no more, so a trigger copies those of the rate limit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tools.chaos.evidence import Admission, Evidence, attempt_of
from tools.chaos.jobs import KEYED, LIMITED, MAX_RUNNING, MAX_STARTS, PER, RATED
from tools.chaos.nemesis import SERVER_CLOCKS

COPY_ADMISSIONS: Final = f"""
    CREATE TABLE chaos_admissions (job_id text, attempt integer, at timestamptz);
    CREATE FUNCTION chaos_admit() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
    BEGIN
        INSERT INTO chaos_admissions VALUES (NEW.job_id, NEW.attempt, NEW.at);
        RETURN NULL;
    END $$;
    CREATE TRIGGER chaos_admit AFTER INSERT ON scheduler_starts
        FOR EACH ROW WHEN (NEW.key = 'limit:{RATED}:') EXECUTE FUNCTION chaos_admit();
"""  # noqa: S608 - a constant
ADMISSIONS: Final = "SELECT job_id, attempt, extract(epoch FROM at)::float8 - $1 FROM chaos_admissions"

ROUNDING_S: Final = 1e-5
"""Seconds of rounding error when an instant becomes a float."""


def limits_exceeded(evidence: Evidence) -> Iterator[str]:
    """Yield jobs that ran or started although their limit had no room."""
    yield from _too_many_running(evidence)
    yield from _not_admitted(evidence)
    yield from _too_many_starts(evidence)


def _too_many_running(evidence: Evidence) -> Iterator[str]:
    """Yield the instants at which more functions ran than a limit admits.

    Only the attempts count that their rows name: others lost their lease, and may run on.
    """
    changes: dict[int | None, list[tuple[float, int, str]]] = defaultdict(list)
    for row in evidence.rows.values():
        if row.job_name not in (LIMITED, KEYED):
            continue
        last = attempt_of(evidence, row)
        if last is not None and last.ended is not None:
            request = evidence.requests.get(row.job_id)
            of_key = changes[None if row.job_name == LIMITED or request is None else request.key]
            of_key += [(last.started, 1, row.job_id), (last.ended, -1, row.job_id)]
    for key, of_key in changes.items():
        running, most = 0, MAX_RUNNING if key is None else 1
        for _, change, job_id in sorted(of_key):
            running += change
            if change > 0 and running > most:
                yield f"{job_id} ran with {running - 1} others"


def _not_admitted(evidence: Evidence) -> Iterator[str]:
    """Yield attempts of the task with the rate limit that are not in its log."""
    admitted = {(each.job_id, each.attempt) for each in evidence.admissions}
    for row in evidence.rows.values():
        for one in evidence.ledgers.attempts.get(row.job_id, ()) if row.job_name == RATED else ():
            if (one.job_id, one.attempt) not in admitted:
                yield f"{one.job_id} started attempt {one.attempt}, which its limit did not admit"


def _too_many_starts(evidence: Evidence) -> Iterator[str]:
    """Yield starts that followed too many others within the time span of the limit.

    The instants are those of the server's clock, and while that was stepped they are not judged.
    """
    per = PER.total_seconds()
    stepped = [
        (fault.began + step - per, fault.ended + step + per)
        for fault in evidence.faults
        if fault.kind in SERVER_CLOCKS
        for step in (0.0, fault.step)
    ]
    starts: list[Admission] = sorted(evidence.admissions, key=lambda each: each.at)
    for first, last in zip(starts, starts[MAX_STARTS:], strict=False):
        span = last.at - first.at
        if span < per - ROUNDING_S and not any(
            began <= last.at and first.at <= ended for began, ended in stepped
        ):
            yield f"{last.job_id} started as number {MAX_STARTS + 1} within {span:.3f} s"
