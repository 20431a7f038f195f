"""The overviews of the Inspector: backlog, tasks, totals, workers, running jobs and groups of errors."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.events.types import EXPIRED
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.cluster import read_cluster
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.inspect.texts import rounded
from pg_scheduler.jobs.error_text import normalized
from tests.support import inside
from tests.support.cases import each_case
from tests.support.catalogues import clear_registrations
from tests.support.errors import add_to_groups
from tests.support.inside import Connections, Store, fingerprint_of
from tests.support.world import HOUR, MINUTE, World


@pytest.fixture
async def inspector(pool: asyncpg.Pool) -> Inspector:
    return Inspector(pool)


async def fill(world: World) -> None:
    """Insert seven due jobs, two running ones, three blocked ones, and future ones."""
    await world.jobs(4, "daily", function="report", due=lambda n: -n * HOUR, priority=8)
    await world.jobs(3, "mail", due=lambda n: -n * MINUTE, priority=1)
    await world.jobs(9, "mail", due=lambda n: n * MINUTE, priority=1)
    await world.jobs(2, "mail", status="running")
    await world.jobs(3, "mail", blocked_on=lambda n: f"limit:api:{n % 2}")


async def test_name_whose_jobs_all_run_has_no_oldest_due_job(inspector: Inspector, world: World) -> None:
    await world.jobs(2, "busy", status="running")
    (name,) = (await inspector.backlog()).names
    assert (name.name, name.due, name.running, name.oldest_due_at) == ("busy", 0, 2, None)
    (task,) = (await inspector.tasks()).items
    assert task.oldest_due_at is None


async def test_backlog_counts_due_jobs_by_name_and_blocked_jobs(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    await fill(world)
    await world.worker(names=["mail", "other"])
    backlog = await inspector.backlog()
    assert [(each.name, each.due, each.blocked, each.running, each.workers) for each in backlog.names] == [
        ("report", 4, 0, 0, 0),
        ("mail", 3, 3, 2, 1),
    ]
    assert [each.waiting for each in backlog.names] == [4, 6]
    oldest = backlog.names[0].oldest_due_at
    assert oldest is not None
    assert timedelta(hours=4) <= datetime.now(UTC) - oldest < timedelta(hours=5)
    assert (backlog.due, backlog.due_estimate, backlog.is_capped) == (7, 7, False)
    assert (backlog.blocked, backlog.is_blocked_capped) == ({"limit:api:1": 2, "limit:api:0": 1}, False)
    assert backlog.summary == "2 names, waiting 10: due 7, blocked 3"
    await world.worker("w2", names=None)
    assert [each.workers for each in (await inspector.backlog()).names] == [None, None]


async def test_backlog_states_its_bounds(
    inspector: Inspector, pool: asyncpg.Pool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(world)
    await pool.execute("ANALYZE scheduled_jobs")
    inside.replace(monkeypatch, backlog_rows=4)
    inside.replace(monkeypatch, blocked_rows=2)
    backlog = await inspector.backlog()
    assert (backlog.due, backlog.is_capped, backlog.is_blocked_capped) == (3, True, True)
    assert backlog.due_estimate >= backlog.due
    assert backlog.summary == (f"1+ names, waiting 5+: due 3+, blocked 2+, about {backlog.due_estimate} due")
    tasks = await inspector.tasks()
    assert (tasks.is_capped, tasks.summary) == (
        True,
        "1+ tasks, 0 paused, 1+ running, waiting 5+: due 3+, blocked 2+",
    )
    inside.replace(monkeypatch, backlog_groups=1)
    inside.replace(monkeypatch, blocked_keys=1)
    inside.replace(monkeypatch, backlog_rows=40)
    inside.replace(monkeypatch, blocked_rows=40)
    assert (await inspector.tasks()).is_capped, "there may be other names"
    assert (await inspector.tasks()).is_blocked_capped, "there may be other names of blocked jobs"
    assert (await inspector.backlog()).is_blocked_capped


async def test_backlog_and_tasks_of_an_empty_table(inspector: Inspector) -> None:
    assert (await inspector.backlog()).summary == "0 names, waiting 0: due 0, blocked 0"
    tasks = await inspector.tasks()
    assert (tasks.items, tasks.summary) == ([], "0 tasks, 0 paused, 0 running, waiting 0: due 0, blocked 0")


async def test_tasks_lists_names_with_workers_jobs_or_pauses(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    await fill(world)
    await world.worker(names=["mail", "idle"])
    await Store(Connections(pool)).pauses.pause("paused", None, "outage", "ada")
    states = {state.name: state for state in (await inspector.tasks()).items}
    assert list(states) == ["idle", "mail", "paused", "report"]
    assert [(each.due, each.blocked, each.running, each.workers) for each in states.values()] == [
        (0, 0, 0, 1),
        (3, 3, 2, 1),
        (0, 0, 0, 0),
        (4, 0, 0, 0),
    ]
    assert (states["paused"].note, states["paused"].actor) == ("outage", "ada")
    assert [state.name for state in states.values() if state.paused_at] == ["paused"]


async def test_name_of_which_all_jobs_are_blocked_is_a_task(inspector: Inspector, world: World) -> None:
    await world.jobs(21, "export", blocked_on="limit:warehouse:")
    (task,) = (await inspector.tasks()).items
    assert (task.name, task.due, task.blocked, task.waiting, task.oldest_due_at) == (
        "export",
        0,
        21,
        21,
        None,
    )
    (name,) = (await inspector.backlog()).names
    assert (name.name, name.due, name.blocked, name.workers) == ("export", 0, 21, 0)
    assert (await inspector.tasks()).summary == "1 task, 0 paused, 0 running, waiting 21: due 0, blocked 21"


async def test_alias_of_a_task_is_listed_only_while_it_has_jobs(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    async def send() -> None: ...

    clear_registrations()  # a worker's names are read up to a bound, and other modules register many
    scheduler = Scheduler(pool)
    scheduler.register(send, name="overview.send", aliases=["overview.mail"])
    async with scheduler:
        names = {name for worker in await scheduler.workers() for name in worker.names or ()}
        assert {"overview.send", "overview.mail"} <= names, "the worker claims both"
        listed = [state.name for state in (await inspector.tasks()).items]
        assert "overview.send" in listed
        assert not {name for name in listed if name == "overview.mail" or name.endswith("<locals>.send")}
        figures = await read_cluster(InspectionStore(Store(Connections(pool))))
        assert "overview.mail" not in figures.claimed
        await world.worker(settings='{"aliases": ["nonsense"]}')
        assert "work" in [state.name for state in (await inspector.tasks()).items]
    await world.job("old", "overview.mail")
    assert "overview.mail" in [state.name for state in (await inspector.tasks()).items]


async def test_running_workers_and_totals(inspector: Inspector, pool: asyncpg.Pool, world: World) -> None:
    await fill(world)
    await world.worker()
    assert len((await inspector.running()).items) == 2
    assert [worker.worker_id for worker in await inspector.workers()] == ["w1"]
    await pool.execute("VACUUM ANALYZE scheduled_jobs")
    totals = await inspector.totals()
    assert (totals.jobs, totals.unfinished, totals.blocked, totals.unsuccessful) == (21, 18, 3, 0)
    await pool.execute("DROP INDEX scheduled_jobs_unsuccessful")
    assert (await inspector.totals()).unsuccessful is None


async def add_errors(world: World) -> None:
    """Add errors that only differ by a number, and others of the same task."""
    await world.jobs(
        30,
        "mail",
        status="failed",
        ended=lambda n: -n * MINUTE,
        error_message="TimeoutError: after {} s".format,
    )
    await world.jobs(2, "mail", status="expired", ended=-2 * HOUR, error_message="not started")


async def test_error_groups_ignore_numbers_and_ids(inspector: Inspector, world: World) -> None:
    await add_errors(world)
    await world.jobs(1, "report", status="failed", error_message="TimeoutError: after 7 s")
    groups = await inspector.error_groups()
    assert [(group.job_name, group.text, group.count) for group in groups.items] == [
        ("report", "TimeoutError: after # s", 1),
        ("mail", "TimeoutError: after # s", 30),
        ("mail", EXPIRED, 2),
    ]
    group = groups.items[1]
    assert group.last_at - group.first_at == timedelta(minutes=29)
    assert group.example == "TimeoutError: after 1 s"
    assert (len(group.history), sum(group.history)) == (25, group.count), "days"
    assert group.history[-1] > 0, "the newest ones are in the last part"
    assert (await inspector.get_job(group.last_job_id)) is not None
    assert group.fingerprint == fingerprint_of("mail", "TimeoutError: after # s")
    assert groups.summary.startswith("3 groups, 33 failures since ")
    since = datetime.now(UTC) - timedelta(hours=1)
    recent = await inspector.error_groups(since=since, limit=1)
    assert [each.job_name for each in recent.items] == ["report"]
    assert (recent.is_capped, recent.since) == (True, since.replace(second=0, microsecond=0))
    assert recent.summary.startswith("1+ groups, 1+ failures since ")
    one = await inspector.error_group(group.fingerprint, since=since)
    assert one is not None
    assert (one.count, one.total, len(one.history)) == (30, 30, 21)
    assert await inspector.error_group("unknown") is None
    of_names = await inspector.error_groups(names=["report", "other"])
    assert [each.job_name for each in of_names.items] == ["report"]


async def test_error_groups_count_what_no_worker_has_added_yet(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    await add_errors(world)
    before = (await inspector.error_groups()).items
    await pool.execute(
        "INSERT INTO scheduler_failures (fingerprint, job_name, text, status, jobs, at, release, job_id)"
        " SELECT fingerprint, job_name, text, status, 5, now(), 'v9', 'new' FROM scheduler_error_groups"
        " UNION ALL SELECT 'f', 'fresh', 'e', 'failed', 1, now() - interval '2 h', NULL, 'fresh'"
    )
    after = {group.fingerprint: group for group in (await inspector.error_groups()).items}
    assert after.pop("f").count == 1
    for group in before:
        assert after[group.fingerprint].count == group.count + 5
        assert after[group.fingerprint].first_at == group.first_at
        assert (after[group.fingerprint].last_job_id, after[group.fingerprint].last_release) == ("new", "v9")
    since = datetime.now(UTC) - timedelta(hours=1)
    recent = {group.fingerprint: group.count for group in (await inspector.error_groups(since=since)).items}
    assert sorted(recent.values()) == [5, 35]
    await add_to_groups(pool)
    assert {
        group.fingerprint: group for group in (await inspector.error_groups()).items if group.text != "e"
    } == after


@pytest.mark.parametrize("is_added", [True, False])
async def test_burst_of_one_cause_changes_no_other_group(
    inspector: Inspector, pool: asyncpg.Pool, world: World, is_added: bool
) -> None:
    await world.jobs(
        400,
        "billing.charge",
        status="failed",
        ended=lambda n: -20 * HOUR + (n - 1) * 2 * MINUTE,
        error_message="CardDeclined: card of account {} declined".format,
    )
    await pool.execute(
        "INSERT INTO scheduler_failures (fingerprint, job_name, text, status, jobs, at, job_id)"
        " SELECT 'burst', 'webhook', 'UpstreamError: 502 from host #', 'failed', 20, now(), n::text"
        " FROM generate_series(1, 1500) AS n"
    )
    if is_added:
        await add_to_groups(pool)
    groups = await inspector.error_groups(since=datetime.now(UTC) - timedelta(days=1))
    counts = {group.job_name: group for group in groups.items}
    assert (counts["webhook"].count, counts["billing.charge"].count) == (30_000, 400)
    age = datetime.now(UTC) - counts["billing.charge"].first_at
    assert timedelta(hours=20) <= age < timedelta(hours=20, minutes=5)
    assert not groups.is_capped


async def test_error_groups_reject_mistakes(inspector: Inspector, pool: asyncpg.Pool) -> None:
    with pytest.raises(ValueError, match="limit"):
        await inspector.error_groups(limit=0)
    with pytest.raises(ValueError, match="since"):
        await inspector.error_groups(since=datetime(2026, 11, 21))  # noqa: DTZ001 - the mistake


@each_case(
    ("error", "text"),
    [
        ("KeyError: 7", "KeyError: #"),
        ("no row 12,5 at 10:30:05", "no row # at #"),
        ("at 0xDEADbeef", "at #"),
        ("job 0190a3b2-1c2d-7000-8000-0123456789ab failed", "job # failed"),
        ("commit deadbee1f00d", "commit #"),
        ("the feedbeef facade", "the feedbeef facade"),
        ("UpstreamError: 502 Bad Gateway in 31 ms", "UpstreamError: 502 Bad Gateway in # ms"),
        (
            "HTTPError: 500 Server Error for url: http://a:8080",
            "HTTPError: 500 Server Error for url: http://a:#",
        ),
        ("HTTP Error 404: Not Found", "HTTP Error 404: Not Found"),
        ("HTTP/1.1 503", "HTTP/1.1 503"),
        ("status code 429, 7 left", "status code 429, # left"),
        ("ValueError: 550 5.1.1 mailbox unavailable", "ValueError: 550 5.1.1 mailbox unavailable"),
        ("SMTPDataError: (554, b'5.7.1 refused 12')", "SMTPDataError: (554, b'5.7.1 refused #')"),
        ("SMTPReplyError: 421 Busy, 30 s", "SMTPReplyError: 421 Busy, # s"),
        ("no route to 5.1.1.7, 5.1.123, 12.5.1.1", "no route to #, #, #"),
        ("ValueError: 412 rows left", "ValueError: # rows left"),
        ("card of account 502 declined", "card of account # declined"),
        ("4502 Bad Gateways, 0.502 Bad ones", "# Bad Gateways, # Bad ones"),
        ("  first\nsecond", "first"),
        ("", ""),
        ("x" * 500, "x" * 200),
    ],
)
def test_normalized_error_has_no_numbers_and_ids(error: str, text: str) -> None:
    assert normalized(error) == text


def test_fingerprint_tells_names_and_texts_apart() -> None:
    assert len({fingerprint_of(*each) for each in (("a", "x"), ("b", "x"), ("a", "y"))}) == 3
    assert len(fingerprint_of("a", "x")) == 12


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (9_500, "9,500"), (45_000, "45 k"), (1_250_000, "1.2 M"), (98e5, "9.8 M"), (3e9, "3.0 G")],
)
def test_rounded_number(number: float, text: str) -> None:
    assert rounded(int(number)) == text
