"""Late outcomes have turns together, as many as one statement may send."""

from __future__ import annotations

import pytest

from pg_scheduler.base.status import JobStatus
from pg_scheduler.jobs.outcome import RowChange
from pg_scheduler.jobs.result import KeptResult
from pg_scheduler.jobs.rows import EPOCH
from pg_scheduler.worker.late_outcomes import AttemptOutcome, LateOutcomes
from tests.support import inside
from tests.support.inside import Claim, Outcome

LENGTH = 3000


def completion(job_id: str) -> AttemptOutcome:
    claim = Claim(job_id, "work", "work", 1, EPOCH, "{}", 0, 0, 0, None, None)
    result = KeptResult(60.0, value="x" * LENGTH)
    return claim, Outcome(RowChange(JobStatus.COMPLETED, kept=result), None)


def test_late_groups_with_large_results_have_turns_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    inside.replace(monkeypatch, batch_characters=3 * LENGTH)
    late = LateOutcomes()
    for number in range(7):
        late.postpone([completion(f"{number}")], last_group=None)
    late.hurry()
    turns = []
    while groups := late.due_groups(500):
        turns.append(len(groups))
        late.remove(groups)
    assert turns == [3, 3, 1]
