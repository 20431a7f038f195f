"""The changes of a schedule's row when its declaration in code changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import pytest

from pg_scheduler.jobs.model import JobFunction, JobPriority
from pg_scheduler.schedules.declared import PeriodicJobConfig, SyncPlan, plan_sync, reported_declarations
from pg_scheduler.schedules.row import ScheduleRow, read_trigger
from pg_scheduler.triggers import Trigger, trigger_kind
from pg_scheduler.triggers.cron import Cron
from pg_scheduler.triggers.interval import FixedDelay
from pg_scheduler.triggers.search import INSTANT

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


@trigger_kind("tests.unreadable")
@dataclass(frozen=True)
class Unreadable(Trigger):
    """A trigger of an application, which cannot be read from its row."""

    text: str
    is_readable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.is_readable:
            raise ValueError("made only once")

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime:
        return instant + HOUR


def make(name: str = "sweep") -> JobFunction:
    """A coroutine function of that name."""

    async def func() -> None: ...

    func.__module__, func.__name__, func.__qualname__ = "app", name, name
    return func


def by_key(*configs: PeriodicJobConfig) -> dict[str, PeriodicJobConfig]:
    return {config.dedup_key: config for config in configs}


def write(
    *configs: PeriodicJobConfig,
    rows: tuple[ScheduleRow, ...] = (),
    now: datetime = NOW,
    chain_due_times: dict[str, datetime] | None = None,
) -> SyncPlan:
    return plan_sync(
        by_key(*configs),
        {row.schedule_id: row for row in rows},
        now=now,
        chain_due_times=chain_due_times or {},
    )


def stored(config: PeriodicJobConfig, now: datetime = NOW) -> ScheduleRow:
    """The row of a schedule that was new at ``now``."""
    (row,) = write(config, now=now).write
    return row


def test_new_schedule_is_anchored_at_the_current_time() -> None:
    config = PeriodicJobConfig(make(), HOUR, priority=JobPriority.LOW, max_retries=2, use_advisory_lock=True)
    assert stored(config) == ScheduleRow(
        schedule_id=config.dedup_key,
        owner="code",
        task="app.sweep",
        module="app",
        job_name="periodic_sweep",
        derived_key=True,
        enabled_in_code=True,
        use_advisory_lock=True,
        trigger='{"kind":"every","every":"PT1H"}',
        described="every hour",
        options='{"priority": 8, "max_retries": 2}',
        overlap="allow",
        catch_up="latest",
        anchor=NOW,
        next_fire_at=NOW + HOUR,
        created_at=NOW,
        updated_at=NOW,
        searched_from=NOW,
        names=("app.sweep",),
    )


def test_new_cron_schedule_fires_at_its_first_time() -> None:
    row = stored(PeriodicJobConfig(make(), cron="30 2 * * *", timezone="Asia/Kathmandu"))
    assert row.next_fire_at == datetime(2030, 1, 1, 20, 45, tzinfo=UTC)
    assert read_trigger(row.trigger) == Cron("30 2 * * *", "Asia/Kathmandu")


def test_unchanged_schedule_is_not_written() -> None:
    config = PeriodicJobConfig(make(), HOUR)
    row = replace(stored(config), last_fire_at=NOW + HOUR, next_fire_at=NOW + 2 * HOUR)
    assert write(config, rows=(row,), now=NOW + 90 * MINUTE) == SyncPlan()


def test_due_row_stays_due_when_its_schedule_is_unchanged() -> None:
    """A restart does not skip the fire time that was missed meanwhile."""
    config = PeriodicJobConfig(make(), HOUR)
    assert write(config, rows=(stored(config),), now=NOW + 5 * HOUR) == SyncPlan()


def test_changed_name_or_priority_is_written_and_keeps_the_fire_time() -> None:
    old = stored(PeriodicJobConfig(make(), HOUR, dedup_key="key"))
    config = PeriodicJobConfig(
        make("renamed"), HOUR, dedup_key="key", job_name="named", priority=JobPriority.HIGH, max_retries=1
    )
    (row,) = write(config, rows=(old,), now=NOW + 5 * HOUR).write
    assert row == replace(
        old,
        task="app.renamed",
        job_name="named",
        options='{"priority": 3, "max_retries": 1}',
        version=2,
        updated_at=NOW + 5 * HOUR,
        names=("app.renamed",),
    )


def test_edited_schedule_with_an_explicit_key_fires_at_its_new_next_time() -> None:
    old = stored(PeriodicJobConfig(make(), HOUR, dedup_key="key"))
    old = replace(old, last_fire_at=NOW + HOUR, next_fire_at=NOW + 2 * HOUR)
    edited = PeriodicJobConfig(make(), 25 * MINUTE, dedup_key="key")
    changed = write(edited, rows=(old,), now=NOW + 70 * MINUTE)
    assert changed.delete == ()
    (row,) = changed.write
    assert (row.anchor, row.last_fire_at) == (NOW, NOW + HOUR)
    assert row.next_fire_at == NOW + 75 * MINUTE, "the grid of the old anchor, after now"


def test_edited_schedule_fires_at_its_next_time_when_the_clock_went_back() -> None:
    """The jobs of fire times that have fired keep these from being enqueued again."""
    old = stored(PeriodicJobConfig(make(), HOUR, dedup_key="key"))
    old = replace(old, last_fire_at=NOW + HOUR, next_fire_at=NOW + 2 * HOUR)
    (row,) = write(PeriodicJobConfig(make(), 30 * MINUTE, dedup_key="key"), rows=(old,), now=NOW).write
    assert row.next_fire_at == NOW + 30 * MINUTE


def test_schedule_changes_from_interval_to_cron() -> None:
    old = stored(PeriodicJobConfig(make(), HOUR, dedup_key="key"))
    (row,) = write(PeriodicJobConfig(make(), cron="15 * * * *", dedup_key="key"), rows=(old,)).write
    assert read_trigger(row.trigger) == Cron("15 * * * *")
    assert row.next_fire_at == NOW + 15 * MINUTE


def test_edited_schedule_with_a_derived_key_moves_its_row_to_the_new_key() -> None:
    old = replace(stored(PeriodicJobConfig(make(), HOUR)), last_fire_at=NOW + HOUR, paused_at=NOW)
    edited = PeriodicJobConfig(make(), 25 * MINUTE)
    changed = write(edited, rows=(old,), now=NOW + 70 * MINUTE)
    assert changed.delete == (old.schedule_id,)
    (row,) = changed.write
    assert row.schedule_id == edited.dedup_key != old.schedule_id
    assert (row.anchor, row.last_fire_at, row.next_fire_at) == (NOW, NOW + HOUR, NOW + 75 * MINUTE)
    assert not row.enabled, "a disabled schedule stays disabled"


def test_row_of_another_function_keeps_its_key() -> None:
    other = stored(PeriodicJobConfig(make("other"), HOUR))
    changed = write(PeriodicJobConfig(make(), 25 * MINUTE), rows=(other,), now=NOW + HOUR)
    assert changed.delete == ()
    assert [row.anchor for row in changed.write] == [NOW + HOUR]


def test_schedule_with_an_explicit_key_takes_over_no_row_with_another_one() -> None:
    old = stored(PeriodicJobConfig(make(), HOUR, dedup_key="old key"))
    changed = write(PeriodicJobConfig(make(), HOUR, dedup_key="key"), rows=(old,), now=NOW + HOUR)
    assert changed.delete == ()
    assert [row.schedule_id for row in changed.write] == ["key"]


def test_only_the_edited_schedule_moves_when_a_function_has_two() -> None:
    kept, edited = PeriodicJobConfig(make(), HOUR), PeriodicJobConfig(make(), 5 * MINUTE)
    rows = (stored(kept), stored(PeriodicJobConfig(make(), 10 * MINUTE)))
    changed = write(kept, edited, rows=rows, now=NOW + MINUTE)
    assert changed.delete == (rows[1].schedule_id,)
    assert [(row.schedule_id, row.anchor) for row in changed.write] == [(edited.dedup_key, NOW)]


def test_two_edited_schedules_of_one_function_get_new_rows() -> None:
    rows = tuple(stored(PeriodicJobConfig(make(), n * HOUR)) for n in (1, 2))
    edited = tuple(PeriodicJobConfig(make(), n * MINUTE) for n in (1, 2))
    changed = write(*edited, rows=rows, now=NOW + MINUTE)
    assert changed.delete == ()
    assert {row.anchor for row in changed.write} == {NOW + MINUTE}


def test_schedule_row_moves_to_one_key_only() -> None:
    old = stored(PeriodicJobConfig(make(), HOUR))
    edited = tuple(PeriodicJobConfig(make(), n * MINUTE) for n in (1, 2))
    changed = write(*edited, rows=(old,), now=NOW + MINUTE)
    assert changed.delete == (old.schedule_id,)
    assert sorted(row.anchor for row in changed.write) == [NOW, NOW + MINUTE]


def test_schedule_row_without_a_function_in_this_process_is_not_changed() -> None:
    assert write(rows=(stored(PeriodicJobConfig(make(), HOUR)),)) == SyncPlan()


def test_enabled_is_set_by_the_latest_change_in_code_or_by_a_call() -> None:
    on, off = (PeriodicJobConfig(make(), HOUR, enabled=enabled) for enabled in (True, False))
    switched_off = replace(stored(on), paused_at=NOW)
    switched_on = replace(stored(off), paused_at=None)
    assert write(on, rows=(switched_off,)) == SyncPlan(), "the call came after the code"
    assert write(off, rows=(switched_on,)) == SyncPlan()
    (row,) = write(off, rows=(stored(on),)).write
    assert (row.enabled, row.enabled_in_code) == (False, False), "the code came last"
    (row,) = write(on, rows=(replace(stored(off), paused_at=NOW),)).write
    assert (row.enabled, row.enabled_in_code) == (True, True)
    (row,) = write(off, rows=(switched_off,)).write
    assert (row.enabled, row.enabled_in_code) == (False, False), "both agree"


def test_pending_job_of_a_0_2_chain_is_the_first_fire_time() -> None:
    config = PeriodicJobConfig(make(), HOUR)
    due = NOW + 20 * MINUTE
    (row,) = write(config, chain_due_times={config.dedup_key: due}).write
    assert (row.anchor, row.last_fire_at, row.next_fire_at) == (due, due, due + HOUR)


def test_overdue_job_of_a_0_2_chain_keeps_the_interval() -> None:
    config = PeriodicJobConfig(make(), HOUR)
    due = NOW - 150 * MINUTE
    (row,) = write(config, chain_due_times={config.dedup_key: due}).write
    assert (row.anchor, row.last_fire_at, row.next_fire_at) == (due, due, NOW + 30 * MINUTE)


def test_0_2_chain_is_ignored_when_the_schedule_has_a_row() -> None:
    config = PeriodicJobConfig(make(), HOUR)
    due_times = {config.dedup_key: NOW + 20 * MINUTE}
    assert write(config, rows=(stored(config),), chain_due_times=due_times) == SyncPlan()


def test_new_schedule_with_a_start_is_anchored_there_and_fires_then() -> None:
    start = NOW + 90 * MINUTE
    row = stored(PeriodicJobConfig(make(), HOUR, start=start))
    assert (row.anchor, row.next_fire_at) == (start, start)


def test_edited_start_moves_the_next_fire_time() -> None:
    old = stored(PeriodicJobConfig(make(), HOUR, dedup_key="k"))
    start = NOW + 90 * MINUTE
    (row,) = write(PeriodicJobConfig(make(), HOUR, dedup_key="k", start=start), rows=(old,)).write
    assert (row.anchor, row.next_fire_at, row.start_at) == (start, start, start)
    (later,) = write(
        PeriodicJobConfig(make(), 2 * HOUR, dedup_key="k", start=start), rows=(row,), now=start + HOUR
    ).write
    assert later.next_fire_at == start + 2 * HOUR


def test_schedule_without_a_fire_time_before_its_end_is_finished() -> None:
    config = PeriodicJobConfig(make(), HOUR, start=NOW - HOUR / 2, end=NOW - MINUTE)
    assert stored(config).finished_at is None  # its first fire time is due, and is missed
    (row,) = write(PeriodicJobConfig(make(), 2 * HOUR, end=NOW + HOUR), now=NOW).write
    assert (row.next_fire_at, row.finished_at) == (None, NOW)


def test_declaration_that_ends_on_the_last_day_of_the_calendar_has_no_end_and_no_edits() -> None:
    for_ever = datetime(9999, 12, 31, tzinfo=UTC)
    config = PeriodicJobConfig(make(), HOUR, dedup_key="k", end=for_ever)
    row = stored(config)
    assert (config.end, row.end_at) == (None, None)
    assert not write(config, rows=(row,), now=NOW + MINUTE).write


def test_declared_fixed_delay_counts_from_its_start() -> None:
    row = stored(PeriodicJobConfig(make(), trigger=FixedDelay(HOUR), dedup_key="k", start=NOW + HOUR))
    assert row.next_fire_at == NOW + 2 * HOUR
    moved = PeriodicJobConfig(make(), trigger=FixedDelay(HOUR), dedup_key="k", start=NOW + 2 * HOUR)
    (row,) = write(moved, rows=(row,)).write
    assert row.next_fire_at == NOW + 3 * HOUR


def test_edited_fixed_delay_counts_from_the_end_of_the_job_that_runs() -> None:
    old = stored(PeriodicJobConfig(make(), trigger=FixedDelay(HOUR), dedup_key="k"))
    old = replace(old, last_fire_at=NOW + HOUR, next_fire_at=None)
    edited = PeriodicJobConfig(make(), trigger=FixedDelay(MINUTE), dedup_key="k", end=NOW + 9 * HOUR)
    (row,) = write(edited, rows=(old,), now=NOW + 2 * HOUR).write
    assert read_trigger(row.trigger) == FixedDelay(MINUTE)
    assert (row.next_fire_at, row.resume_from, row.finished_at) == (None, None, None)


def test_fixed_delay_whose_key_changes_while_its_job_runs_does_not_wait_for_that_job() -> None:
    """The job names the schedule by its old id, so its end does not reach the new row."""
    func = make()
    old = stored(PeriodicJobConfig(func, trigger=FixedDelay(HOUR)))
    old = replace(old, last_fire_at=NOW, next_fire_at=None)
    edited = PeriodicJobConfig(func, trigger=FixedDelay(MINUTE))
    (row,) = write(edited, rows=(old,), now=NOW + 2 * HOUR).write
    assert row.schedule_id != old.schedule_id
    assert row.next_fire_at == NOW + 2 * HOUR + MINUTE


def test_schedule_without_a_fire_time_gets_one_when_it_becomes_a_fixed_delay() -> None:
    """A row that was changed by hand: no job will end."""
    old = replace(stored(PeriodicJobConfig(make(), interval=HOUR, dedup_key="k")), next_fire_at=None)
    (row,) = write(PeriodicJobConfig(make(), trigger=FixedDelay(MINUTE), dedup_key="k"), rows=(old,)).write
    assert row.next_fire_at is not None


def test_declared_trigger_that_cannot_be_read_from_its_row_is_left_to_the_planner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The planner pauses such a schedule. An error here would stop the whole Scheduler."""
    configs = [
        PeriodicJobConfig(make(), trigger=Unreadable(text), dedup_key="k", start=NOW - HOUR)
        for text in ("one", "two")
    ]
    monkeypatch.setattr(Unreadable, "is_readable", False)
    row = stored(configs[0])
    assert (row.next_fire_at, row.resume_from) == (NOW, NOW - HOUR - INSTANT)
    (edited,) = write(configs[1], rows=(row,)).write
    assert (edited.next_fire_at, edited.resume_from) == (NOW, NOW)


def test_reports_of_later_releases_are_read_and_those_that_no_release_writes_are_not() -> None:
    declaration = PeriodicJobConfig(make(), HOUR).declaration
    report = declaration.to_json()
    assert reported_declarations({"key": report}) == {"key": declaration}
    assert reported_declarations({"key": report | {"of a later release": 1}}) == {"key": declaration}
    hostile: list[object] = [
        1,
        None,
        [],
        {},
        report | {"names": 5},
        report | {"names": [[]]},
        report | {"task": None},
    ]
    assert reported_declarations({str(number): value for number, value in enumerate(hostile)}) == {}
