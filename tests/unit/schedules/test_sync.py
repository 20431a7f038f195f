"""What becomes of a schedule's row when the code says otherwise."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from pg_scheduler.jobs.model import JobFunction, JobPriority
from pg_scheduler.schedules.model import PeriodicJobConfig
from pg_scheduler.schedules.row import PeriodicRow
from pg_scheduler.schedules.sync import SyncPlan, merge
from pg_scheduler.triggers.cron import CronTrigger
from pg_scheduler.triggers.interval import IntervalTrigger

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def make(name: str = "sweep") -> JobFunction:
    """A coroutine function of that name."""

    async def func() -> None: ...

    func.__module__, func.__name__, func.__qualname__ = "app", name, name
    return func


def by_key(*configs: PeriodicJobConfig) -> dict[str, PeriodicJobConfig]:
    return {config.dedup_key: config for config in configs}


def write(
    *configs: PeriodicJobConfig,
    rows: tuple[PeriodicRow, ...] = (),
    now: datetime = NOW,
    chained: dict[str, datetime] | None = None,
) -> SyncPlan:
    return merge(by_key(*configs), {row.dedup_key: row for row in rows}, now=now, chained=chained or {})


def stored(config: PeriodicJobConfig, now: datetime = NOW) -> PeriodicRow:
    """The row of a schedule that was new at ``now``."""
    (row,) = write(config, now=now).write
    return row


def test_a_new_schedule_is_anchored_now() -> None:
    config = PeriodicJobConfig(make(), HOUR, priority=JobPriority.LOW, max_retries=2, use_advisory_lock=True)
    assert stored(config) == PeriodicRow(
        dedup_key=config.dedup_key,
        derived_key=True,
        job_name="periodic_sweep",
        function="app.sweep",
        every=HOUR,
        cron=None,
        timezone=None,
        use_advisory_lock=True,
        priority=8,
        max_retries=2,
        enabled=True,
        enabled_in_code=True,
        anchor=NOW,
        last_fire_at=None,
        next_fire_at=NOW + HOUR,
    )
    assert stored(config).trigger() == IntervalTrigger(HOUR)


def test_a_new_cron_schedule_fires_at_its_first_time() -> None:
    row = stored(PeriodicJobConfig(make(), cron="30 2 * * *", timezone="Asia/Kathmandu"))
    assert (row.every, row.cron, row.timezone) == (None, "30 2 * * *", "Asia/Kathmandu")
    assert row.next_fire_at == datetime(2030, 1, 1, 20, 45, tzinfo=UTC)
    trigger = row.trigger()
    assert isinstance(trigger, CronTrigger)


def test_an_unchanged_schedule_is_left_alone() -> None:
    config = PeriodicJobConfig(make(), HOUR)
    row = replace(stored(config), last_fire_at=NOW + HOUR, next_fire_at=NOW + 2 * HOUR)
    assert write(config, rows=(row,), now=NOW + 90 * MINUTE) == SyncPlan((), ())


def test_a_row_that_is_due_stays_due() -> None:
    """A restart does not skip the window that was missed meanwhile."""
    config = PeriodicJobConfig(make(), HOUR)
    assert write(config, rows=(stored(config),), now=NOW + 5 * HOUR) == SyncPlan((), ())


def test_what_is_not_the_schedule_is_written_and_moves_nothing() -> None:
    old = stored(PeriodicJobConfig(make(), HOUR, dedup_key="key"))
    config = PeriodicJobConfig(
        make("renamed"), HOUR, dedup_key="key", job_name="named", priority=JobPriority.HIGH, max_retries=1
    )
    (row,) = write(config, rows=(old,), now=NOW + 5 * HOUR).write
    assert row == replace(old, function="app.renamed", job_name="named", priority=3, max_retries=1)


def test_an_edited_schedule_with_a_key_of_its_own_moves_on() -> None:
    old = stored(PeriodicJobConfig(make(), HOUR, dedup_key="key"))
    old = replace(old, last_fire_at=NOW + HOUR, next_fire_at=NOW + 2 * HOUR)
    edited = PeriodicJobConfig(make(), 25 * MINUTE, dedup_key="key")
    changed = write(edited, rows=(old,), now=NOW + 70 * MINUTE)
    assert changed.delete == ()
    (row,) = changed.write
    assert (row.anchor, row.last_fire_at) == (NOW, NOW + HOUR)
    assert row.next_fire_at == NOW + 75 * MINUTE, "the grid of the old anchor, after now"


def test_no_window_fires_twice_when_the_last_one_lies_ahead_of_the_clock() -> None:
    old = stored(PeriodicJobConfig(make(), HOUR, dedup_key="key"))
    old = replace(old, last_fire_at=NOW + HOUR, next_fire_at=NOW + 2 * HOUR)
    (row,) = write(PeriodicJobConfig(make(), 30 * MINUTE, dedup_key="key"), rows=(old,), now=NOW).write
    assert row.next_fire_at == NOW + 90 * MINUTE


def test_from_interval_to_cron() -> None:
    old = stored(PeriodicJobConfig(make(), HOUR, dedup_key="key"))
    (row,) = write(PeriodicJobConfig(make(), cron="15 * * * *", dedup_key="key"), rows=(old,)).write
    assert row.schedule == (None, "15 * * * *", "UTC")
    assert row.next_fire_at == NOW + 15 * MINUTE


def test_an_edited_schedule_with_a_derived_key_moves_its_row() -> None:
    old = replace(stored(PeriodicJobConfig(make(), HOUR)), last_fire_at=NOW + HOUR, enabled=False)
    edited = PeriodicJobConfig(make(), 25 * MINUTE)
    changed = write(edited, rows=(old,), now=NOW + 70 * MINUTE)
    assert changed.delete == (old.dedup_key,)
    (row,) = changed.write
    assert row.dedup_key == edited.dedup_key != old.dedup_key
    assert (row.anchor, row.last_fire_at, row.next_fire_at) == (NOW, NOW + HOUR, NOW + 75 * MINUTE)
    assert not row.enabled, "what was switched off stays off"


def test_a_row_of_another_function_or_with_a_key_of_its_own_does_not_move() -> None:
    other = stored(PeriodicJobConfig(make("other"), HOUR))
    given = stored(PeriodicJobConfig(make(), HOUR, dedup_key="key"))
    changed = write(PeriodicJobConfig(make(), 25 * MINUTE), rows=(other, given), now=NOW + HOUR)
    assert changed.delete == ()
    assert [row.anchor for row in changed.write] == [NOW + HOUR]


def test_a_given_key_takes_over_no_other_row() -> None:
    old = stored(PeriodicJobConfig(make(), HOUR))
    changed = write(PeriodicJobConfig(make(), HOUR, dedup_key="key"), rows=(old,), now=NOW + HOUR)
    assert changed.delete == ()
    assert [row.dedup_key for row in changed.write] == ["key"]


def test_of_two_schedules_of_one_function_the_edited_one_moves() -> None:
    kept, edited = PeriodicJobConfig(make(), HOUR), PeriodicJobConfig(make(), 5 * MINUTE)
    rows = (stored(kept), stored(PeriodicJobConfig(make(), 10 * MINUTE)))
    changed = write(kept, edited, rows=rows, now=NOW + MINUTE)
    assert changed.delete == (rows[1].dedup_key,)
    assert [(row.dedup_key, row.anchor) for row in changed.write] == [(edited.dedup_key, NOW)]


def test_two_edits_of_one_function_cannot_be_told_apart_and_begin_anew() -> None:
    rows = tuple(stored(PeriodicJobConfig(make(), n * HOUR)) for n in (1, 2))
    edited = tuple(PeriodicJobConfig(make(), n * MINUTE) for n in (1, 2))
    changed = write(*edited, rows=rows, now=NOW + MINUTE)
    assert changed.delete == ()
    assert {row.anchor for row in changed.write} == {NOW + MINUTE}


def test_one_row_moves_to_one_key_only() -> None:
    old = stored(PeriodicJobConfig(make(), HOUR))
    edited = tuple(PeriodicJobConfig(make(), n * MINUTE) for n in (1, 2))
    changed = write(*edited, rows=(old,), now=NOW + MINUTE)
    assert changed.delete == (old.dedup_key,)
    assert sorted(row.anchor for row in changed.write) == [NOW, NOW + MINUTE]


def test_rows_that_no_code_here_knows_are_left_to_others() -> None:
    assert write(rows=(stored(PeriodicJobConfig(make(), HOUR)),)) == SyncPlan((), ())


def test_enabled_is_what_was_said_last() -> None:
    on, off = (PeriodicJobConfig(make(), HOUR, enabled=enabled) for enabled in (True, False))
    switched_off = replace(stored(on), enabled=False)
    switched_on = replace(stored(off), enabled=True)
    assert write(on, rows=(switched_off,)) == SyncPlan((), ()), "the call came after the code"
    assert write(off, rows=(switched_on,)) == SyncPlan((), ())
    (row,) = write(off, rows=(stored(on),)).write
    assert (row.enabled, row.enabled_in_code) == (False, False), "the code came last"
    (row,) = write(on, rows=(replace(stored(off), enabled=False),)).write
    assert (row.enabled, row.enabled_in_code) == (True, True)
    (row,) = write(off, rows=(switched_off,)).write
    assert (row.enabled, row.enabled_in_code) == (False, False), "both said the same"


def test_the_waiting_run_of_an_old_chain_is_the_first_window() -> None:
    config = PeriodicJobConfig(make(), HOUR)
    due = NOW + 20 * MINUTE
    (row,) = write(config, chained={config.dedup_key: due}).write
    assert (row.anchor, row.last_fire_at, row.next_fire_at) == (due, due, due + HOUR)


def test_an_overdue_run_of_an_old_chain_keeps_its_rhythm() -> None:
    config = PeriodicJobConfig(make(), HOUR)
    due = NOW - 150 * MINUTE
    (row,) = write(config, chained={config.dedup_key: due}).write
    assert (row.anchor, row.last_fire_at, row.next_fire_at) == (due, due, NOW + 30 * MINUTE)


def test_a_chain_of_a_schedule_that_has_a_row_is_history() -> None:
    config = PeriodicJobConfig(make(), HOUR)
    chained = {config.dedup_key: NOW + 20 * MINUTE}
    assert write(config, rows=(stored(config),), chained=chained) == SyncPlan((), ())
