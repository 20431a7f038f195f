"""Inspector.search_jobs(): it finds every job once, page by page, and states how far it got."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Job, Scheduler
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.inspect import Bounds, Inspector, SearchError, SearchPage
from pg_scheduler.inspect.pages import PageReader
from pg_scheduler.inspect.paths import Path, Plan, Segment, Sort
from pg_scheduler.inspect.positions import START
from pg_scheduler.inspect.store.searches import Condition
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.jobs.keys import key_text, named_prefix
from pg_scheduler.jobs.limits import BLOCKED_BY_LIMIT
from pg_scheduler.queue.prepare import new_job_id
from tests.support import inside
from tests.support.cases import each_case
from tests.support.inside import Connections, Store
from tests.support.world import World

JOBS = 3_000
FILL = """
    INSERT INTO scheduled_jobs (
        job_id, job_name, execution_time, status, priority, worker_id, attempt, finished_at, error_message,
        blocked_on, task_data, retry_count, options
    )
    SELECT 'job-' || lpad(n::text, 5, '0'), 'name.' || n % 7, now() + (n - 1500) * interval '1 minute',
        status, (ARRAY [1, 3, 5, 8])[n % 4 + 1], CASE WHEN status = 'running' THEN 'w1' END,
        CASE WHEN status = 'pending' THEN 0 ELSE 1 END,
        CASE WHEN status = ANY ('{completed,failed,expired,cancelled}')
            THEN now() - (n % 100) * interval '1 minute' END,
        CASE WHEN status = ANY ('{failed,expired,cancelled}') THEN 'Error ' || n % 5 END,
        CASE WHEN status = 'pending' AND n % 12 = 0 THEN 'limit:stripe:' || n % 5 END,
        jsonb_build_object('kwargs', jsonb_build_object('n', n)), n / 6 % 3,
        CASE WHEN status = 'pending' AND n % 36 = 6 THEN jsonb_build_object('suspended', jsonb_build_object(
            'attempt', 0, 'kind', (ARRAY ['sleep', 'signal'])[n / 36 % 2 + 1])) END
    FROM generate_series(1, $1) AS n,
        LATERAL (
            SELECT (ARRAY ['pending', 'running', 'completed', 'failed', 'expired', 'cancelled'])[n % 6 + 1]
        ) AS each (status)
"""


@pytest.fixture
async def inspector(pool: asyncpg.Pool) -> Inspector:
    return Inspector(pool, actor="ada")


async def fill(pool: asyncpg.Pool, jobs: int = JOBS) -> None:
    await pool.execute(FILL, jobs)
    await pool.execute("VACUUM ANALYZE scheduled_jobs")


async def read_all(inspector: Inspector, where: str, limit: int) -> tuple[list[Job], SearchPage]:
    jobs: list[Job] = []
    page: SearchPage | None = None
    async for page in inspector.search_pages(where, limit=limit, tz=UTC):
        assert len(page.items) <= limit
        jobs += page.items
        assert page.found == len(jobs)
    assert page is not None
    return jobs, page


LATER = "status = 'pending' AND blocked_on IS NULL AND execution_time > now()"
WHERE = {
    "": "true",
    "status:failed": "status = 'failed'",
    "status:failed,expired": "status = ANY ('{failed,expired}')",
    "status:failed,expired,cancelled": "error_message IS NOT NULL",
    "-status:failed,expired,cancelled": "error_message IS NULL",
    "status:cancelled": "status = 'cancelled'",
    "status:running": "status = 'running' AND execution_time <= now()",
    "status:pending": "status = 'pending'",
    "status:pending,expired": "status = ANY ('{pending,expired}')",
    "status:due": "status = 'pending' AND blocked_on IS NULL AND execution_time <= now()",
    "status:blocked": "blocked_on IS NOT NULL",
    "status:scheduled": f"{LATER} AND options IS NULL AND retry_count = 0",
    "status:sleeping": f"{LATER} AND options #>> '{{suspended,kind}}' = 'sleep'",
    "status:awaiting": f"{LATER} AND options #>> '{{suspended,kind}}' = 'signal'",
    "status:retrying": f"{LATER} AND options IS NULL AND retry_count > 0",
    "status:scheduled,sleeping,awaiting,retrying,due,blocked": "status = 'pending'",
    "status:retrying,expired,running": f"status = ANY ('{{expired,running}}') OR {LATER}"
    " AND options IS NULL AND retry_count > 0",
    "-status:scheduled,sleeping,awaiting,retrying": f"NOT ({LATER})",
    "-status:sleeping": f"NOT ({LATER} AND coalesce(options #>> '{{suspended,kind}}' = 'sleep', false))",
    "limit:stripe:3": "blocked_on = 'limit:stripe:3'",
    "status:pending -status:blocked": "status = 'pending' AND blocked_on IS NULL",
    "status:pending priority:high,low": "status = 'pending' AND priority = ANY ('{3,8}')",
    "status:pending -priority:high": "status = 'pending' AND priority <> 3",
    "status:pending due:<now": "status = 'pending' AND execution_time < now()",
    "status:pending due:+1h..+2h,>+9h": "status = 'pending' AND (execution_time >= now() + interval '9 h'"
    " OR execution_time >= now() + interval '1 h' AND execution_time < now() + interval '2 h')",
    "status:failed finished:>-30m": "status = 'failed' AND finished_at >= now() - interval '30 minutes'",
    "status:failed finished:-1h..-30m": "status = 'failed' AND finished_at >= now() - interval '1 hour'"
    " AND finished_at < now() - interval '30 minutes'",
    "-status:completed,cancelled": "status <> ALL ('{completed,cancelled}')",
    "-status:failed": "status <> 'failed'",
    "-status:due": "NOT (status = 'pending' AND blocked_on IS NULL AND execution_time <= now())",
    "name:name.3": "job_name = 'name.3'",
    "status:failed,pending name:name.3": "job_name = 'name.3' AND status = ANY ('{failed,pending}')",
    "worker:w1": "worker_id = 'w1'",
    "arg.n:77": "task_data #>> '{kwargs,n}' = '77'",
    "any:77": "task_data #>> '{kwargs,n}' = '77'",
    "any:~77": "job_id LIKE '%77%' OR task_data #>> '{kwargs,n}' LIKE '%77%'",
    "any:name.3,77": "job_name = 'name.3' OR task_data #>> '{kwargs,n}' = '77'",
    "any:job-00003 -any:name.3": "false",
    "status:pending any:1*": "status = 'pending' AND task_data #>> '{kwargs,n}' LIKE '1%'",
    "any:kwargs,n,{,777777": "false",
    "id:job-00003,job-00005,nothing": "job_id = ANY ('{job-00003,job-00005}')",
    "id:job-00003,job-00005 status:failed": "job_id = 'job-00003'",
    "id:job-0000*": "job_id LIKE 'job-0000%'",
    "job-00003": "job_id = 'job-00003'",
    "job-0000": "job_id LIKE 'job-0000%'",
    "job-00004 status:expired": "job_id = 'job-00004'",
    "id:" + ",".join(f"job-{n:05}" for n in range(20, 0, -1)): "job_id BETWEEN 'job-00001' AND 'job-00020'",
    "-job-0": "false",
    "status:failed status:pending": "false",
    "-status:pending,running,completed,failed,cancelled,expired": "false",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("limit:straße", {"a", "b"}),
        ("limit:straße:müller", {"a"}),
        ("limit:straße:*ller", {"a"}),
        ("limit:*aß*", {"a", "b"}),
        (r"limit:straße:c:\x", {"b"}),
        ("limit:strase", set()),
    ],
)
async def test_search_finds_limits_and_keys_beyond_ascii(
    inspector: Inspector, world: World, where: str, names: set[str]
) -> None:
    for job_id, key in (("a", "müller"), ("b", "c:\\x")):
        text = key_text(lambda key: key, "limit 'straße'", [key], {})
        await world.job(job_id, blocked_on=named_prefix(BLOCKED_BY_LIMIT, "straße") + text)
    page = await inspector.search_jobs(where)
    assert {job.job_id for job in page.items} == names


@pytest.mark.parametrize("limit", [7, 1000])
async def test_search_finds_every_job_once(
    limit: int, inspector: Inspector, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, first_rows_of_search=40)
    await fill(pool, 600 if limit == 7 else JOBS)
    async with pool.acquire() as connection, connection.transaction():
        for where, condition in WHERE.items():
            expected = await connection.fetch(f"SELECT job_id FROM scheduled_jobs WHERE {condition}")
            jobs, page = await read_all(inspector, where, limit)
            ids = [job.job_id for job in jobs]
            assert len(set(ids)) == len(ids), where
            if "-1h" not in where and "+" not in where and "-30m" not in where:  # the clock goes on
                assert set(ids) == {row[0] for row in expected}, where
            assert (page.is_complete, page.next, page.total_estimate) == (True, None, page.searched)


@pytest.mark.parametrize(
    ("where", "key"),
    [
        ("", lambda job: job.job_id),
        ("status:failed", lambda job: (job.finished_at, job.job_id)),
    ],
)
async def test_search_returns_the_newest_jobs_first(
    where: str, key: Any, inspector: Inspector, pool: asyncpg.Pool
) -> None:
    await fill(pool)
    jobs = (await inspector.search_jobs(where)).items
    assert len(jobs) == 50
    assert list(jobs) == sorted(jobs, key=key, reverse=True)


async def test_any_finds_values_at_any_depth_and_no_keys(inspector: Inspector, pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    values: list[Any] = [4711, "4711", 'a "quoted" \\ text', "Ünïcode", True, 1.5, "100%", "line\nbreak"]
    for number, value in enumerate(values):
        places: list[dict[str, Any]] = [
            {"args": [value]},
            {"kwargs": {"customer": {"ids": [1, value]}}},
            {"metadata": {"4711x": value}},
        ]
        place = places[number % 3]
        metadata = place.pop("metadata", None)
        await scheduler.schedule_job(
            "mail.send", datetime.now(UTC) + timedelta(1), place, job_id=f"job-{number}", metadata=metadata
        )

    async def ids(where: str) -> list[str]:
        return sorted(job.job_id for job in (await inspector.search_jobs(where)).items)

    assert await ids("any:4711") == ["job-0", "job-1"]
    assert await ids("any:~47") == ["job-0", "job-1"]
    assert await ids("any:471") == await ids("any:customer") == await ids("any:ids") == []
    assert await ids('any:"a \\"quoted\\" \\\\ text"') == await ids('any:~"quoted\\" "') == ["job-2"]
    assert await ids("any:Ünïcode") == await ids("any:~NÏC".lower()) == ["job-3"]
    assert await ids("any:true") == ["job-4"]
    assert await ids("any:1.5") == ["job-5"]
    assert await ids('any:"100%"') == ["job-6"]
    assert await ids('any:"line\nbreak"') == await ids('any:~"e\nb"') == ["job-7"]
    assert await ids("any:mail.send") == await ids("any:~MAIL") == [f"job-{n}" for n in range(8)]
    assert await ids("-any:~job") == []


@pytest.mark.parametrize("where", ["", "status:completed", "status:completed,running"])
async def test_list_of_jobs_begins_with_the_newest_generated_id(
    where: str, inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    generated = [new_job_id() for _ in range(5)]
    others = ["schedule:b", "schedule:a", "order 7", "1", "0", " "]
    ids = [*generated, *others]
    await world.jobs(len(ids), "name", job_id=lambda n: ids[n - 1], status="completed")
    await pool.execute("VACUUM ANALYZE scheduled_jobs")
    for limit in (1, 4, 50):
        jobs, _ = await read_all(inspector, where, limit)
        ids = [job.job_id for job in jobs]
        assert sorted(ids) == sorted([*generated, *others]), "each once"
        assert ids[:5] == generated[::-1]
        assert [each for each in ids if each.startswith("schedule:")] == ["schedule:b", "schedule:a"]
    named = [job.job_id for job in (await read_all(inspector, "name:name", 50))[0]]
    assert named.index("schedule:a") < named.index(generated[-1]), "those of a name are mostly of schedules"


async def test_search_returns_waiting_jobs_in_the_order_of_their_start(
    inspector: Inspector, pool: asyncpg.Pool
) -> None:
    await fill(pool)
    jobs, _ = await read_all(inspector, "status:pending -status:blocked", 100)
    assert jobs == sorted(jobs, key=lambda job: (job.priority.db_value, job.execution_time, job.job_id))


SORTED: dict[tuple[Sort, str], tuple[str, str]] = {
    ("due", ""): ("finished_at IS NULL AND blocked_on IS NULL", "execution_time, job_id"),
    ("due", "status:due priority:high,low"): (
        "status = 'pending' AND blocked_on IS NULL AND execution_time <= now() AND priority <> ALL ('{1,5}')",
        "execution_time, job_id",
    ),
    ("due", "status:running,failed"): ("status = 'running' AND execution_time <= now()", "execution_time"),
    ("due", "status:blocked"): ("false", "job_id"),
    ("finished", ""): ("error_message IS NOT NULL", "finished_at DESC, job_id DESC"),
    ("finished", "status:failed name.3"): (
        "status = 'failed' AND job_name = 'name.3'",
        "finished_at DESC, job_id DESC",
    ),
    ("finished", "id:job-00003,job-00009"): ("job_id = ANY ('{job-00003,job-00009}')", "finished_at DESC"),
    ("finished", "status:pending"): ("false", "job_id"),
    ("id", "id:" + ",".join(f"job-{number:05}" for number in range(3, 30))): (
        "job_id >= 'job-00003' AND job_id < 'job-00030'",
        "job_id DESC",
    ),
    ("id", "status:failed,pending"): ("status = ANY ('{failed,pending}')", "job_id DESC"),
}


@pytest.mark.parametrize("limit", [7, 1000])
async def test_search_sorts_the_jobs_that_its_index_has(
    limit: int, inspector: Inspector, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, first_rows_of_search=40)
    await fill(pool, 600)
    for (sort, where), (condition, order) in SORTED.items():
        rows = await pool.fetch(f"SELECT job_id FROM scheduled_jobs WHERE {condition} ORDER BY {order}")
        ids: list[str] = []
        after = None
        while True:
            page = await inspector.search_jobs(where, limit=limit, after=after, sort=sort)
            ids += [job.job_id for job in page.items]
            after = page.next
            if after is None:
                break
        assert ids == [row[0] for row in rows], (sort, where)


async def test_sorted_page_reads_no_more_rows_of_the_priorities_than_its_bound(
    pool: asyncpg.Pool,
) -> None:
    await fill(pool, 2 * JOBS)
    inspector = Inspector(pool, bounds=Bounds(rows=1200, milliseconds=60_000))
    page = await inspector.search_jobs("name:nothing", sort="due")
    assert (page.searched, page.is_complete) == (300, False)


async def test_search_sorted_by_end_rejects_a_missing_index(inspector: Inspector, pool: asyncpg.Pool) -> None:
    await pool.execute("DROP INDEX scheduled_jobs_unsuccessful")
    with pytest.raises(ConfigurationError, match="run pg-scheduler migrate indexes, or sort by id"):
        await inspector.search_jobs(sort="finished")
    with pytest.raises(ValueError, match="sort must be one of due, id, finished, not 'name'"):
        await inspector.search_jobs(sort="name")  # type: ignore[arg-type]


async def test_page_states_how_far_the_search_got(inspector: Inspector, pool: asyncpg.Pool) -> None:
    await fill(pool)
    page = await inspector.search_jobs("arg.n:77", limit=1)
    assert page.is_complete
    assert page.summary == "searched all of 3,000 jobs, 1 found"
    page = await inspector.search_jobs("", limit=10)
    assert page.summary == "searched 10 of about 3,000 jobs, 10 found"
    page = await inspector.search_jobs("", limit=10, after=page.next)
    assert page.summary == "searched 20 of about 3,000 jobs, 20 found"
    page = await inspector.search_jobs("status:failed", limit=10)
    assert page.summary == "searched 29 of about 1,500 jobs, 10 found"


@pytest.mark.slow
async def test_page_examines_20000_jobs_at_most_and_the_next_one_continues(pool: asyncpg.Pool) -> None:
    inspector = Inspector(pool, bounds=Bounds(milliseconds=60_000))
    await fill(pool, 45_000)
    pages = [page async for page in inspector.search_pages("arg.n:1")]
    assert [page.searched for page in pages] == [20_000, 40_000, 45_000]
    assert [page.found for page in pages] == [0, 0, 1]
    assert pages[0].summary == "searched 20,000 of about 45 k jobs, 0 found"
    page = await inspector.search_jobs("arg.n:1,2", limit=2, exhaustive=True)
    assert [job.job_id for job in page.items] == ["job-00002", "job-00001"]
    assert page.searched == 45_000


async def test_search_goes_on_page_by_page_whatever_the_bound_is(pool: asyncpg.Pool) -> None:
    await fill(pool, 60)
    for rows in (1, 7, 59, 60, 61):
        inspector = Inspector(pool, bounds=Bounds(rows=rows, milliseconds=60_000))
        pages = [page async for page in inspector.search_pages("arg.n:1,2,60")]
        assert [page.searched for page in pages if not page.is_complete] == [*range(rows, 61, rows)]
        assert [job.job_id for page in pages for job in page.items] == ["job-00060", "job-00002", "job-00001"]
        assert pages[-1].summary == "searched all of 60 jobs, 3 found"


@pytest.mark.parametrize("values", [{"rows": 0}, {"rows": 1_000_001}, {"milliseconds": 0}])
def test_bounds_out_of_range_are_rejected(values: dict[str, int]) -> None:
    ((name, value),) = values.items()
    with pytest.raises(ValueError, match=f"{name} must be between 1 and .*, not {value}"):
        Bounds(**values)


def test_bounds_of_another_type_are_rejected(pool: asyncpg.Pool) -> None:
    with pytest.raises(TypeError, match="rows must be an int, not str: '9'"):
        Bounds(rows="9")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="bounds must be a Bounds, not int: 9"):
        Inspector(pool, bounds=9)  # type: ignore[arg-type]


async def test_page_examines_no_further_rows_after_its_time(pool: asyncpg.Pool) -> None:
    await fill(pool)
    store = InspectionStore(Store(Connections(pool)))
    times = iter([0.0, 0.2, 0.26])
    nothing = [Condition("name", [["nothing"], []])]
    async with store.searches.transaction() as connection:
        sizes = await store.searches.sizes(on=connection)
        plan = Plan((Segment(Path.NEWEST),), ("scheduled_jobs",))
        reader = PageReader(
            store.searches, plan, nothing, sizes, bounds=Bounds(milliseconds=250), clock=lambda: next(times)
        )
        page = await reader.read(START, 10, connection)
    assert (page.searched, page.is_complete) == (250 + 500, False)


async def test_search_states_that_the_index_is_missing(inspector: Inspector, pool: asyncpg.Pool) -> None:
    await fill(pool, 60)
    await pool.execute("DROP INDEX scheduled_jobs_unsuccessful")
    page = await inspector.search_jobs("status:failed")
    assert len(page.items) == 10
    assert page.missing_index == "scheduled_jobs_unsuccessful"
    assert page.summary == (
        "searched all of 60 jobs, 10 found; the index scheduled_jobs_unsuccessful is missing"
    )


async def test_search_of_a_table_that_was_never_analyzed_has_no_estimate(
    inspector: Inspector, pool: asyncpg.Pool
) -> None:
    await pool.execute(FILL, 60)
    page = await inspector.search_jobs("", limit=1)
    assert page.total_estimate is None
    assert page.summary == "searched 1 of an unknown number of jobs, 1 found"


async def test_search_finds_jobs_next_to_rows_outside_of_the_calendar(
    inspector: Inspector, pool: asyncpg.Pool
) -> None:
    await fill(pool, 60)
    await pool.execute("UPDATE scheduled_jobs SET finished_at = 'infinity' WHERE job_id = 'job-00003'")
    await pool.execute("UPDATE scheduled_jobs SET finished_at = '-infinity' WHERE job_id = 'job-00009'")
    await pool.execute("UPDATE scheduled_jobs SET execution_time = '20000-01-01' WHERE job_id = 'job-00006'")
    assert len((await read_all(inspector, "status:failed", 3))[0]) == 8
    assert len((await read_all(inspector, "status:pending", 3))[0]) == 9
    assert len((await read_all(inspector, "", 3))[0]) == 60


async def test_relative_times_count_from_the_first_page(inspector: Inspector, pool: asyncpg.Pool) -> None:
    await fill(pool, 60)
    await pool.execute(
        "UPDATE scheduled_jobs SET finished_at = now() - interval '1 minute' WHERE status = 'failed'"
    )
    where = "status:failed finished:>-1m30s"
    first = await inspector.search_jobs(where, limit=3)
    # As if the page were read an hour later: its instant and the jobs are moved to an hour ago.
    now, searched, found, segment, at, job_id = json.loads(urlsafe_b64decode(f"{first.next}==="))
    hour = timedelta(hours=1)
    now, at = (datetime.fromisoformat(each) - hour for each in (now, at))
    values = [now.isoformat(), searched, found, segment, at.isoformat(), job_id]
    after = urlsafe_b64encode(json.dumps(values).encode()).decode()
    await pool.execute("UPDATE scheduled_jobs SET finished_at = finished_at - interval '1 hour'")
    assert not (await inspector.search_jobs(where, limit=3)).items
    rest = await inspector.search_jobs(where, limit=30, after=after)
    assert (len(first.items), len(rest.items), rest.is_complete) == (3, 7, True)


NOW = "2026-11-21T09:00:00+00:00"


def typed(*values: object) -> tuple[object, ...]:
    return values


@each_case(
    "after",
    [
        "",
        "x",
        "!",
        "ü",
        "A" * 500_000,
        *(
            urlsafe_b64encode(json.dumps(value).encode()).decode()
            for value in typed(
                {},
                [],
                [0, 0, 0],
                ["now", 0, 0, 0],
                ["2026-11-21T09:00:00", 0, 0, 0],
                ["2026-11-21T09:00:00+01:00", 0, 0, 0],
                [NOW],
                [NOW, 0, 0],
                [NOW, 0, 0, 9],
                [NOW, -1, 0, 0],
                [NOW, 0, 0, -1],
                [NOW, True, 0, 0],
                [NOW, 0, 0, 0, 7],
                [NOW, 0, 0, 0, "a", "b"],
                [NOW, 0, 0, 0, "a\x00"],
                [NOW, 0, 0, 0, "\ud800"],
            )
        ),
    ],
)
async def test_search_rejects_a_position_that_is_none(after: str, inspector: Inspector) -> None:
    with pytest.raises(ValueError, match=r"after= is no position of this search"):
        await inspector.search_jobs("", after=after)


@pytest.mark.parametrize("key", [["2026-11-21", "a"], ["x", "a"], [1, "a"], ["2026-11-21T00:00:00+00:00", 1]])
async def test_search_rejects_a_position_of_other_values(key: list[object], inspector: Inspector) -> None:
    after = urlsafe_b64encode(json.dumps([NOW, 0, 0, 0, *key]).encode()).decode()
    with pytest.raises(ValueError, match=r"after= is no position of this search"):
        await inspector.search_jobs("status:failed", after=after)


async def test_search_rejects_mistakes(inspector: Inspector) -> None:
    with pytest.raises(SearchError, match="unknown field"):
        await inspector.search_jobs("stauts:failed")
    with pytest.raises(SearchError, match="has no time zone"):
        await inspector.search_jobs("due:today")
    for limit in (0, 1001):
        with pytest.raises(ValueError, match="limit"):
            await inspector.search_jobs("", limit=limit)
    assert (await inspector.search_jobs("due:today", tz=timezone(timedelta(hours=1)))).is_complete


async def test_get_jobs_returns_those_that_exist(inspector: Inspector, pool: asyncpg.Pool) -> None:
    await fill(pool, 6)
    found = await inspector.get_jobs(["job-00001", "job-00002", "nothing"])
    assert set(found) == {"job-00001", "job-00002"}
    assert await inspector.get_job("job-00001") == found["job-00001"]
    assert await inspector.get_job("nothing") is None
    with pytest.raises(ValueError, match="at most 500 ids, not 501"):
        await inspector.get_jobs(map(str, range(501)))


async def test_inspector_reads_the_tables_of_a_scheduler(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool, schema="other")
    await scheduler.initialize_db()
    await scheduler.schedule_job("name", datetime.now(UTC), {}, job_id="a")
    assert [job.job_id for job in (await Inspector(scheduler).search_jobs("")).items] == ["a"]
    assert [job.job_id for job in (await Inspector(pool, schema="other").search_jobs("")).items] == ["a"]
    assert (await Inspector(pool).search_jobs("")).items == ()
    with_reads = Inspector(scheduler, read_pool=pool)
    assert len((await with_reads.search_jobs("")).items) == 1


async def test_inspector_names_the_actor(pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Inspector(pool, actor="ada").actor == "ada"
    monkeypatch.setenv("LOGNAME", "grace")
    assert Inspector(pool).actor.startswith("grace@")

    def fails() -> str:
        raise KeyError("no user of this number")

    monkeypatch.setattr("getpass.getuser", fails)
    assert Inspector(pool).actor.startswith("unknown@")


async def test_inspector_rejects_a_dsn_without_showing_it() -> None:
    text = r"^source must be an asyncpg\.Pool or a Scheduler, not str; pass the result of [a-z_.]+\(\)$"
    with pytest.raises(TypeError, match=text):
        Inspector("postgresql://user:secret@host/db")  # type: ignore[arg-type]
