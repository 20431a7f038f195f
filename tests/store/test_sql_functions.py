"""The SQL functions for triggers, psql and programs in other languages."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pg_scheduler import JobPriority, JobStatus, PollingConfig, Scheduler
from pg_scheduler.events import JobCompleted, JobScheduled
from tests.support.cases import each_case
from tests.support.inside import store_of
from tests.support.transactions import KINDS, application, settled
from tests.support.worker import Recorder

LATER = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
COLUMNS = """
    job_name, execution_time, status, task_data::text, priority, max_retries, misfire_grace_time, expires_at,
    timeout_seconds, function, lock_key, unique_key, (options ->> 'keep_result')::float8,
    options - 'keep_result', blocked_on, on_end, attempt, retry_count
"""

ADD = "SELECT scheduler_add_job($1, $2::jsonb, $3::jsonb, $4, $5, $6::jsonb)"


async def work(*args: object) -> None: ...


def texts() -> st.SearchStrategy[str]:
    return st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)


VALUES = st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), texts())
SPECS = st.fixed_dictionaries(
    {
        "args": st.lists(VALUES, max_size=3),
        "kwargs": st.dictionaries(texts(), VALUES, max_size=2),
        "execution_time": st.datetimes(datetime(2000, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    },
    optional={
        "priority": st.sampled_from(JobPriority),
        "max_retries": st.integers(0, 9),
        "misfire_grace_time": st.none() | st.integers(0, 10**6),
        "timeout": st.none() | st.integers(1, 10**6),
        "metadata": st.dictionaries(texts().filter(lambda key: key != "trace"), VALUES, max_size=2),
        "keep_result": st.integers(1, 10**6).map(lambda seconds: timedelta(seconds=seconds)),
        "unique": texts().filter(bool),
    },
)


def options_of(spec: dict[str, Any]) -> str:
    options = {key: value for key, value in spec.items() if key not in {"args", "kwargs", "execution_time"}}
    if "priority" in options:
        options["priority"] = str(options["priority"].value)
    if "keep_result" in options:
        options["keep_result"] = options["keep_result"].total_seconds()
    return json.dumps(options)


@pytest.mark.slow
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spec=SPECS)
async def test_every_way_in_writes_the_same_row(dsn: str, pool: asyncpg.Pool, spec: dict[str, Any]) -> None:
    scheduler = Scheduler(pool, misfire_grace_time=None)
    data = {"args": spec["args"], "kwargs": spec["kwargs"]}
    rest = {key: value for key, value in spec.items() if key not in data}
    rows = []

    async def take_row() -> None:
        (row,) = await pool.fetch(f"DELETE FROM scheduled_jobs RETURNING {COLUMNS}")
        rows.append(tuple(row))

    await scheduler.schedule_job("test.work", task_data=data, **rest)
    await take_row()
    arguments = json.dumps(spec["args"]), json.dumps(spec["kwargs"])
    await pool.fetchval(ADD, "test.work", *arguments, spec["execution_time"], None, options_of(spec))
    await take_row()
    for kind in KINDS[1:]:
        async with application(kind, dsn, pool, misfire_grace_time=None) as app:
            await app.call("schedule_job", "test.work", task_data=data, **rest)
            await settled(app.commit())
        await take_row()
    assert rows == [rows[0]] * len(rows)


async def test_defaults_are_those_of_a_job_that_never_expires(pool: asyncpg.Pool) -> None:
    job_id = await pool.fetchval("SELECT scheduler_add_job('test.work')")
    job = await Scheduler(pool).get_job(job_id)
    assert job is not None
    assert (job.args, job.kwargs, job.misfire_grace_time, job.timeout) == ((), {}, None, HOUR)
    assert job_id[14] == "7"
    assert job_id[19] in "89ab"


async def test_id_sorts_by_its_time(pool: asyncpg.Pool) -> None:
    ids = [await pool.fetchval("SELECT scheduler_add_job('x') FROM pg_sleep(0.002)") for _ in range(5)]
    assert ids == sorted(ids)


async def test_job_of_a_trigger_runs_after_its_commit(pool: asyncpg.Pool) -> None:
    await pool.execute("""
        CREATE TABLE orders (number integer);
        CREATE FUNCTION note_order() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM scheduler_add_job(
                'test.work', jsonb_build_array(NEW.number), job_id => 'order:' || NEW.number
            );
            RETURN NEW;
        END $$;
        CREATE TRIGGER note_order AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION note_order();
    """)
    slow = PollingConfig(idle_start_interval=600, max_interval=600, semaphore_full_interval=600)
    async with Scheduler(pool, polling_config=slow) as scheduler:
        scheduler.register(work, name="test.work")
        seen = Recorder(scheduler)
        await pool.execute("INSERT INTO orders VALUES (7)")
        await seen.until(JobCompleted, job_id="order:7")
        assert not seen.of(JobScheduled)


async def test_existing_id_or_key_raises_or_is_returned(pool: asyncpg.Pool) -> None:
    add = "SELECT scheduler_add_job('x', job_id => $1, options => $2::jsonb)"
    assert await pool.fetchval(add, "one", '{"unique": "key"}') == "one"
    for job_id, options in (("one", {}), ("two", {"unique": "key"})):
        with pytest.raises(asyncpg.UniqueViolationError, match=f"'{job_id}'"):
            await pool.fetchval(add, job_id, json.dumps(options))
        assert await pool.fetchval(add, job_id, json.dumps({**options, "on_conflict": "ignore"})) == "one"
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 1


@each_case(
    ("call", "message"),
    [
        ("'x', options => '{\"prio\": 3}'", "unknown option 'prio'"),
        ("''", "name must be"),
        ("NULL", "name must be"),
        ("'x', '{}'", "args must be an array"),
        ("'x', options => '{\"timeout\": 0}'", "timeout must be a number of seconds above 0, or null"),
        ("'x', options => '{\"timeout\": \"NaN\"}'", "timeout must be a number of seconds above 0, or null"),
        ("'x', options => '{\"keep_result\": -1}'", "keep_result must be a number of seconds above 0"),
        ("'x', options => '{\"keep_result\": \"inf\"}'", "keep_result must be a number of seconds above 0"),
        ("'x', kwargs => '[]'", "kwargs must be an object"),
        ("'x', job_id => ''", "job_id must have 1 to 2000 bytes"),
        ("'x', options => '{\"metadata\": 5}'", "metadata must be an object"),
        ("'x', options => '{\"unique\": \"\"}'", "unique must have 1 to 200 bytes"),
        ("'x', options => '{\"on_conflict\": \"replace\"}'", "on_conflict must be"),
    ],
)
async def test_invalid_value_is_rejected_with_its_rule(pool: asyncpg.Pool, call: str, message: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match=message):
        await pool.fetchval(f"SELECT scheduler_add_job({call})")


async def test_cancelled_job_and_its_worker_and_its_children_end(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    parent = await scheduler.schedule(work, execution_time=LATER, keep_result=HOUR)
    child = await scheduler.schedule(work, execution_time=LATER, after=[parent])
    assert await pool.fetchval("SELECT scheduler_cancel_job($1)", parent) is True
    assert await pool.fetchval("SELECT scheduler_cancel_job($1)", parent) is False
    assert await pool.fetchval("SELECT scheduler_cancel_job('none')") is False
    await store_of(scheduler).consequences.apply_lost(10)
    for job_id in (parent, child):
        job = await scheduler.get_job(job_id)
        assert job is not None
        assert job.status is JobStatus.CANCELLED
    result = await scheduler.get_job_result(parent)
    assert result is not None
    assert result.status is JobStatus.CANCELLED


async def test_functions_use_the_tables_of_their_schema_whatever_the_search_path(dsn: str) -> None:
    from pg_scheduler.migrate import migrate

    schema = 'o\'brien "jobs"'
    async with asyncpg.create_pool(dsn, min_size=1) as pool:
        async with pool.acquire() as connection:
            await migrate(connection, schema=schema)
            await connection.execute(
                "CREATE SCHEMA fake; CREATE FUNCTION fake.now() RETURNS timestamptz LANGUAGE sql "
                "AS $$ SELECT '2000-01-01'::timestamptz $$; SET search_path = fake, pg_catalog"
            )
            quoted = '"o\'brien ""jobs"""'
            job_id = await connection.fetchval(f"SELECT {quoted}.scheduler_add_job('x')")
            await connection.execute("SET search_path = public")
            assert await connection.fetchval("SELECT count(*) FROM scheduled_jobs") == 0
        found = await Scheduler(pool, schema=schema).get_job(job_id)
        assert found is not None
        assert found.created_at.year > 2000


async def test_cancel_waits_for_no_transaction_that_adds_jobs_after_this_one(
    pool: asyncpg.Pool, dsn: str
) -> None:
    parent = await pool.fetchval("SELECT scheduler_add_job('work')")
    stranger = await asyncpg.connect(dsn)
    transaction = stranger.transaction()
    await transaction.start()
    await stranger.execute("SELECT FROM scheduled_jobs WHERE job_id = $1 FOR KEY SHARE", parent)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL lock_timeout = '10ms'")
        assert await connection.fetchval("SELECT scheduler_cancel_job($1)", parent) is True
    await transaction.rollback()
    await stranger.close()


# The jobs of one of two equal worlds, whose ids begin with $1. For each that is marked a child waits, and for
# every second one without a mark: as if the transaction that cancels it had added the child.
WORLD = """
    INSERT INTO scheduled_jobs (
        job_id, job_name, execution_time, status, attempt, worker_id, lease_until, started_at, blocked_on,
        on_end, options, errors, error_message
    )
    SELECT $1 || n, 'work', '2090-01-01', row.status, 1, row.worker_id, '2090-01-01', '2020-01-01',
        row.blocked_on, row.on_end::jsonb, row.options::jsonb, '[{"outcome": "failed", "attempt": 0}]',
        'an error'
    FROM ROWS FROM (
        unnest($2::integer[]), unnest($3::text[]), unnest($4::text[]), unnest($5::text[]),
        unnest($6::text[]), unnest($7::text[])
    ) AS row (n, status, worker_id, blocked_on, on_end, options)
"""
WORLD_CHILDREN = """
    INSERT INTO scheduled_jobs (job_id, job_name, execution_time, blocked_on)
    SELECT $1 || 'child:' || n, 'work', '2090-01-01', 'after' FROM unnest($2::integer[]) AS n
"""
WORLD_EDGES = """
    INSERT INTO scheduler_after (parent_id, child_id, outcome, definition)
    SELECT $1 || n, $1 || 'child:' || n, 'ended', '' FROM unnest($2::integer[]) AS n
"""
WORLD_ROWS = """
    SELECT job_id, status, attempt, worker_id, lease_until, started_at, finished_at IS NULL AS is_unfinished,
        blocked_on, on_end::text, options::text, errors::text, error_message
    FROM scheduled_jobs
    WHERE left(job_id, length($1)) = $1
    ORDER BY job_id
"""
STATES = [
    ("pending", None, None),
    ("pending", None, "after"),
    ("pending", None, "share:a"),
    ("running", "lives", None),
    ("running", "gone", None),
]
ENDS = [None, {"child": True}, {"replacement": {"job_name": "other"}}, {"child": True, "replacement": {}}, 5]
OPTIONS = [
    None,
    {"keep_result": 60},
    {"schedule_id": "s"},
    {"schedule_id": "s", "children": 1},
    {"steps": 0, "children": 1, "ended": {"on_end": {"on_failure": "alert"}}},
    5,
]


async def rows_of_world(pool: asyncpg.Pool, world: str) -> list[dict[str, Any]]:
    """Return the rows of a world, without its name, the reasons and the times of this test."""
    rows = []
    for record in await pool.fetch(WORLD_ROWS, world):
        row = json.loads(json.dumps(dict(record), default=str).replace(world, ""))
        row["errors"] = [entry | {"ended_at": None} for entry in json.loads(row["errors"] or "[]")]
        row["error_message"] = (row["error_message"] or "").partition(";")[2]
        rows.append(row)
    return rows


async def test_function_cancels_by_the_rules_of_the_scheduler(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    consequences = store_of(scheduler).consequences
    await pool.execute(
        "INSERT INTO scheduler_workers (worker_id, hostname, pid, version, max_concurrent_jobs, started_at,"
        " last_beat, lease_until) VALUES ('lives', '', 1, '', 1, now(), now(), '2090-01-01')"
    )
    cases = list(itertools.product(STATES, ENDS, OPTIONS))
    numbers = list(range(len(cases)))
    values = [
        (number, *state, *(value and json.dumps(value) for value in (on_end, options)))
        for number, (state, on_end, options) in enumerate(cases)
    ]
    awaited = [number for number, case in enumerate(cases) if case[1] == {"child": True} or number % 2]
    worlds = ("py:", "sql:")
    for world in worlds:
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            await connection.execute(WORLD, world, *map(list, zip(*values, strict=True)))
            await connection.execute(WORLD_CHILDREN, world, awaited)
            await connection.execute(WORLD_EDGES, world, awaited)
    for number in numbers:
        async with pool.acquire() as connection, connection.transaction():
            assert await scheduler.cancel_job(f"py:{number}", connection=connection)
            assert await connection.fetchval("SELECT scheduler_cancel_job($1)", f"sql:{number}")
    # Those of the function are applied by a scan.
    await consequences.apply_lost(len(cases))
    expected, cancelled = [await rows_of_world(pool, world) for world in worlds]
    assert cancelled == expected
    assert {row["status"] for row in cancelled} == {"cancelled", "pending"}
    for number, world in itertools.product(numbers, worlds):
        await scheduler.retry_job(f"{world}{number}")
    expected, retried = [await rows_of_world(pool, world) for world in worlds]
    assert retried == expected
    assert {row["blocked_on"] for row in retried} >= {None, "share:a"}


@pytest.mark.parametrize("mode", ["ignore", "raise"])
async def test_job_is_added_when_the_holder_of_its_key_ends_meanwhile(pool: asyncpg.Pool, mode: str) -> None:
    add = "SELECT scheduler_add_job('x', job_id => $1, options => $2::jsonb)"
    options = json.dumps({"unique": "key", "on_conflict": mode})
    assert await pool.fetchval(add, "holder", options) == "holder"
    # The end comes between the statement that meets the key and the one that reads its holder.
    await pool.execute("""
        CREATE FUNCTION end_holder() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            UPDATE public.scheduled_jobs SET status = 'cancelled', finished_at = now()
            WHERE job_id = 'holder';
            RETURN NULL;
        END $$;
        CREATE TRIGGER end_holder AFTER INSERT ON scheduled_jobs EXECUTE FUNCTION end_holder();
    """)
    assert await pool.fetchval(add, "other", options) == "other"
    assert await pool.fetchval("SELECT unique_key FROM scheduled_jobs WHERE job_id = 'other'") == "key"


async def test_job_that_a_trigger_suppresses_is_refused(pool: asyncpg.Pool) -> None:
    await pool.execute("""
        CREATE FUNCTION suppress() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
        CREATE TRIGGER suppress BEFORE INSERT ON scheduled_jobs FOR EACH ROW EXECUTE FUNCTION suppress();
    """)
    with pytest.raises(asyncpg.UniqueViolationError):
        await pool.fetchval("SELECT scheduler_add_job('x', options => '{\"on_conflict\": \"ignore\"}')")
