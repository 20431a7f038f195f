"""The group limits, against rows of workers and blocked jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cli.conftest import Ran, Run
from tests.conftest import Connection, run_on
from tests.support import inside
from tests.support.golden import golden
from tests.support.inside import ExitCode
from tests.support.world import DAY, HOUR, SECOND, World, populate

GOLDEN = Path(__file__).with_name("golden")
CAPACITY = {"names": None, "max_concurrent_jobs": 25, "running_jobs": 0}
LIMITS = [
    {
        "task": "charge",
        "name": "stripe",
        "by_key": False,
        "max_running": 20,
        "max_starts": None,
        "per_s": None,
    },
    {
        "task": "refund",
        "name": "stripe",
        "by_key": False,
        "max_running": 20,
        "max_starts": None,
        "per_s": None,
    },
    {
        "task": "charge",
        "name": "account",
        "by_key": True,
        "max_running": 1,
        "max_starts": 5,
        "per_s": 10.0,
        "spread": True,
    },
]


def execute(dsn: str, statement: str) -> None:
    async def run(connection: Connection) -> None:
        await connection.execute(statement)

    run_on(dsn, run)


@pytest.fixture
def on(call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run a command on a database with two limits, running attempts and blocked jobs."""

    async def fill(world: World) -> None:
        await world.worker("w1", settings={"limits": LIMITS, "other": 1}, lease=HOUR, **CAPACITY)
        await world.worker("w2", settings={"limits": [], "other": 1}, lease=-SECOND, **CAPACITY)
        await world.jobs(2, "charge", job_id="run:{}".format, status="running")
        for key, job_id, keep_s in (
            ("stripe:", "run:1", 0),
            ("stripe:", "run:2", 0),
            ("account:ada", "run:1", 600),
            ("account:ada", "old", 600),
            ("account:cid", "run:2", 0),
            ("accounts:dan", "run:2", 0),
        ):
            await world.start(f"limit:{key}", job_id, keep_s=keep_s)
        await world.start("limit:account:past", "old", at=-DAY, keep_s=1)
        for number, key in enumerate(("ada", "ada", "ada", "bob", "bob"), 1):
            await world.job(f"wait:{number}", "charge", blocked_on=f"limit:account:{key}")

    populate(dsn, fill)
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
    return call


def test_lists_announce_counts_that_stopped_at_a_bound(
    on: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, blocked_rows=4)
    inside.replace(monkeypatch, backlog_rows=1)
    waiting = "4+ waiting jobs among the first 20,000 blocked jobs and 500 keys"
    for arguments, summary in (
        (("limits", "list"), f"2 limits, {waiting}"),
        (("limits", "show", "account"), f"3+ keys, {waiting}"),
        (("tasks", "list"), "1+ tasks, 0 paused, 1+ running, waiting 4+: due 0+, blocked 4+"),
    ):
        ran = on(*arguments, "-o", "json")
        document = json.loads(ran.out)
        assert (document["is_capped"], document["summary"], ran.err) == (True, summary, f"{summary}\n")


def test_limits_are_listed_with_their_use(on: Callable[..., Ran]) -> None:
    account, stripe = on("limits", "list").checked("limit")
    assert account == {
        "v": 1, "name": "account", "tasks": ["charge"], "by_key": True, "spread": True, "max_running": 1,
        "max_starts": 5, "per_s": 10.0, "running": None, "starts": None, "waiting": 5,
    }  # fmt: skip
    assert (stripe["tasks"], stripe["running"], stripe["waiting"]) == (["charge", "refund"], 2, 0)
    assert stripe["spread"] is False


def test_keys_of_a_limit_are_shown_with_most_waiting_jobs_first(on: Callable[..., Ran]) -> None:
    ran = on("limits", "show", "account")
    rows = ran.checked("limit_key")
    assert [(row["key"], row["running"], row["starts"], row["waiting"]) for row in rows] == [
        ("ada", 1, 2, 3),
        ("bob", 0, 0, 2),
        ("cid", 1, 0, 0),
    ]
    assert {(row["max_running"], row["max_starts"], row["per_s"]) for row in rows} == {(1, 5, 10.0)}
    assert ran.err == "3 keys, 5 waiting jobs\n"
    (row,) = on("limits", "show", "stripe").checked("limit_key")
    assert (row["key"], row["running"], row["max_running"], row["waiting"]) == ("", 2, 20, 0)


def test_key_in_use_is_shown_while_no_job_waits(on: Callable[..., Ran], dsn: str) -> None:
    execute(dsn, "DELETE FROM scheduled_jobs WHERE blocked_on <> ''")
    rows = on("limits", "show", "account").checked("limit_key")
    assert [(row["key"], row["running"], row["waiting"]) for row in rows] == [("ada", 1, 0), ("cid", 1, 0)]
    execute(dsn, "DELETE FROM scheduler_starts")
    ran = on("limits", "show", "account")
    assert (ran.code, ran.out, ran.err) == (0, "", "0 keys, 0 waiting jobs\n")


def test_keys_beyond_the_bound_are_announced(on: Callable[..., Ran], dsn: str) -> None:
    populate(dsn, lambda world: world.start("limit:account:key{}".format, "run:2", count=300))
    ran = on("limits", "show", "account", "-o", "json")
    document = json.loads(ran.out)
    assert (len(document["items"]), document["is_capped"]) == (200, True)
    assert ran.err == "200+ keys, 5 waiting jobs\n"


def test_unknown_limit_exits_with_3_and_suggests_the_nearest(on: Callable[..., Ran]) -> None:
    ran = on("limits", "show", "strip")
    assert (ran.code, ran.out) == (ExitCode.NOT_FOUND, "")
    assert "no live worker declares the limit 'strip'; did you mean stripe?" in ran.err


@pytest.mark.parametrize(("name", "arguments"), [("limits", ("list",)), ("limit", ("show", "account"))])
@pytest.mark.parametrize("width", [80, 200])
def test_limit_table_fits_the_width(
    on: Callable[..., Ran], width: int, name: str, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    ran = on("limits", *arguments, "-o", "table" if width == 80 else "wide")
    assert ran.out == golden(GOLDEN / f"{name}-{width}.txt", ran.out)
    assert max(map(len, ran.out.splitlines())) <= width


# -- shares ------------------------------------------------------------------------------------------------


@pytest.fixture
def shared(on: Callable[..., Ran], dsn: str) -> Callable[..., Ran]:
    """Run a command on a database that also has two shares."""

    async def fill(world: World) -> None:
        shares = [{"task": "export", "name": "exports"}, {"task": "mail", "name": "mail"}]
        await world.worker("w3", settings={"shares": shares}, lease=HOUR, **CAPACITY)
        for tenant, jobs in (("acme", 3), ("beta", 1)):
            await world.jobs(jobs, "export", blocked_on=f"share:exports:{tenant}")
        await world.start("share:exports:beta", "run:1", attempt=0, keep_s=1e9)
        await world.start("fed:exports:beta", "", attempt=0, at=datetime(2026, 1, 2, tzinfo=UTC))

    populate(dsn, fill)
    return on


def test_shares_are_listed_with_their_tenants_and_jobs(shared: Callable[..., Ran]) -> None:
    ran = shared("limits", "shares")
    assert ran.checked("share") == [
        {
            "v": 1,
            "name": "exports",
            "tasks": ["export"],
            "tenants": 2,
            "running": 1,
            "admitted": 0,
            "waiting": 4,
        },
        {"v": 1, "name": "mail", "tasks": ["mail"], "tenants": 0, "running": 0, "admitted": 0, "waiting": 0},
    ]
    summary = "2 shares, 2 tenants, 1 running, 0 admitted, 4 waiting"
    assert ran.err == f"{summary}\n"
    listed = shared("limits", "list")
    assert [each["name"] for each in listed.checked("limit")] == ["account", "stripe"]
    assert listed.err.endswith(f"\n{summary}: pg-scheduler limits shares\n")
    assert shared("limits", "shares", "-o", "ids").out == "exports\nmail\n"
    assert shared("limits", "shares", "-o", "csv").out.startswith(
        "name,tasks,tenants,running,admitted,waiting\nexports,"
    )
    document = json.loads(shared("limits", "shares", "-o", "json").out)
    assert (len(document["items"]), document["is_capped"], document["summary"]) == (2, False, summary)


def test_tenants_of_a_share_are_listed_with_most_waiting_jobs_first(shared: Callable[..., Ran]) -> None:
    ran = shared("limits", "tenants", "exports")
    acme, beta = ran.checked("tenant")
    assert acme == {
        "v": 1, "name": "exports", "key": "acme", "running": 0, "admitted": 0, "waiting": 3,
        "last_turn_at": None,
    }  # fmt: skip
    assert (beta["running"], beta["last_turn_at"]) == (1, "2026-01-02T00:00:00Z")
    assert ran.err == "2 tenants, 1 running, 0 admitted, 4 waiting\n"
    assert shared("limits", "tenants", "exports", "-o", "ids").out == "acme\nbeta\n"
    empty = shared("limits", "tenants", "mail")
    assert (empty.code, empty.out) == (ExitCode.DONE, "")


def test_unknown_share_exits_with_3_and_suggests_the_nearest(shared: Callable[..., Ran]) -> None:
    ran = shared("limits", "tenants", "export")
    assert (ran.code, ran.out) == (ExitCode.NOT_FOUND, "")
    assert "no live worker declares the share 'export', and no job waits in it; did you mean exports?" in (
        ran.err
    )


@pytest.mark.parametrize(
    ("name", "arguments"), [("shares", ("shares",)), ("tenants", ("tenants", "exports"))]
)
@pytest.mark.parametrize("width", [80, 200])
def test_table_of_shares_fits_the_width(
    shared: Callable[..., Ran],
    width: int,
    name: str,
    arguments: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("PG_SCHEDULER_TZ", "utc")
    ran = shared("limits", *arguments, "-o", "table" if width == 80 else "wide")
    assert ran.out == golden(GOLDEN / f"{name}-{width}.txt", ran.out)
