"""Services leave out a row whose change the application refuses, alone, and change all the others."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

import asyncpg
import pytest

from pg_scheduler import Limit
from pg_scheduler.admission.limits import SurplusPosition
from pg_scheduler.admission.pauses import unrenewable_jobs
from pg_scheduler.database.queries import REFUSABLE
from pg_scheduler.database.refused_rows import RefusedRows
from pg_scheduler.jobs.limits import LimitNumbers
from pg_scheduler.schedules.statements import Plannable
from tests.support import inside
from tests.support.guards import STATES, guard
from tests.support.inside import ExtendedJob, Extras, Store, TaskOptions, load_queries
from tests.support.parts import Parts, sent_statements
from tests.support.store import new_schedule, worker
from tests.support.worker import LEASE, PATIENCE, claim, new_job, now

NAME: Final = "test.job"
KEY: Final = "limit:L:"
TENANTS: Final = ["share:s:a", "share:s:b"]
GOOD: Final = [f"good {number}" for number in range(7)]
IDS: Final = [*GOOD[:3], "bad", *GOOD[3:]]
LIMITS: Final = {KEY: [[LimitNumbers(100, None, None)]]}


async def insert(store: Store, keys: Sequence[str | None]) -> None:
    """Insert the jobs, which are past their misfire grace time, behind these limits or tenants in turns."""
    hour_ago = now() - timedelta(hours=1)
    jobs = [new_job(job_id, NAME, execution_time=hour_ago, misfire_grace_time=60) for job_id in IDS]
    extras = [Extras(blocked_on=keys[place % len(keys)]) for place in range(len(IDS))]
    await store.inserts.insert_extended(list(map(ExtendedJob, jobs, extras)))


class Case(NamedTuple):
    """A statement that changes many rows, of which the application refuses one.

    Attributes:
        run: Runs it.
        blocked_on: The limits or tenants for which the jobs wait at first.
        changed: Reads the rows that it has changed.
        refusal: The condition under which the application refuses a change.
        problem: The begin of the record.
        next_attempt: When it announces the next attempt.
        table: The table of the trigger that refuses it.
        on: The operation that the trigger refuses.
        setup: Changes what was inserted, before the trigger exists.
    """

    run: Callable[[Store, RefusedRows], Awaitable[object]]
    blocked_on: Sequence[str | None]
    changed: str
    problem: str
    refusal: str = "OLD.job_id = 'bad'"
    next_attempt: str = "next attempt in 60 s"
    table: str = "scheduled_jobs"
    on: str = "UPDATE"
    setup: str = ""


async def unblock_limited(store: Store, _: object) -> int:
    return sum(result.jobs for result in await store.limits.unblock(LIMITS, 100))


async def unblock_late(store: Store, _: object) -> int:
    return (await store.limits.unblock_late([KEY], None, 100))[0]


async def unblock_unclaimed(store: Store, _: object) -> None:
    assert await store.limits.unblock_unclaimed([KEY], [NAME], "me", 100) == {NAME}


async def unblock_forgotten(store: Store, _: object) -> int:
    return await store.limits.unblock_forgotten([KEY], [NAME], 100)


async def block_surplus(store: Store, _: object) -> int:
    position = SurplusPosition(5, now() - timedelta(hours=2), "")
    return len(await store.limits.block_surplus(KEY, [NAME], position, 100))


async def feed_shares(store: Store, _: object) -> int:
    return (await store.shares.feed(TENANTS, {"share:s:": [NAME]}, [NAME])).jobs


async def renew_due(store: Store, refused: RefusedRows) -> None:
    assert await store.pauses.renew_due([NAME], now(), 5, ("-infinity", ""), 100, refused=refused) is None


async def renew_blocked(store: Store, refused: RefusedRows) -> None:
    start = ("", 0, "-infinity", "")
    assert await store.pauses.renew_blocked([NAME], now(), start, 100, refused=refused) is None


async def end_pauses(store: Store, _: object) -> int:
    return len(await store.pauses.end_pauses())


async def delete_past_starts(store: Store, _: object) -> None:
    await store.limits.delete_past_starts(100)


async def report_gone(store: Store, _: object) -> int:
    return await store.consequences.report_gone("me", {}, 100)


async def restart_leases(store: Store, _: object) -> None:
    await store.workers.restart_leases(100)


async def correct_due_times(store: Store, _: object) -> int:
    return await store.jobs.correct_due_times(100)


async def correct_waits(store: Store, _: object) -> None:
    await store.jobs.correct_due_times(100)


async def retire_schedules(store: Store, _: object) -> int:
    return len(await store.schedules.retire([], ["shop"]))


async def continue_schedules(store: Store, _: object) -> int:
    plannable = Plannable(declared=[], tasks=[NAME], kinds=[], zone_data=None)
    return len(await store.schedules.continue_stalled(plannable))


async def vacuum_schedules(store: Store, _: object) -> int:
    return await store.schedules.vacuum(now(), 100)


async def vacuum_results(store: Store, _: object) -> int:
    return await store.kept_results.vacuum(100)


async def end_past_deadlines(store: Store, _: object) -> int:
    return len(await store.jobs.end_past_deadlines(100))


async def forget_deadlines(store: Store, _: object) -> int:
    return await store.jobs.forget_deadlines(100)


async def vacuum_deadlines(store: Store, _: object) -> None:
    assert await store.jobs.vacuum_deadlines(None, 100) is None


async def vacuum_steps(store: Store, _: object) -> None:
    assert await store.retention.vacuum_steps("", 100) is None


async def vacuum_streams(store: Store, _: object) -> None:
    assert await store.streams.vacuum("") == (None, False)


UNBLOCKED: Final = "SELECT job_id FROM scheduled_jobs WHERE blocked_on IS NULL"
RENEWED: Final = "SELECT job_id FROM scheduled_jobs WHERE expires_at > now()"
NOT_CHANGED: Final = "schedule 'bad' not retired or continued"
DUE_LATER: Final = (
    "UPDATE scheduled_jobs SET created_at = later.at, execution_time = later.at "
    "FROM (SELECT now() + interval '1 hour') AS later (at)"
)
DELETED: Final = "SELECT job_id FROM scheduled_jobs WHERE job_id <> ALL (ARRAY (SELECT {}))"
LATER_PASS: Final = "next attempt in a later pass"
NOT_RENEWED: Final = "job bad keeps the misfire grace time from before the pause"

CASES: Final = {
    "unblock_limited": Case(unblock_limited, [KEY], UNBLOCKED, "job bad not unblocked"),
    "unblock_late": Case(unblock_late, [KEY], UNBLOCKED, "job bad not unblocked"),
    "unblock_unclaimed": Case(unblock_unclaimed, [KEY], UNBLOCKED, "job bad not unblocked"),
    "unblock_forgotten": Case(unblock_forgotten, [KEY], UNBLOCKED, "job bad not unblocked"),
    "block_surplus": Case(
        block_surplus,
        [None],
        f"SELECT job_id FROM scheduled_jobs WHERE blocked_on = '{KEY}'",
        "job bad not blocked by its limit before it is claimed",
    ),
    "feed_shares": Case(feed_shares, TENANTS, UNBLOCKED, "job bad does not get the turn of its tenant"),
    "renew_due": Case(renew_due, [None], RENEWED, NOT_RENEWED, next_attempt="no further attempt"),
    "renew_blocked": Case(renew_blocked, [KEY], RENEWED, NOT_RENEWED, next_attempt="no further attempt"),
    "end_pauses": Case(
        end_pauses,
        [None],
        DELETED.format("name FROM scheduler_tasks"),
        "pause of task 'bad' not ended",
        "OLD.name = 'bad'",
        table="scheduler_tasks",
        on="DELETE",
    ),
    "delete_past_starts": Case(
        delete_past_starts,
        [None],
        DELETED.format("job_id FROM scheduler_starts"),
        "past start (0,1) of scheduler_starts not deleted",
        table="scheduler_starts",
        on="DELETE",
        setup="INSERT INTO scheduler_starts (key, job_id, attempt, at, keep_s) "
        "SELECT 'limit:L:', job_id, 1, now() - interval '1 day', 1 FROM scheduled_jobs ORDER BY job_id",
    ),
    "report_gone": Case(
        report_gone,
        [None],
        "SELECT job_id FROM scheduled_jobs WHERE on_end = '{}'",
        "end of the last attempt of job bad not recorded",
        setup="UPDATE scheduled_jobs SET status = 'cancelled', finished_at = now(), worker_id = 'gone', "
        """on_end = '{"alive": true}'""",
    ),
    "restart_leases": Case(
        restart_leases,
        [None],
        "SELECT job_id FROM scheduled_jobs WHERE last_heartbeat <= now()",
        "lease of job bad from a wrong clock not restarted",
        setup="UPDATE scheduled_jobs SET status = 'running', attempt = 1, worker_id = 'gone', "
        "started_at = now(), last_heartbeat = now() + interval '1 hour', "
        "lease_until = now() + interval '2 hours'",
    ),
    "correct_due_times": Case(
        correct_due_times,
        [None],
        "SELECT job_id FROM scheduled_jobs WHERE execution_time <= now()",
        "due time of job bad from a wrong clock not corrected",
        setup=DUE_LATER,
    ),
    "correct_waits": Case(
        correct_waits,
        [None],
        "SELECT job_id FROM scheduler_steps WHERE started_at <= now()",
        "due time of job bad from a wrong clock not corrected",
        table="scheduler_steps",
        setup="""UPDATE scheduled_jobs SET attempt = 1, options = '{"steps": 1}', """
        "execution_time = now() + interval '3 hours'; "
        "INSERT INTO scheduler_steps (job_id, name, kind, attempt, started_at) "
        "SELECT job_id, 'wait', 'signal', 1, now() + interval '1 hour' FROM scheduled_jobs",
    ),
    "retire_schedules": Case(
        retire_schedules,
        [None],
        "SELECT schedule_id AS job_id FROM scheduler_schedules WHERE retired_at IS NOT NULL",
        NOT_CHANGED,
        "OLD.schedule_id = 'bad'",
        table="scheduler_schedules",
        setup="UPDATE scheduler_schedules SET owner = 'code', module = 'shop'; DELETE FROM scheduler_workers",
    ),
    "continue_schedules": Case(
        continue_schedules,
        [None],
        "SELECT schedule_id AS job_id FROM scheduler_schedules WHERE next_fire_at IS NOT NULL",
        NOT_CHANGED,
        "OLD.schedule_id = 'bad'",
        table="scheduler_schedules",
        setup="UPDATE scheduler_schedules SET next_fire_at = NULL, updated_at = now() - interval '1 hour'",
    ),
    "vacuum_schedules": Case(
        vacuum_schedules,
        [None],
        DELETED.format("schedule_id FROM scheduler_schedules"),
        "finished schedule 'bad' not deleted",
        "OLD.schedule_id = 'bad'",
        next_attempt=LATER_PASS,
        table="scheduler_schedules",
        on="DELETE",
        setup="UPDATE scheduler_schedules SET finished_at = now() - interval '1 day'",
    ),
    "vacuum_results": Case(
        vacuum_results,
        [None],
        DELETED.format("job_id FROM scheduler_results"),
        "old result of job bad not deleted",
        next_attempt=LATER_PASS,
        table="scheduler_results",
        on="DELETE",
        setup="INSERT INTO scheduler_results (job_id, status, attempts, finished_at, expires_at) "
        "SELECT job_id, 'completed', 1, now(), now() FROM scheduled_jobs",
    ),
    "end_past_deadlines": Case(
        end_past_deadlines,
        [KEY],
        "SELECT job_id FROM scheduled_jobs WHERE status = 'failed'",
        "job bad not failed at its deadline",
        setup="""UPDATE scheduled_jobs SET options = '{"deadline": "2020-01-01T00:00:00.000000+00:00"}'; """
        "INSERT INTO scheduler_deadlines (job_id, at) SELECT job_id, '2020-01-01Z' FROM scheduled_jobs",
    ),
    "forget_deadlines": Case(
        forget_deadlines,
        [None],
        DELETED.format("job_id FROM scheduler_deadlines"),
        "entry 00000000-0000-0000-0000-000000000000 about the deadline of a job not deleted",
        table="scheduler_deadlines",
        on="DELETE",
        setup="INSERT INTO scheduler_deadlines SELECT CASE WHEN job_id = 'bad' "
        "THEN '00000000-0000-0000-0000-000000000000' ELSE gen_random_uuid() END, job_id, '2020-01-01Z', "
        "'2020-01-01Z' FROM scheduled_jobs",
    ),
    "vacuum_deadlines": Case(
        vacuum_deadlines,
        [None],
        DELETED.format("job_id FROM scheduler_deadlines"),
        "entry 00000000-0000-0000-0000-000000000001 about the deadline of a job not deleted",
        next_attempt=LATER_PASS,
        table="scheduler_deadlines",
        on="DELETE",
        setup="INSERT INTO scheduler_deadlines (entry_id, job_id, at, noted_at) "
        "SELECT CASE WHEN job_id = 'bad' THEN '00000000-0000-0000-0000-000000000001' "
        "ELSE gen_random_uuid() END, job_id, '2999-01-01Z', now() - interval '1 day' FROM scheduled_jobs",
    ),
    "vacuum_steps": Case(
        vacuum_steps,
        [None],
        DELETED.format("job_id FROM scheduler_steps"),
        "old steps of job bad not deleted",
        next_attempt=LATER_PASS,
        table="scheduler_steps",
        on="DELETE",
        setup="INSERT INTO scheduler_steps (job_id, name, kind, attempt, started_at) "
        "SELECT job_id, name, 'step', 1, now() - interval '1 day' "
        "FROM scheduled_jobs CROSS JOIN unnest(ARRAY ['a', 'b']) AS name",
    ),
    "vacuum_streams": Case(
        vacuum_streams,
        [None],
        DELETED.format("job_id FROM scheduler_streams"),
        "old streams of job bad not deleted",
        next_attempt=LATER_PASS,
        table="scheduler_streams",
        on="DELETE",
        setup="INSERT INTO scheduler_streams (job_id, definition, name, number, value) "
        "SELECT job_id, 'former', 'items', number, '1' "
        "FROM scheduled_jobs CROSS JOIN generate_series(1, 2) AS number",
    ),
}


TREATMENTS: Final = {
    "a call of the application, or a statement of its own process, whose error is raised": """
        add_names advance_run announce_subscriptions await_jobs begin_run block_retried cancel_job cancel_jobs
        note_last_jobs append_items change_job complete_own delete_child_edges delete_edges delete_jobs
        delete_steps_from end_run
        end_sleep end_step enqueue_due_job enqueue_extended_due_job enqueue_extended_generated_job
        enqueue_extended_jobs enqueue_generated_job enqueue_job enqueue_jobs find_children note_deadlines
        free_fire_times hold_schedules hold_tasks insert_audit insert_edges
        insert_extended_jobs insert_generated_job insert_generated_jobs insert_job insert_jobs
        insert_schedule keep_holders_results keep_job mark_awaited move_jobs move_to_front
        pause_schedule pause_task
        record_database remove_schedule repeat_wait replace_debounced_jobs replace_extended_jobs
        replace_jobs request_state restore_schedules resume_held_tasks
        resume_schedule resume_sequence resume_tasks retry_job retry_jobs set_status skip_failed_head stop_run
        store_broadcast store_signal
        store_step wait_again wake_broadcast wake_signalled write_own_progress write_schedule
    """,
    "one row, of which the pause watcher or the worker itself has the errors": """
        delete_renewed deregister_worker mark_stopping register_worker remove_look renew_worker
        write_look
    """,
    "the claimer leaves out the job: test_refused_passes.py": """
        claim_jobs claim_next claim_one exchange_jobs quarantine_job try_claim
    """,
    "admission decides about jobs one by one: test_refused_outcomes.py": "admit_attempts",
    "outcomes are divided by the completer: test_refused_outcomes.py": """
        apply_replacements block_waiting clear_steps complete_unlocked delete_completed keep_results
        look_at_waits refuse_replacement release_revoked report_ends set_back_suspended settle_failed
        settle_jobs settle_suspended take_over_results write_progress
    """,
    "consequences are divided by the job that has ended: Consequences.apply()": """
        cancel_blocked clear_consequences end_awaited end_child_steps mark_parents note_job_end
        pass_results take_broken_edges take_edges unblock_jobs
    """,
    "sequences are divided by the sequencer; the completer settles what it cannot hand over": """
        hand_over lock_sequences move_heads
    """,
    "schedules get turns of their own: test_refused_passes.py": "advance_schedules note_last_job",
    "jobs are expired in halves: test_refused_passes.py": "expire_jobs",
    "the reason of an expiry is written in halves: test_job_that_expires_in_a_claim": "explain_expiry",
    "workers are declared dead one by one: test_dead_worker_whose_row": "delete_dead_workers",
    "the lease of the worker is renewed without its jobs: test_refused_passes.py": "renew_lease",
    "a record for people, which stops nothing: test_records_for_people.py": """
        add_statistics count_failures fold_failures record_dead_workers
    """,
    "a record of the vacuum, or what it deletes of such records": """
        begin_vacuum_pass delete_statistics end_vacuum_pass fold_statistics note_range read_ranges
        record_vacuum vacuum_audit
    """,
    "the vacuum halves ranges of blocks: test_refused_passes.py": "vacuum_blocks vacuum_unlocked",
    "the vacuum halves what it found: test_refused_passes.py": "vacuum_surplus",
    "tests of the application, whose transaction is one": "mark_uncommitted",
}
"""What becomes of a refused row, by statement, where the cases above do not have it."""

WRITES: Final = re.compile(r'\b(?:INSERT INTO|DELETE FROM|UPDATE) "public"')


def test_each_statement_that_leaves_out_refused_rows_has_a_case() -> None:
    assert CASES.keys() == REFUSABLE.keys()


def test_treatment_of_a_refused_row_is_known_for_each_statement_that_writes() -> None:
    treated = [name for names in TREATMENTS.values() for name in names.split()]
    assert len(treated) == len({*treated})
    assert CASES.keys().isdisjoint(treated)
    writing = {name for name, query in load_queries("public").items() if WRITES.search(query.text)}
    assert writing == {*treated, *CASES}


@pytest.mark.parametrize("is_deferred", [False, True])
@pytest.mark.parametrize("name", CASES)
async def test_refused_row_is_left_out_alone_until_its_pause_has_ended(
    parts: Parts,
    pool: asyncpg.Pool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    name: str,
    is_deferred: bool,
) -> None:
    store, case, refused = parts.store, CASES[name], unrenewable_jobs()
    await prepare(store, pool, name)
    sent = sent_statements(parts)
    await refuse(pool, name, is_deferred=is_deferred)
    assert await case.run(store, refused) in {len(GOOD), None}
    assert await ids(pool, case.changed) == {*GOOD}
    (message,) = caplog.messages
    begin = f"{case.problem}, {case.next_attempt}: a trigger or a constraint of the application refused a row"
    assert message.startswith(begin)
    sent.clear()
    assert await case.run(store, refused) in {0, None}
    assert len(sent) == len({*sent}), "it is left out"
    assert len(caplog.messages) == 1
    await pool.execute("DROP FUNCTION guard CASCADE")
    await case.run(store, refused)
    assert await ids(pool, case.changed) == {*GOOD}
    monkeypatch.setattr(RefusedRows, "keys", lambda _: ())  # the pause has ended
    assert await case.run(store, refused) in {1, None}
    assert await ids(pool, case.changed) == {*IDS}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", ["unblock_limited", "feed_shares", "renew_due"])
async def test_row_is_left_out_whatever_the_sqlstate_of_its_refusal(
    store: Store, pool: asyncpg.Pool, name: str, state: str
) -> None:
    await prepare(store, pool, name)
    await refuse(pool, name, state=state)
    await CASES[name].run(store, unrenewable_jobs())
    assert await ids(pool, CASES[name].changed) == {*GOOD}


@pytest.mark.parametrize("name", CASES)
async def test_statement_is_the_only_one_while_no_row_is_refused(
    parts: Parts, pool: asyncpg.Pool, name: str
) -> None:
    await prepare(parts.store, pool, name)
    sent = sent_statements(parts)
    await CASES[name].run(parts.store, unrenewable_jobs())
    assert await ids(pool, CASES[name].changed) == {*IDS}
    assert name in sent
    assert len(sent) == len({*sent})


async def test_refusals_of_all_rows_are_bounded_in_one_pass(
    store: Store, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, refused_rows=3)
    await prepare(store, pool, "unblock_limited")
    await guard(pool, "RAISE EXCEPTION 'none of them';", is_deferred=False)
    for count in (3, 6, 8, 8):
        assert await unblock_limited(store, None) == 0
        assert len(caplog.messages) == count


async def test_refusal_that_concerns_no_row_is_raised(store: Store, pool: asyncpg.Pool) -> None:
    await prepare(store, pool, "unblock_limited")
    await pool.execute("DELETE FROM scheduled_jobs")
    body = "RAISE EXCEPTION 'no statement at all';"
    await pool.execute(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$")
    await pool.execute("CREATE TRIGGER refuse BEFORE UPDATE ON scheduled_jobs EXECUTE FUNCTION refuse()")
    with pytest.raises(asyncpg.RaiseError):
        await unblock_limited(store, None)


@pytest.mark.parametrize("is_first", [False, True])
async def test_unblocker_gives_the_room_of_a_refused_job_to_the_next_one_and_stops_without_an_error(
    parts: Parts, store: Store, pool: asyncpg.Pool, is_first: bool
) -> None:
    async def limited() -> None: ...

    options = TaskOptions(limits=(Limit("L", max_running=1),))
    parts.tasks.register(limited, name=NAME, options=options)
    await store.workers.register(worker("me"), LEASE)
    unblocker = parts.unblocker()
    due = now() - timedelta(seconds=10)
    jobs = [new_job(job_id, NAME, execution_time=due) for job_id in ("bad", "good 1", "good 2")]
    await store.inserts.insert_extended([ExtendedJob(job, Extras(blocked_on=KEY)) for job in jobs])
    await refuse(pool, "unblock_limited")
    if is_first:
        await unblocker.run_once()
    else:
        unblocker._freed[KEY] = None
        await unblocker.drain()
    assert await ids(pool, UNBLOCKED) == {"good 1"}


async def test_unblocker_stops_without_the_error_of_a_trigger_that_concerns_no_row(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse_all(*_: object) -> None:
        raise asyncpg.RaiseError("not this one")

    unblocker = parts.unblocker()
    unblocker._freed[KEY] = None
    monkeypatch.setattr(unblocker, "_check_limits", refuse_all)
    await unblocker.drain()


@pytest.mark.parametrize("is_deferred", [False, True])
async def test_dead_worker_whose_row_the_application_keeps_delays_no_job_of_others(
    parts: Parts, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture, *, is_deferred: bool
) -> None:
    workers = parts.store.workers
    await claim(parts.store, new_job("job 1"), worker_id="bad")
    await claim(parts.store, new_job("job 2"), worker_id="good")
    await pool.execute("UPDATE scheduler_workers SET lease_until = now() - interval '1 hour'")
    body = "IF OLD.worker_id = 'bad' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN OLD;"
    await guard(pool, body, on="DELETE", table="scheduler_workers", is_deferred=is_deferred)
    rescue = await workers.rescue(120, suspects=["bad", "good"])
    assert (rescue.dead_workers, rescue.job_ids) == (["good"], ["job 2"])
    (message,) = caplog.messages
    assert message.startswith("dead worker bad not deleted, next attempt in 60 s: ")
    assert (await workers.rescue(120, suspects=["bad"])).job_ids == []
    assert len(caplog.messages) == 1, "it is left out"
    await pool.execute("DROP FUNCTION guard CASCADE")
    workers._refused_workers._pause_ends.clear()
    rescue = await workers.rescue(120, suspects=["bad"])
    assert (rescue.dead_workers, rescue.job_ids) == (["bad"], ["job 1"])


async def test_job_whose_reclaim_a_deferred_check_refuses_delays_no_other_job(
    parts: Parts, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    await claim(parts.store, *(new_job(name) for name in ("good 1", "bad", "good 2")), worker_id="gone")
    await pool.execute("UPDATE scheduler_workers SET lease_until = now() - interval '1 hour'")
    await refuse(pool, "unblock_limited", is_deferred=True)
    rescue = await parts.store.workers.rescue(120, suspects=["gone"])
    assert (rescue.dead_workers, rescue.job_ids) == (["gone"], ["good 1", "good 2"])
    (message,) = caplog.messages
    assert message.startswith("job bad of worker gone not reclaimed yet: ")


async def test_unacknowledged_jobs_are_released_besides_the_one_that_a_deferred_check_refuses(
    parts: Parts, pool: asyncpg.Pool
) -> None:
    await claim(parts.store, *(new_job(name) for name in ("good 1", "bad", "good 2")), worker_id="me")
    await refuse(pool, "unblock_limited", is_deferred=True)
    assert await parts.store.claims.release_unacknowledged("me", {}) == ["good 1", "good 2"]


@pytest.mark.parametrize("is_deferred", [False, True])
async def test_job_that_expires_in_a_claim_and_whose_reason_is_refused_delays_no_other_job(
    parts: Parts, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture, *, is_deferred: bool
) -> None:
    parts.tasks.register(work, name=NAME)
    await parts.store.workers.register(worker("me"), LEASE)
    await insert(parts.store, [None])
    await parts.store.inserts.insert([new_job("in time")])
    body = "IF NEW.job_id = 'bad' AND OLD.status = 'expired' THEN RAISE EXCEPTION 'no'; END IF; RETURN NEW;"
    await guard(pool, body, is_deferred=is_deferred)
    claimer = parts.claimer()
    async with asyncio.timeout(PATIENCE):
        while await ids(pool, "SELECT job_id FROM scheduled_jobs WHERE status = 'pending'"):
            await claimer.run_once()
    assert parts.in_flight.unreported().keys() == {"in time"}, "its claim is not lost"
    assert await ids(pool, "SELECT job_id FROM scheduled_jobs WHERE status = 'expired'") == {*IDS}
    (message,) = caplog.messages
    assert message.startswith("reason of the expiry of job bad not written, no further attempt: ")


async def work() -> None: ...


async def prepare(store: Store, pool: asyncpg.Pool, name: str) -> None:
    """Insert what a statement changes."""
    await store.workers.register(worker("me", max_concurrent_jobs=100), LEASE)
    await insert(store, CASES[name].blocked_on)
    if name == "block_surplus":
        await pool.execute("UPDATE scheduled_jobs SET expires_at = NULL")
    if name == "end_pauses":
        for job_id in IDS:
            await store.pauses.pause(job_id, now() - timedelta(seconds=1), None, "me")
    if CASES[name].table == "scheduler_schedules":
        for job_id in IDS:
            assert await store.schedules.insert(new_schedule(job_id, task=NAME), ["every"])
    if CASES[name].setup:
        await pool.execute(CASES[name].setup)


async def refuse(pool: asyncpg.Pool, name: str, *, state: str = "P0001", is_deferred: bool = False) -> None:
    """Let the application refuse what a statement does to one row."""
    case = CASES[name]
    row = "OLD" if case.on == "DELETE" else "NEW"
    action = f"RAISE EXCEPTION 'not this one' USING ERRCODE = '{state}'"
    body = f"IF {case.refusal} THEN {action}; END IF; RETURN {row};"
    await guard(pool, body, on=case.on, table=case.table, is_deferred=is_deferred)


async def ids(pool: asyncpg.Pool, query: str) -> set[str]:
    return {row["job_id"] for row in await pool.fetch(query)}
