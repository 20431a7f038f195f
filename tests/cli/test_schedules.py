"""The groups schedules and workers, against real rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import jsonschema
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.triggers import Cron
from tests.cli.conftest import Ran, Run, schema
from tests.conftest import Connection, run_on
from tests.support.inside import ExitCode
from tests.support.world import HOUR, World, populate

START = datetime(2099, 1, 1, tzinfo=UTC)


@pytest.fixture
def on(call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run a command on a database with two schedules and a worker."""

    async def fill(world: World) -> None:
        scheduler = Scheduler(world.pool)
        for name in ("daily", "report"):
            await scheduler.schedules.add("reports.send", Cron("30 2 * * *"), schedule_id=name, start=START)
        await world.worker(
            names=None, pid=7, version="1.0", max_concurrent_jobs=25, running_jobs=0, lease=HOUR
        )

    populate(dsn, fill)
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
    monkeypatch.setenv("PG_SCHEDULER_TZ", "utc")
    return call


def test_schedules_are_listed_by_page_and_shown(on: Callable[..., Ran]) -> None:
    first = json.loads(on("schedules", "list", "--limit", "1", "-o", "json").out)
    jsonschema.validate(first, schema("list"))
    assert (first["items"][0]["schedule_id"], first["next"]) == ("daily", "daily")
    assert [
        line["schedule_id"] for line in on("schedules", "list", "--after", "daily").checked("schedule")
    ] == ["report"]
    jsonschema.validate(json.loads(on("schedules", "show", "report").out), schema("shown_schedule"))
    assert "2099-01-01 02:30:00+00:00" in on("schedules", "list", "-o", "table").out
    assert on("schedules", "list", "-o", "table").out.splitlines()[1].split()[1] == "reports.send"


def test_retired_schedule_is_marked_in_lists(on: Callable[..., Ran], dsn: str) -> None:
    async def retire(connection: Connection) -> None:
        await connection.execute(
            "UPDATE scheduler_schedules SET retired_at = now() WHERE schedule_id = 'daily'"
        )

    run_on(dsn, retire)
    for form in ("table", "wide"):
        lines = on("schedules", "list", "-o", form).out.splitlines()[1:]
        assert [" retired " in line for line in lines] == [True, False]
    rows = on("schedules", "list").checked("schedule")
    assert [row["retired_at"] is None for row in rows] == [False, True]
    assert rows[0]["next_fire_at"] == rows[1]["next_fire_at"]
    shown = on("schedules", "show", "daily", "-o", "table").out
    assert "retired_at" in shown
    assert "next fire time there" not in shown
    assert "2099-01-01 02:30:00+00:00" not in shown
    loads = on("schedules", "calendar", "--from", "2099-01-01", "--days", "2").checked("hour_load")
    assert {schedule_id for load in loads for schedule_id in load["schedules"]} == {"report"}


def test_schedule_is_paused_resumed_and_triggered(on: Callable[..., Ran]) -> None:
    assert on("schedules", "pause", "report", "--note", "holiday").checked("action")[0]["result"] == "paused"
    shown = json.loads(on("schedules", "show", "report").out)
    assert (shown["note"], shown["paused_at"] is None) == ("holiday", False)
    assert on("schedules", "resume", "report", "--from", "pause").checked("action")[0]["result"] == "resumed"
    again = on("schedules", "resume", "report")
    assert (again.code, "schedule 'report' is not paused" in again.err) == (ExitCode.REFUSED, True)
    on("schedules", "pause", "report")
    assert on("schedules", "resume", "report", "--from", "2099-01-01T00:00:00+00:00").code == 0
    on("schedules", "pause", "report")
    assert on("schedules", "resume", "report", "--from", "1x").code == ExitCode.USAGE
    assert on("schedules", "resume", "report", "--from", "2099-99-99").code == ExitCode.USAGE
    assert on("schedules", "resume", "report").code == 0
    assert json.loads(on("schedules", "show", "report").out)["paused_at"] is None
    (action,) = on("schedules", "trigger", "report").checked("action")
    assert json.loads(on("jobs", "show", action["job_id"]).out)["schedule_id"] == "report"


def test_show_has_the_last_results_and_changes(on: Callable[..., Ran]) -> None:
    on("schedules", "update", "daily", "--cron", "30 8 * * *", "--tz", "Europe/Berlin")
    (action,) = on("schedules", "trigger", "daily").checked("action")
    shown = json.loads(on("schedules", "show", "daily").out)
    jsonschema.validate(shown, schema("shown_schedule"))
    assert shown["timezone"] == "Europe/Berlin"
    (result,) = shown["results"]
    assert (result["job_id"], result["is_manual"], result["status"]) == (action["job_id"], True, "pending")
    assert [each["action"] for each in shown["changes"]][:2] == ["trigger_schedule", "update_schedule"]
    assert "described" in [each["key"] for each in shown["changes"][1]["changes"]]
    on("schedules", "update", "daily", "--cron", "0 9 * * *")
    assert json.loads(on("schedules", "show", "daily").out)["timezone"] == "Europe/Berlin", "it stays"
    table = on("schedules", "show", "daily", "-o", "table").out
    assert "next fire time there" in table
    assert f"pending    {action['job_id']} (requested)" in table
    assert "update_schedule by " in table


def test_show_has_the_last_fire_time_in_both_zones(on: Callable[..., Ran], dsn: str) -> None:
    async def fire(connection: Connection) -> None:
        await connection.execute(
            "UPDATE scheduler_schedules SET last_fire_at = '2099-01-02 02:30Z' WHERE schedule_id = 'daily'"
        )

    on("schedules", "update", "daily", "--cron", "30 8 * * *", "--tz", "Asia/Tokyo")
    run_on(dsn, fire)
    table = on("schedules", "show", "daily", "-o", "table", "--tz", "America/New_York").out
    assert "last_fire_at          2099-01-01 21:30:00-05:00" in table
    assert "last fire time there  Fri 2099-01-02 11:30:00 JST" in table


def test_pause_until_a_time_replaces_the_pause_and_is_listed(on: Callable[..., Ran]) -> None:
    on("schedules", "pause", "report")
    on("schedules", "pause", "report", "--until", "2h", "--from", "pause", "--note", "moving")
    shown = json.loads(on("schedules", "show", "report").out)
    assert (shown["note"], shown["keeps_fire_times"]) == ("moving", True)
    left = datetime.fromisoformat(shown["paused_until"]) - datetime.now(UTC)
    assert timedelta(minutes=119) < left <= timedelta(hours=2)
    assert "UNTIL" in on("schedules", "list", "-o", "wide").out
    assert on("schedules", "pause", "report", "--from", "pause").code == ExitCode.USAGE
    past = on("schedules", "pause", "report", "--until", "2020-01-01T00:00")
    assert (past.code, "2020" in past.err) == (ExitCode.USAGE, True)
    on("schedules", "resume", "report")
    assert json.loads(on("schedules", "show", "report").out)["paused_until"] is None


def test_several_schedules_are_paused_resumed_and_triggered(on: Callable[..., Ran]) -> None:
    asked = on("schedules", "pause", "--all")
    assert (asked.code, "Pause 2 schedules?" in asked.err) == (ExitCode.REFUSED, True)
    paused = on("schedules", "pause", "--task", "reports.send", "--yes")
    assert [row["subject"] for row in paused.checked("action")] == ["daily", "report"]
    resumed = on("schedules", "resume", "daily", "report")
    assert [row["result"] for row in resumed.checked("action")] == ["resumed", "resumed"]
    none_left = on("schedules", "resume", "--all", "--yes")
    assert (none_left.code, none_left.out) == (0, "")
    triggered = on("schedules", "trigger", "daily", "report").checked("action")
    assert len({row["job_id"] for row in triggered}) == 2
    assert on("schedules", "trigger", "daily", "nothing").code == ExitCode.NOT_FOUND
    for arguments in ((), ("daily", "--all"), ("--all", "--task", "reports.send")):
        assert on("schedules", "pause", *arguments).code == ExitCode.USAGE


@pytest.mark.slow
def test_schedules_of_a_search_are_paused_resumed_and_triggered(on: Callable[..., Ran]) -> None:
    for number in range(11):
        options = ("--id", f"mail:{number:02}", "--start", "2099-01-01")
        on("schedules", "add", "mail.send", "--every", "1h", *options)
    where = ("--where", "task:mail.* -id:mail:03")
    asked = on("schedules", "pause", *where[:1], "task:mail.*")
    assert (asked.code, asked.out) == (ExitCode.REFUSED, "")
    assert "Pause 11 schedules, 10 of them above?" in asked.err
    assert ("mail:09" in asked.err, "mail:10" in asked.err) == (True, False)
    dry = on("schedules", "pause", *where, "--dry-run").checked("action")
    assert [(row["subject"], row["result"]) for row in dry] == [
        (f"mail:{number:02}", "would be paused") for number in range(11) if number != 3
    ]
    assert on("schedules", "resume", "--where", "paused:yes", "--yes").out == ""
    assert len(on("schedules", "pause", *where, "--yes").checked("action")) == 10
    resumed = on("schedules", "resume", "--where", "id:mail:0*,report", "--yes").checked("action")
    assert len(resumed) == 9
    triggered = on("schedules", "trigger", "--where", "paused:yes", "--yes").checked("action")
    assert [row["subject"] for row in triggered] == ["mail:10"]
    assert on("schedules", "trigger", "report", "--dry-run").checked("action")[0]["job_id"] is None
    assert len(on("jobs", "list", "-o", "ids").out.split()) == 1
    for wrong, message in (("", "is empty"), ("tasks:a", "did you mean 'task:'?")):
        ran = on("schedules", "pause", "--where", wrong, "--yes")
        assert (ran.code, message in ran.err) == (ExitCode.USAGE, True), ran.err
    assert on("schedules", "pause", "daily", "--where", "paused:no").code == ExitCode.USAGE


@pytest.mark.parametrize("command", ["pause", "resume", "trigger"])
def test_command_that_stops_halfway_reports_what_it_changed(
    command: str, on: Callable[..., Ran], dsn: str
) -> None:
    if command == "resume":
        on("schedules", "pause", "--all", "--yes")

    async def refuse(connection: Connection) -> None:
        table = "scheduled_jobs" if command == "trigger" else "scheduler_schedules"
        await connection.execute(f"""
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE 'no rights' USING ERRCODE = 'insufficient_privilege'; END $$;
            CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW
                WHEN (to_jsonb(NEW)::text ~ '"report"') EXECUTE FUNCTION refuse()
        """)

    run_on(dsn, refuse)
    ran = on("schedules", command, "daily", "report")
    assert ran.code == ExitCode.REFUSED, ran.err
    assert [row["subject"] for row in ran.checked("action")] == ["daily"]
    assert "stopped at 'report'; 1 schedule not " in ran.err


def test_removal_that_stops_halfway_is_repeated(on: Callable[..., Ran], dsn: str) -> None:
    on("schedules", "trigger", "report")
    trigger = """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE 'no rights' USING ERRCODE = 'insufficient_privilege'; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON scheduled_jobs FOR EACH ROW EXECUTE FUNCTION refuse()
    """

    def execute(statement: str) -> None:
        async def run(connection: Connection) -> None:
            await connection.execute(statement)

        run_on(dsn, run)

    execute(trigger)
    ran = on("schedules", "remove", "report", "--cancel-jobs")
    assert (ran.code, ran.out) == (ExitCode.REFUSED, "")
    assert "schedule 'report' may be paused and some of its jobs cancelled; repeat the command" in ran.err
    execute("DROP TRIGGER refuse ON scheduled_jobs")
    assert on("schedules", "remove", "report", "--cancel-jobs").code == 0
    assert on("jobs", "list", "status:pending", "-o", "ids").out == ""


def test_preview_prints_the_next_fire_times(on: Callable[..., Ran]) -> None:
    ran = on("schedules", "preview", "daily", "-n", "2")
    assert [line["fire_time"] for line in ran.checked("fire_time")] == [
        "2099-01-01T02:30:00Z",
        "2099-01-02T02:30:00Z",
    ]


def test_preview_of_a_trigger_needs_no_database(call: Run) -> None:
    ran = call("schedules", "preview", "--cron", "0 8 * * 1-5", "--tz", "Europe/Berlin", "-n", "3")
    assert (ran.code, len(ran.checked("fire_time"))) == (0, 3), ran.err
    assert "Europe/Berlin" in ran.err
    shown = call("schedules", "preview", "--every", "15m", "-o", "table", "-n", "2")
    assert "every 15 minutes" in shown.err


@pytest.mark.parametrize(
    ("zones", "expected"),
    [
        (["America/New_York"], "2099-07-14T06:30:00Z"),
        (["utc", "--tz", "America/New_York"], "2099-07-14T06:30:00Z"),
        (["utc"], "2099-07-14T02:30:00Z"),
        (["local"], "2099-07-14T04:30:00Z"),
    ],
)
def test_times_of_all_options_are_in_the_zone_of_the_command(
    on: Callable[..., Ran],
    monkeypatch: pytest.MonkeyPatch,
    set_zone: Callable[[str], None],
    zones: list[str],
    expected: str,
) -> None:
    variable, *option = zones
    # This zone of POSIX has no name by which a trigger could store it.
    set_zone("ABC+2")
    monkeypatch.setenv("PG_SCHEDULER_TZ", variable)
    at = "2099-07-14T02:30"
    # The stored schedule has a cron expression of Tokyo, whose zone is no zone of a time.
    on("schedules", "add", "reports.send", "--cron", "0 9 * * *", "--id", "tokyo", "--tz", "Asia/Tokyo")
    for trigger in (("--at", at), ("--trigger", f"at {at}"), ("--trigger", f" AT {at}")):
        ran = on("schedules", "update", "tokyo", *trigger, "--start", at, "--end", at, *option)
        (row,) = ran.checked("schedule")
        assert (row["next_fire_at"], row["start"], row["end"]) == (expected,) * 3
        previewed = on("schedules", "preview", *trigger, *option).checked("fire_time")
        assert [line["fire_time"] for line in previewed] == [expected]


def test_preview_marks_the_fire_times_that_clock_changes_move(on: Callable[..., Ran]) -> None:
    on(
        "schedules",
        "update",
        "daily",
        "--cron",
        "30 2 * * *",
        "--start",
        "2099-03-28",
        "--tz",
        "Europe/Berlin",
    )
    lines = on("schedules", "preview", "daily", "-n", "3").checked("fire_time")
    assert [line["fire_time"] for line in lines] == [
        "2099-03-28T01:30:00Z",
        "2099-03-29T01:00:00Z",
        "2099-03-30T00:30:00Z",
    ]
    assert [line["note"] for line in lines] == [
        None,
        "02:30 does not exist on 2099-03-29 in Europe/Berlin; it fires at 2099-03-29 03:00",
        None,
    ]


def test_calendar_counts_the_fire_times_of_each_hour(on: Callable[..., Ran]) -> None:
    on("schedules", "add", "reports.send", "--cron", "*/20 2 * * *", "--id", "often", "--start", "2099-01-01")
    on("schedules", "add", "reports.send", "--every", "1s", "--id", "each-second", "--start", "2099-01-01")
    ran = on("schedules", "calendar", "--week", "--from", "2099-01-01")
    rows = ran.checked("hour_load")
    assert [row["hour"] for row in rows] == [f"2099-01-0{day}T02:00:00Z" for day in range(1, 8)]
    assert (rows[0]["fires"], rows[0]["schedules"]) == (5, ["daily", "often", "report"])
    assert (rows[0]["most"], rows[0]["most_at"]) == (2, "2099-01-01T02:30:00Z")
    assert "they fire too often to be counted: each-second" in ran.err
    day = on("schedules", "calendar", "--from", "2099-01-01", "-o", "table")
    assert day.out.splitlines()[1].split()[2:4] == ["5", "█" * 10]


@pytest.mark.parametrize(
    "arguments",
    [(), ("daily", "--cron", "* * * * *"), ("--cron", "nonsense"), ("--cron", "* * * * *", "--every", "1h")],
)
def test_preview_needs_one_schedule_or_trigger(call: Run, arguments: tuple[str, ...]) -> None:
    assert call("schedules", "preview", *arguments).code == ExitCode.USAGE


def test_schedule_is_added_updated_and_removed(on: Callable[..., Ran]) -> None:
    options = ("--id", "weekly", "--kwargs", '{"to": "ada"}', "--start", "2099-01-01", "--overlap", "skip")
    added = on("schedules", "add", "reports.send", "--cron", "0 8 * * 1", *options, "--tz", "Europe/Berlin")
    assert added.code == 0, added.err
    (row,) = added.checked("schedule")
    assert (row["schedule_id"], row["owner"], row["start"]) == ("weekly", "api", "2098-12-31T23:00:00Z")
    assert row["next_fire_at"] == "2099-01-05T07:00:00Z"
    assert "Europe/Berlin" in row["described"]
    again = on("schedules", "add", "reports.send", "--every", "1h", "--id", "weekly")
    assert again.code == ExitCode.REFUSED
    assert on("schedules", "add", "reports.send").code == ExitCode.USAGE
    updated = on("schedules", "update", "weekly", "--every", "2h", "--start", "none", "--max-runs", "3")
    (changed,) = updated.checked("schedule")
    assert (changed["described"], changed["start"], changed["max_runs"]) == ("every 2 hours", None, 3)
    assert changed["version"] > row["version"]
    late = on("schedules", "update", "weekly", "--max-runs", "4", "--if-version", str(row["version"]))
    assert late.code == ExitCode.REFUSED
    assert on("schedules", "update", "weekly").code == ExitCode.USAGE
    removed = on("schedules", "remove", "weekly", "--cancel-jobs")
    assert removed.checked("action")[0]["result"] == "removed"
    assert on("schedules", "show", "weekly").code == ExitCode.NOT_FOUND


def test_schedule_of_code_is_not_updated_and_its_removal_is_explained(
    on: Callable[..., Ran], dsn: str
) -> None:
    async def declare(connection: Connection) -> None:
        await connection.execute("UPDATE scheduler_schedules SET owner = 'code' WHERE schedule_id = 'daily'")

    run_on(dsn, declare)
    refused = on("schedules", "update", "daily", "--every", "1h")
    assert (refused.code, refused.out) == (ExitCode.REFUSED, "")
    removed = on("schedules", "remove", "daily")
    assert removed.code == 0
    assert "schedule 'daily' is removed; a worker whose code still declares it adds it again" in removed.err


def test_backfill_enqueues_a_job_for_each_fire_time_without_one(on: Callable[..., Ran]) -> None:
    on("schedules", "update", "daily", "--start", "2020-01-01")
    span = ("schedules", "backfill", "daily", "--from", "2020-01-01", "--to", "2020-01-04")
    dry = on(*span, "--dry-run")
    assert [line["fire_time"] for line in dry.checked("fire_time")] == [
        f"2020-01-0{day}T02:30:00Z" for day in (1, 2, 3)
    ]
    first = on(*span[:-1], "2020-01-02")
    assert (first.code, len(first.checked("action"))) == (0, 1), first.err
    rest = on(*span, "--rate", "1000/s")
    assert len(rest.checked("action")) == 2
    assert "2 jobs enqueued for 3 fire times" in rest.err
    job = json.loads(on("jobs", "show", rest.lines[0]["job_id"]).out)
    assert (job["schedule_id"], job["fire_time"]) == ("daily", "2020-01-02T02:30:00Z")


def test_backfill_of_a_span_that_ends_before_it_starts_exits_with_2(on: Callable[..., Ran]) -> None:
    ran = on("schedules", "backfill", "daily", "--from", "2d", "--to", "5d")
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert "--to 5d is before --from 2d" in ran.err


def test_backfill_refuses_more_fire_times_than_its_limit(on: Callable[..., Ran]) -> None:
    on("schedules", "update", "daily", "--start", "2020-01-01")
    ran = on("schedules", "backfill", "daily", "--from", "2020-01-01", "--to", "2020-01-04", "--limit", "2")
    assert (ran.code, ran.out) == (ExitCode.REFUSED, "")
    assert "more than --limit 2 fire times" in ran.err


@pytest.mark.parametrize("command", ["show", "pause", "resume", "trigger", "preview", "remove"])
def test_unknown_schedule_exits_with_3(on: Callable[..., Ran], command: str) -> None:
    ran = on("schedules", command, "nothing")
    assert (ran.code, ran.out) == (ExitCode.NOT_FOUND, "")
    assert "schedule 'nothing' does not exist" in ran.err


def test_task_in_place_of_a_schedule_suggests_its_schedules(on: Callable[..., Ran]) -> None:
    ran = on("schedules", "show", "reports.send")
    assert ran.code == ExitCode.NOT_FOUND
    assert "schedules of the task 'reports.send': daily, report" in ran.err


@pytest.mark.parametrize("command", ["show", "pause", "remove", "update"])
def test_misspelt_schedule_is_corrected(on: Callable[..., Ran], command: str) -> None:
    options = ("--every", "1h") if command == "update" else ()
    near = on("schedules", command, "dayly", *options)
    assert near.code == ExitCode.NOT_FOUND
    assert "schedule 'dayly' does not exist; did you mean daily?" in near.err
    far = on("schedules", command, "zzz", *options)
    assert "schedule 'zzz' does not exist; pg-scheduler schedules list lists them" in far.err


@pytest.mark.parametrize("command", ["pause", "resume", "trigger"])
@pytest.mark.parametrize("option", ["--yes", "--dry-run"])
def test_task_without_schedules_is_not_found(on: Callable[..., Ran], command: str, option: str) -> None:
    ran = on("schedules", command, "--task", "report.send", option)
    assert (ran.code, ran.out) == (ExitCode.NOT_FOUND, "")
    assert "no schedule of the task 'report.send'; did you mean reports.send?" in ran.err
    ran = on("schedules", command, "--where", "task:nothing", option)
    assert (ran.code, ran.out) == (0, "")
    assert "no schedule matches" in ran.err


def test_task_whose_schedules_are_all_paused_is_no_error(on: Callable[..., Ran]) -> None:
    on("schedules", "pause", "--all", "--yes")
    ran = on("schedules", "pause", "--task", "reports.send", "--yes")
    assert (ran.code, ran.out) == (0, "")
    assert "no schedule matches" in ran.err


def test_conflict_of_schedules_names_the_options(on: Callable[..., Ran]) -> None:
    ran = on("schedules", "add", "reports.send", "--every", "1h", "--id", "daily")
    assert "'daily' already exists; pass another --id, or pass --on-conflict ignore or replace" in ran.err
    ran = on("schedules", "update", "daily", "--every", "1h", "--if-version", "7")
    assert (ran.code, "read it again with pg-scheduler schedules show daily" in ran.err) == (4, True)


def test_missing_tables_name_the_command_that_makes_them(on: Callable[..., Ran]) -> None:
    ran = on("schedules", "list", "--schema", "nosuch")
    assert ran.code == ExitCode.SCHEMA
    assert "; run pg-scheduler --schema nosuch migrate" in ran.err
    assert "initialize_db" not in ran.err


def test_removal_accepts_yes(on: Callable[..., Ran]) -> None:
    assert on("schedules", "remove", "daily", "--yes").checked("action")[0]["result"] == "removed"


def test_workers_are_listed(on: Callable[..., Ran]) -> None:
    (worker,) = on("workers", "list").checked("worker")
    assert (worker["worker_id"], worker["is_alive"]) == ("w1", True)
    shown = on("workers", "list", "-o", "table").out.splitlines()[1].split()
    assert shown[:5] == ["w1", "yes", "-", "0", "25"]
