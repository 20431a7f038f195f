"""What counts as late and overdue."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from typing import NamedTuple

from pg_scheduler.facts.lateness import (
    LATE_S,
    OVERDUE_S,
    count_held,
    describe_nothing_late,
    held_names,
    is_late,
    is_overdue,
    oldest_due,
)
from pg_scheduler.inspect import Thresholds
from pg_scheduler.inspect.store.inspections import BacklogRow

NOW = datetime(2030, 1, 2, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class PausedTask(NamedTuple):
    """The pause of a task."""

    name: str
    stopped_names: Collection[str]


def test_pause_holds_the_jobs_of_every_name_of_a_task() -> None:
    tasks = {"old": "mail", "older": "mail"}
    for paused in ("mail", "old"):
        pauses = [PausedTask(paused, [paused])]
        assert held_names(["mail", "old", "older", "report"], pauses, tasks) == {"mail", "old", "older"}


def test_pause_holds_the_jobs_of_its_exact_names_and_of_no_task_that_merely_has_such_a_name() -> None:
    """Workers of an earlier release report the task under its former name "old"."""
    pauses = [PausedTask("mail", ["mail", "old", "send"])]
    tasks = {"older": "old", "send": "letters"}
    assert held_names(["old", "older", "send", "letters"], pauses, tasks) == {"old", "older", "send"}


def test_held_jobs_are_due_and_not_late() -> None:
    backlog = [
        BacklogRow("held", 20, 0, NOW - 9 * MINUTE),
        BacklogRow("mail", 3, 1, NOW - MINUTE),
        BacklogRow("idle", 0, 1, None),
    ]
    assert (oldest_due(backlog, {"held"}), count_held(backlog, {"held"})) == (NOW - MINUTE, 20)
    assert oldest_due(backlog, {"held", "mail"}) is None
    assert describe_nothing_late(20) == "nothing late, 20 due jobs of paused tasks"
    assert describe_nothing_late(0) == "nothing late"


def test_job_is_late_and_schedule_is_overdue_after_a_minute() -> None:
    assert is_late(NOW - MINUTE, NOW)
    assert not is_late(NOW - MINUTE / 2, NOW)
    assert not is_late(None, NOW)
    assert is_overdue(NOW - 2 * MINUTE, NOW)
    assert not is_overdue(NOW - MINUTE / 2, NOW)
    assert not is_overdue(None, NOW)


def test_doctor_and_alerts_have_the_thresholds_of_the_definition() -> None:
    assert (Thresholds().late_s, Thresholds().overdue_s) == (LATE_S, OVERDUE_S)
    rules = (files("pg_scheduler") / "ops" / "alerts" / "pg_scheduler.rules.yaml").read_text(encoding="utf-8")
    for metric, seconds in (("oldest_due", LATE_S), ("schedule_overdue", OVERDUE_S)):
        assert re.findall(rf"cluster_{metric}_seconds\) > (\d+)\n", rules) == [f"{seconds:.0f}"]
