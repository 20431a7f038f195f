"""jobs cancel, retry, delete and move: searches, questions, interrupts and what can be continued."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.cli.conftest import Ran, Run, schema
from tests.conftest import Connection, run_on
from tests.docs.snippets import ROOT
from tests.support.errors import recount_errors
from tests.support.golden import golden
from tests.support.inside import ExitCode
from tests.support.patience import PATIENCE
from tests.support.world import SECOND, World, populate

GOLDEN = Path(__file__).with_name("golden")
DUE = datetime(2099, 1, 1, tzinfo=UTC)
ENDED = datetime(2026, 1, 1, tzinfo=UTC)

Fill = Callable[..., None]
Query = Callable[[str], Any]


@pytest.fixture
def fill(call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Fill:
    """Insert jobs into the database of the commands."""
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
    monkeypatch.setenv("PG_SCHEDULER_TZ", "utc")

    def insert(count: int, status: str = "pending", prefix: str = "mail:") -> None:
        async def add(world: World) -> None:
            columns: dict[str, Any] = {} if status == "pending" else {"ended": lambda n: ENDED - n * SECOND}
            if status == "failed":
                columns["error_message"] = "SMTPError: no answer after {} s".format
            await world.jobs(
                count,
                "mail.send",
                job_id=lambda n: f"{prefix}{n:05}",
                status=status,
                due=lambda n: DUE + n * SECOND,
                **columns,
            )
            await world.pool.execute("VACUUM ANALYZE scheduled_jobs")

        populate(dsn, add)

    return insert


@pytest.fixture
def query(dsn: str) -> Query:
    """Return the first value of a statement."""

    def fetch(statement: str) -> Any:
        found: list[Any] = []

        async def run(connection: Connection) -> None:
            found.append(await connection.fetchval(statement))

        run_on(dsn, run)
        return found[0]

    return fetch


def summary(ran: Ran) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(ran.out)
    jsonschema.validate(document, schema("bulk"))
    return document


def test_search_changes_every_job_with_records_in_the_name_of_the_user(
    call: Run, fill: Fill, query: Query
) -> None:
    fill(700)
    ran = call("jobs", "cancel", "--where", "name:mail.*", "--yes")
    assert ran.code == 0, ran.err
    document = summary(ran)
    assert (document["action"], document["done"], document["after"]) == ("cancel", 700, None)
    assert "700 done, 0 refused, 0 skipped; searched all of 700 jobs" in ran.err
    assert query("SELECT count(*) FROM scheduled_jobs WHERE status = 'cancelled'") == 700
    assert (
        query("SELECT array_agg((via, actor ~~ '%@%', action)::text) FROM scheduler_audit")
        == ["(cli,t,cancel_jobs)"] * 2
    )


def test_without_yes_the_jobs_are_shown_and_nothing_is_changed(call: Run, fill: Fill, query: Query) -> None:
    fill(700)
    ran = call("jobs", "delete", "--where", "status:pending")
    assert (ran.code, ran.out) == (ExitCode.REFUSED, "")
    assert re.findall(r"^mail:\d+", ran.err, re.MULTILINE) == [f"mail:{n:05}" for n in range(1, 11)]
    assert "500 jobs to delete found, 10 of them above; the search continues" in ran.err
    assert "Delete every job of this search? Nothing was changed; pass --yes to confirm" in ran.err
    assert query("SELECT count(*) FROM scheduled_jobs") == 700


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", ExitCode.REFUSED)])
def test_question_on_a_terminal_is_obeyed(
    call: Run, fill: Fill, query: Query, monkeypatch: pytest.MonkeyPatch, *, answer: str, code: int
) -> None:
    fill(3)
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    ran = call("jobs", "cancel", "--where", "status:pending", "--progress", "off")
    assert ran.code == code, ran.err
    assert query("SELECT count(*) FROM scheduled_jobs WHERE status = 'pending'") == (0 if code == 0 else 3)


class Terminal:
    """A terminal at which someone types."""

    def __init__(self, typed: str) -> None:
        self._typed = typed

    def isatty(self) -> bool:
        return True

    def readline(self, *_: object) -> str:
        return self._typed


def test_search_without_jobs_asks_nothing(call: Run, fill: Fill) -> None:
    fill(1)
    ran = call("jobs", "cancel", "--where", "name:nothing")
    assert (ran.code, summary(ran)["done"]) == (0, 0)
    assert "0 jobs to cancel found" in ran.err


def test_search_that_the_action_leaves_out_states_which_jobs_it_changes(call: Run, fill: Fill) -> None:
    fill(1)
    ran = call("jobs", "cancel", "--where", "status:failed")
    assert (ran.code, summary(ran)["done"]) == (0, 0)
    assert "only pending and running jobs can be cancelled" in ran.err


@pytest.mark.parametrize(
    ("arguments", "done"),
    [
        (("cancel", "--where", "name:mail.*"), 600),
        (("retry", "--where", "name:mail.*"), 40),
        (("delete", "--where", "name:mail.*"), 640),
        (("move", "--where", "name:mail.*", "--to", "+1h"), 600),
        (("cancel", "--where", "name:mail.*", "--limit", "7", "--rate", "1/h"), 7),
    ],
)
def test_dry_run_counts_and_changes_nothing(
    call: Run, fill: Fill, query: Query, arguments: tuple[str, ...], done: int
) -> None:
    fill(600)
    fill(40, "failed", "f")
    state = "SELECT md5(string_agg(job::text, '' ORDER BY job_id)) FROM scheduled_jobs AS job"
    before = query(state)
    ran = call("jobs", *arguments, "--dry-run")
    assert ran.code == 0, ran.err
    document = summary(ran)
    assert (document["done"], document["dry_run"]) == (done, True)
    assert f"jobs to {arguments[0]} found" in ran.err
    assert query(state) == before
    assert query("SELECT count(*) FROM scheduler_audit") == 0


def test_ids_have_an_outcome_each(call: Run, fill: Fill) -> None:
    fill(2)
    fill(1, "completed", "done")
    ids = ("mail:00001", "done00001", "nothing")
    dry = call("jobs", "move", *ids, "--to", "-90m", "--dry-run")
    assert [line["result"] for line in dry.checked("change")] == ["would be moved", "refused", "not found"]
    assert dry.code == ExitCode.NOT_FOUND
    ran = call("jobs", "move", "--to", "2030-01-01T12:00", *ids[:2])
    assert (ran.code, [line["result"] for line in ran.checked("change")]) == (
        ExitCode.REFUSED,
        ["moved", "refused"],
    )
    assert "job mail:00001 is due at 2030-01-01 12:00:00+00:00" in ran.err
    assert json.loads(call("jobs", "show", "mail:00001").out)["execution_time"] == "2030-01-01T12:00:00Z"
    ran = call("jobs", "delete", "mail:00001", "done00001")
    assert (ran.code, [line["result"] for line in ran.checked("change")]) == (0, ["deleted", "deleted"])


def test_limit_leaves_a_position_that_continues(call: Run, fill: Fill, query: Query) -> None:
    fill(9)
    first = call("jobs", "cancel", "--where", "status:pending", "--limit", "4", "--yes")
    after = summary(first)["after"]
    assert f"continue with --after '{after}'" in first.err
    rest = summary(call("jobs", "cancel", "--where", "status:pending", "--after", after, "--yes"))
    assert (rest["done"], rest["after"]) == (5, None)
    assert query("SELECT count(*) FROM scheduled_jobs WHERE status = 'cancelled'") == 9


@pytest.mark.parametrize("width", [80, 200])
def test_table_of_a_search_fits_the_width(
    call: Run, fill: Fill, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(12, "failed")
    monkeypatch.setenv("COLUMNS", str(width))
    ran = call("jobs", "retry", "--where", "status:failed", "--limit", "11", "--dry-run", "-o", "table")
    shown = re.sub(r"(--after +'?)[^\s']+", r"\1...", ran.err + ran.out)
    assert shown == golden(GOLDEN / f"bulk-{width}.txt", shown)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cancel",), "either by their ids or by a search"),
        (("cancel", "a", "--where", "status:pending"), "either by their ids or by a search"),
        (
            ("cancel", "--where", "status:pending", "name:mail.*"),
            "quote the search: --where 'status:pending name:mail.*'",
        ),
        (("cancel", "--where", " ", "--yes"), "status:pending,running"),
        (("cancel", "--where", "stats:x", "--yes"), "did you mean"),
        (("cancel", "--where", "status:pending", "--rate", "fast", "--yes"), "50/s"),
        (("cancel", "--where", "status:pending", "--rate", "0/s", "--yes"), "50/s"),
        (("cancel", "--where", "status:pending", "--limit", "0", "--yes"), "limit"),
        (("cancel", "--where", "status:pending", "--after", "x", "--yes"), "after"),
        (("cancel", "--where", "status:pending", "--progress", "x", "--yes"), "bar, lines, off"),
        (("move", "a", "--to", "soon"), "--to must be a time"),
        (("move", "a", "--to", "+soon"), "--to must be a duration"),
        (("move", "a"), "--to"),
    ],
)
def test_wrong_option_is_a_usage_error(
    call: Run, fill: Fill, query: Query, arguments: tuple[str, ...], message: str
) -> None:
    fill(1)
    ran = call("jobs", *arguments)
    assert (ran.code, ran.out) == (ExitCode.USAGE, ""), ran.err
    assert message in ran.err
    assert query("SELECT count(*) FROM scheduled_jobs WHERE status = 'pending'") == 1


async def recount(world: World) -> None:
    await recount_errors(world.pool)


def test_group_of_errors_is_printed_and_retried(call: Run, dsn: str, fill: Fill, query: Query) -> None:
    fill(12, "failed")
    fill(3, "failed", "\x1b[31m")
    hostile = (
        "UPDATE scheduled_jobs SET error_message = E'Oops: \\x1b[31m%_\\\\ 7', "
        "finished_at = now(), job_name = 'x\u202e' "
        "WHERE job_id !~~ 'mail:%' RETURNING 1"
    )
    query(hostile)
    populate(dsn, recount)
    ran = call("jobs", "errors")
    other, group = ran.checked("error_group")
    assert (other["count"], group["count"]) == (3, 12)
    assert group["text"] == "SMTPError: no answer after # s"
    assert "2 groups, 15 failures since " in ran.err
    assert [line["count"] for line in call("jobs", "errors", "--since", "1h").lines] == [3]
    table = call("jobs", "errors", "-o", "table")
    assert group["fingerprint"] in table.out
    assert not {"\x1b", "\u202e"} & set(table.out + table.err)
    assert call("jobs", "retry", "--group", group["fingerprint"]).code == ExitCode.REFUSED
    document = summary(call("jobs", "retry", "--group", group["fingerprint"], "--yes"))
    assert document["done"] == 12
    where = ("--group", other["fingerprint"], "--where", "status:failed", "--yes")
    assert summary(call("jobs", "retry", *where))["done"] == 3
    assert query("SELECT count(*) FROM scheduled_jobs WHERE status = 'pending'") == 15
    unknown = call("jobs", "retry", "--group", "nothing", "--yes")
    assert (unknown.code, unknown.out) == (ExitCode.NOT_FOUND, "")
    assert "pg-scheduler jobs errors" in unknown.err


def test_jobs_are_retried_from_a_stored_step(call: Run, dsn: str, fill: Fill, query: Query) -> None:
    fill(2, "failed")
    query("UPDATE scheduled_jobs SET options = '{\"steps\": 1}' WHERE job_id = 'mail:00001'")

    async def add_steps(world: World) -> None:
        for number, name in enumerate(("quote", "charge", "ship")):
            await world.step("mail:00001", name, value=1, started=number * SECOND)

    populate(dsn, add_steps)
    ran = call("jobs", "retry", "mail:00001", "mail:00002", "--from", "charge")
    assert (ran.code, [line["result"] for line in ran.lines]) == (ExitCode.REFUSED, ["retried", "refused"])
    assert "from a step only if they have stored it" in ran.err
    assert query("SELECT string_agg(name, ' ') FROM scheduler_steps") == "quote"


def test_errors_state_since_when_they_are_counted(call: Run, dsn: str, fill: Fill) -> None:
    fill(2, "failed")
    populate(dsn, recount)
    ran = call("jobs", "errors", "--limit", "1", "-o", "json")
    assert ran.code == ExitCode.DONE, ran.err
    document = json.loads(ran.out)
    assert document["summary"].startswith("1 group, 2 failures since ")
    assert [each["count"] for each in document["items"]] == [2]


def test_jobs_of_a_group_that_ended_before_the_span_are_not_retried(
    call: Run, dsn: str, fill: Fill, query: Query
) -> None:
    fill(5, "failed")
    query("UPDATE scheduled_jobs SET finished_at = now() WHERE job_id = 'mail:00002' RETURNING 1")
    populate(dsn, recount)
    table = call("jobs", "errors", "--since", "1h", "-o", "table")
    assert "jobs retry --group GROUP --since 1h" in table.err
    (group,) = call("jobs", "errors", "--since", "1h").checked("error_group")
    assert group["count"] == 1
    document = summary(call("jobs", "retry", "--group", group["fingerprint"], "--since", "1h", "--yes"))
    assert document["done"] == 1
    assert query("SELECT job_id FROM scheduled_jobs WHERE status = 'pending'") == "mail:00002"
    again = call("jobs", "retry", "--group", group["fingerprint"], "--since", "1h", "--yes")
    assert summary(again)["done"] == 0, "the failure counts, but the job runs again"
    past = ("--group", group["fingerprint"], "--since", "2099-01-01")
    assert call("jobs", "retry", *past, "--yes").code == ExitCode.NOT_FOUND
    alone = call("jobs", "retry", "--where", "status:failed", "--since", "1h", "--yes")
    assert (alone.code, "--since needs --group" in alone.err) == (ExitCode.USAGE, True)


def test_hostile_ids_are_data_and_do_not_reach_the_terminal(call: Run, fill: Fill) -> None:
    fill(1)
    for hostile in ("\x1b[31m", "'; DROP TABLE scheduled_jobs; --", "\u202e", "%"):
        ran = call("jobs", "delete", "-o", "table", "--", hostile)
        assert ran.code == ExitCode.NOT_FOUND
        assert not {"\x1b", "\u202e"} & set(ran.out + ran.err)
    assert call("jobs", "cancel", "mail:00001").code == 0


@pytest.mark.slow
def test_interrupt_ends_after_a_batch_and_the_rest_can_be_continued(
    call: Run, fill: Fill, query: Query
) -> None:
    fill(30)
    arguments = ("jobs", "move", "--where", "status:pending", "--to", "+1h", "--yes")
    process = subprocess.Popen(
        [sys.executable, "-m", "pg_scheduler", *arguments, "--rate", "10/h"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until_moved(query)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == ExitCode.INTERRUPTED
    assert err.endswith("pg-scheduler: interrupted\n")
    assert "1 done, 0 refused, 0 skipped" in err
    after = json.loads(out)["after"]
    assert f"continue with --after '{after}'" in err
    assert summary(call(*arguments, "--after", after))["done"] == 29
    moved = query("SELECT count(*) FROM scheduled_jobs WHERE execution_time > '2099-01-01 01:00Z'")
    assert moved == 30
    assert query("SELECT max(execution_time) < '2099-01-01 02:00Z' FROM scheduled_jobs"), "none moved twice"


def wait_until_moved(query: Query) -> None:
    """Wait for the first batch of another process."""
    ends_at = time.monotonic() + PATIENCE
    while not query("SELECT count(*) FROM scheduler_audit"):
        assert time.monotonic() < ends_at
        time.sleep(0.02)  # no event comes from the process


@pytest.mark.slow
def test_closed_pipe_is_no_error(fill: Fill, query: Query) -> None:
    fill(600)
    command = (
        f"'{sys.executable}' -m pg_scheduler jobs cancel --where status:pending --yes | true; "
        "echo ${PIPESTATUS[0]}"
    )
    piped = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    assert piped.stdout == "0\n"
    assert "Traceback" not in piped.stderr
    assert query("SELECT count(*) FROM scheduled_jobs WHERE status = 'cancelled'") == 600


FAMILY = """
    UPDATE scheduled_jobs SET options = '{"steps": 1, "definition": "d"}' WHERE job_id = 'pack:00001';
    UPDATE scheduled_jobs SET options = jsonb_build_object('child_of',
        '{"job": "pack:00001", "step": "label", "definition": "d"}'::jsonb) WHERE job_id = 'pack:00001:label';
    INSERT INTO scheduler_steps (job_id, name, kind, value, attempt, started_at, definition)
        VALUES ('pack:00001', 'label', 'child', '["pack:00001:label"]', 1, now(), 'd');
"""


@pytest.fixture
def family(fill: Fill, dsn: str) -> None:
    """Insert the job ``pack:00001`` with a child."""
    fill(1, prefix="pack:")
    fill(1, prefix="pack:00001:label")

    async def link(connection: Connection) -> None:
        await connection.execute(
            "UPDATE scheduled_jobs SET job_id = 'pack:00001:label' WHERE length(job_id) > 10"
        )
        await connection.execute(FAMILY)

    run_on(dsn, link)


@pytest.mark.usefixtures("family")
def test_children_are_cancelled_and_retried_with_their_job(call: Run, query: Query) -> None:
    statuses = "SELECT string_agg(status, ' ' ORDER BY job_id) FROM scheduled_jobs"
    ran = call("jobs", "cancel", "pack:00001", "--children")
    assert ran.code == 0, ran.err
    assert "1 done with 1 child job, 0 refused" in ran.err
    assert query(statuses) == "cancelled cancelled"
    ran = call("jobs", "retry", "--where", "name:mail.* id:pack:00001", "--children", "--yes")
    assert ran.code == 0, ran.err
    assert (summary(ran)["done"], summary(ran)["children"]) == (1, 1)
    assert query(statuses) == "pending pending"
    ran = call("jobs", "cancel", "pack:00001")
    assert ran.code == 0, ran.err
    assert query(statuses) == "cancelled pending"


def test_step_and_children_are_not_named_together(call: Run, fill: Fill) -> None:
    fill(1)
    ran = call("jobs", "retry", "mail:00000", "--from", "a", "--children")
    assert ran.code == ExitCode.USAGE
    assert "pass either --from or --children" in ran.err


def test_question_names_the_children(call: Run, fill: Fill) -> None:
    fill(1)
    ran = call("jobs", "cancel", "--where", "name:mail.*", "--children")
    assert "Cancel every job of this search with its children?" in ran.err


# -- triggers and constraints of the application ---------------------------------------------------------


@pytest.fixture
def protect(dsn: str) -> Callable[[str], None]:
    """Create a trigger of the application that refuses each change of a job; ``*`` stands for all jobs."""

    def create(job_id: str) -> None:
        async def run(connection: Connection) -> None:
            await connection.execute(f"""
                CREATE FUNCTION protect() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                    IF TG_OP = 'INSERT' OR OLD.job_id = '{job_id}' THEN RAISE 'job is protected'; END IF;
                    IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
                    RETURN NEW;
                END $$;
                CREATE TRIGGER protect BEFORE INSERT OR UPDATE OR DELETE ON scheduled_jobs
                    FOR EACH ROW EXECUTE FUNCTION protect()
            """)

        run_on(dsn, run)

    return create


PLACE = "P0001, PL/pgSQL function protect() line 2 at RAISE"
REFUSAL = (
    f"a trigger or a constraint of the application refused a row ({PLACE}): RaiseError: job is protected; "
    "change the trigger or the constraint, or leave this row out"
)


@pytest.mark.parametrize(
    "command",
    [
        ("jobs", "add", "mail.send", "--in", "1h"),
        ("jobs", "run", "mail:00001"),
        ("jobs", "signal", "mail:00001", "paid", "1"),
    ],
)
def test_change_that_a_trigger_refuses_is_no_bug(
    command: tuple[str, ...], call: Run, fill: Fill, protect: Callable[[str], None], query: Query
) -> None:
    fill(1)
    protect("mail:00001")
    ran = call(*command)
    assert (ran.code, ran.out) == (ExitCode.REFUSED, ""), ran.err
    assert ran.err.strip().endswith(REFUSAL)
    assert "Traceback" not in ran.err
    assert query("SELECT count(*) FROM scheduled_jobs WHERE status = 'pending'") == 1


@pytest.mark.parametrize(
    ("command", "word"),
    [(["cancel"], "cancelled"), (["delete"], "deleted"), (["move", "--to", "+1h"], "moved")],
)
def test_jobs_are_changed_besides_those_that_a_trigger_refuses(
    call: Run, fill: Fill, protect: Callable[[str], None], query: Query, *, command: list[str], word: str
) -> None:
    fill(5)
    protect("mail:00002")
    ids = [f"mail:0000{number}" for number in range(1, 4)]
    by_ids = call("jobs", *command, *ids)
    assert by_ids.code == ExitCode.REFUSED
    results = {row["job_id"]: row["result"] for row in by_ids.checked("change")}
    assert results == {ids[0]: word, ids[1]: "refused", ids[2]: word}
    assert f"job 'mail:00002': {REFUSAL}" in by_ids.err
    assert "refused: " not in by_ids.err, "the status of the job allows the change"
    searched = call("jobs", *command, "--where", "status:pending name:mail.*", "--yes")
    assert searched.code == ExitCode.REFUSED
    changed = 4 if command[0] == "move" else 2
    assert (summary(searched)["done"], summary(searched)["refused"]) == (changed, 1)
    assert f"job 'mail:00002': {REFUSAL}" in searched.err
    unchanged = f"SELECT status = 'pending' AND execution_time = '{DUE}'::timestamptz + interval '2 s'"
    assert query(f"{unchanged} FROM scheduled_jobs WHERE job_id = 'mail:00002'")


def test_jobs_are_retried_besides_one_that_a_deferred_constraint_refuses(
    call: Run, fill: Fill, dsn: str, query: Query
) -> None:
    fill(3, "failed")

    async def constrain(connection: Connection) -> None:
        await connection.execute("""
            CREATE TABLE open_invoices (job_id text PRIMARY KEY);
            INSERT INTO open_invoices SELECT job_id FROM scheduled_jobs WHERE job_id <> 'mail:00002';
            ALTER TABLE scheduled_jobs ADD pending_id text
                GENERATED ALWAYS AS (CASE WHEN status = 'pending' THEN job_id END) STORED
                REFERENCES open_invoices DEFERRABLE INITIALLY DEFERRED
        """)

    run_on(dsn, constrain)
    ran = call("jobs", "retry", "--where", "status:failed", "--yes")
    assert ran.code == ExitCode.REFUSED
    assert (summary(ran)["done"], summary(ran)["refused"]) == (2, 1)
    assert "refused a row (23503, scheduled_jobs_pending_id_fkey): ForeignKeyViolationError: " in ran.err
    assert "DETAIL" not in ran.err, "it shows values of the row"
    assert query("SELECT array_agg(job_id) FROM scheduled_jobs WHERE status = 'failed'") == ["mail:00002"]
    assert query("SELECT details -> 'count' FROM scheduler_audit") == "2"


def test_suppressed_change_is_refused(call: Run, fill: Fill, dsn: str) -> None:
    fill(1)

    async def suppress_inserts(connection: Connection) -> None:
        await connection.execute("""
            CREATE FUNCTION suppress() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
            CREATE TRIGGER suppress BEFORE INSERT OR UPDATE ON scheduled_jobs
                FOR EACH ROW EXECUTE FUNCTION suppress()
        """)

    run_on(dsn, suppress_inserts)
    ran = call("jobs", "add", "mail.send", "--id", "new", "--in", "1h")
    assert ran.code == ExitCode.REFUSED, ran.err
    assert "the insert of the row was suppressed" in ran.err
