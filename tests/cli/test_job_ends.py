"""jobs add, wait, result and export, against real jobs."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import asyncpg
import jsonschema
import pytest

from pg_scheduler import Scheduler
from tests.cli.conftest import Ran, Run, schema
from tests.conftest import Connection, run_on
from tests.docs.snippets import ROOT
from tests.support.inside import ExitCode
from tests.support.patience import PATIENCE
from tests.support.world import HOUR, World, populate

SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE application_name = 'pg_scheduler cli' AND datname = current_database()"
)


@pytest.fixture
def on(call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run commands on the database of the test."""
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
    monkeypatch.setenv("PG_SCHEDULER_TZ", "utc")
    return call


@pytest.fixture
def execute(dsn: str) -> Callable[[str], None]:
    """Run a statement."""

    def run(statement: str) -> None:
        async def work(connection: Connection) -> None:
            await connection.execute(statement)

        run_on(dsn, work)

    return run


@pytest.fixture
def ended(dsn: str) -> None:
    """Run jobs to their end: one returns a value, one fails, and of one no value is kept."""

    async def answer(question: str) -> dict[str, Any]:
        if not question:
            raise LookupError("\x1b[31mno question")
        return {"question": question, "answer": 42}

    async def work(_: Connection) -> None:
        pool = await asyncpg.create_pool(dsn, min_size=1, max_size=3)
        scheduler = Scheduler(pool)
        scheduler.register(answer, name="cli.ends.answer")
        async with scheduler:
            for job_id, question, keep in (("kept", "life", HOUR), ("failed", "", HOUR), ("lost", "x", None)):
                await scheduler.enqueue(answer, args=(question,), job_id=job_id, keep_result=keep)
            for job_id in ("kept", "failed", "lost"):
                await scheduler.get_job_result(job_id, timeout=PATIENCE)
        await pool.close()

    run_on(dsn, work)


def result_of(ran: Ran) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(ran.out)
    jsonschema.validate(document, schema("result"))
    return document


def job_of(ran: Ran) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    (job,) = ran.checked("job")
    return job


class TestSignal:
    def test_value_is_stored_and_recorded(self, on: Run, execute: Callable[[str], None]) -> None:
        job_of(on("jobs", "add", "signal.order", "--id", "order:7", "--in", "1h"))
        job = job_of(on("jobs", "signal", "order:7", "approval", '{"by": "ann"}'))
        assert (job["job_id"], job["status"]) == ("order:7", "pending")
        execute("""DO $$ BEGIN ASSERT (SELECT value = '{"by": "ann"}' FROM scheduler_steps); END $$""")
        record = on("audit", "--action", "signal_job").lines[0]
        assert (record["subject"], record["via"]) == ("order:7", "cli")
        assert record["details"]["name"] == "approval"

    def test_second_value_is_refused(self, on: Run) -> None:
        job_of(on("jobs", "add", "signal.order", "--id", "order:7", "--in", "1h"))
        job_of(on("jobs", "signal", "order:7", "approval"))
        again = on("jobs", "signal", "order:7", "approval")
        assert (again.code, again.out) == (ExitCode.REFUSED, "")
        assert "has a value for 'approval'" in again.err
        assert len(on("audit", "--action", "signal_job").lines) == 1

    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            (("none", "approval"), ExitCode.NOT_FOUND, "job 'none' does not exist"),
            (("none", "approval", "yes"), ExitCode.USAGE, "the value must be a JSON value"),
            (("none", ""), ExitCode.USAGE, "must not be empty"),
            (("", "approval"), ExitCode.USAGE, "Invalid value for 'ID': it must not be empty"),
        ],
    )
    def test_mistake_has_its_exit_code(
        self, arguments: tuple[str, ...], code: ExitCode, message: str, on: Run
    ) -> None:
        ran = on("jobs", "signal", *arguments)
        assert (ran.code, ran.out) == (code, "")
        assert message in ran.err


class TestSend:
    def test_messages_are_stored_in_order_and_recorded(self, on: Run, execute: Callable[[str], None]) -> None:
        job_of(on("jobs", "add", "signal.order", "--id", "order:7", "--in", "1h"))
        for number in range(2):
            job = job_of(on("jobs", "send", "order:7", "items", f"{number}"))
            assert (job["job_id"], job["status"]) == ("order:7", "pending")
        execute("""DO $$ BEGIN ASSERT (
            SELECT array_agg(value ORDER BY name) = ARRAY ['0', '1']::jsonb[] FROM scheduler_steps
        ); END $$""")
        record = on("audit", "--action", "signal_job").lines[0]
        assert (record["subject"], record["details"]["name"]) == ("order:7", "items")
        steps = on("jobs", "steps", "order:7").lines
        assert [step["name"] for step in steps] == ["items#1", "items#2"]

    def test_job_that_has_ended_refuses_a_message(self, on: Run) -> None:
        job_of(on("jobs", "add", "signal.order", "--id", "order:7", "--in", "1h"))
        on("jobs", "cancel", "order:7")
        ran = on("jobs", "send", "order:7", "items")
        assert (ran.code, ran.out) == (ExitCode.REFUSED, "")
        assert "job 'order:7' has ended" in ran.err


class TestBroadcast:
    def waiting(self, on: Run, execute: Callable[[str], None]) -> None:
        for job_id, region in (("order:7", "eu"), ("order:8", "us")):
            metadata = json.dumps({"region": region})
            job_of(on("jobs", "add", "shop.order", "--id", job_id, "--in", "1h", "--metadata", metadata))
        execute("""
            UPDATE scheduled_jobs SET attempt = 1,
                options = '{"steps": 1, "suspended": {"attempt": 1, "steps": ["go"]}}';
            INSERT INTO scheduler_steps (job_id, name, kind, attempt, until, started_at)
            SELECT job_id, 'go', 'signal', 1, '9999-01-01Z', now() FROM scheduled_jobs
        """)

    def test_jobs_of_a_search_get_the_value_and_one_record_states_how_many(
        self, on: Run, execute: Callable[[str], None]
    ) -> None:
        self.waiting(on, execute)
        ran = on("jobs", "broadcast", "go", "7", "--where", "metadata.region:eu", "--yes")
        assert json.loads(ran.out) == {"v": 1, "name": "go", "jobs": 1}
        execute("""DO $$ BEGIN ASSERT (
            SELECT array_agg(job_id) = ARRAY ['order:7'] FROM scheduler_steps WHERE value = '7'
        ); END $$""")
        record = on("audit", "--action", "broadcast").lines[0]
        assert (record["subject"], record["via"], record["details"]["count"]) == ("go", "cli", 1)
        for count in (1, 0):
            ran = on("jobs", "broadcast", "go", "7", "--yes")
            assert json.loads(ran.out) == {"v": 1, "name": "go", "jobs": count}

    def test_nothing_is_sent_without_a_confirmation(self, on: Run, execute: Callable[[str], None]) -> None:
        self.waiting(on, execute)
        ran = on("jobs", "broadcast", "go", "7")
        assert (ran.code, ran.out) == (ExitCode.REFUSED, "")
        assert "Send the value to 2 jobs? Nothing was changed; pass --yes to confirm" in ran.err


class TestAdd:
    def test_job_is_scheduled_with_its_options(self, on: Run) -> None:
        job = job_of(
            on(
                "jobs", "add", "mail.send", "--args", '["ada"]', "--kwargs", '{"n": 1}',
                "--at", "2099-01-02T03:00", "--id", "mail:9", "--priority", "high", "--retries", "3",
                "--metadata", '{"tenant": 7}', "--tag", "billing", "--tag", "eu", "--keep-result", "1h",
            )
        )  # fmt: skip
        assert (job["job_id"], job["job_name"], job["execution_time"]) == (
            "mail:9", "mail.send", "2099-01-02T03:00:00Z",
        )  # fmt: skip
        assert (job["args"], job["kwargs"], job["priority"], job["max_retries"]) == (
            ["ada"],
            {"n": 1},
            "high",
            3,
        )
        assert job["metadata"] == {"tenant": 7, "tags": ["billing", "eu"]}
        record = on("audit", "--action", "add_job").lines[0]
        assert (record["subject"], record["via"], record["details"]["name"]) == ("mail:9", "cli", "mail.send")

    def test_job_is_due_now_or_in_a_while(self, on: Run) -> None:
        now = datetime.now(UTC)
        soon, later = (
            datetime.fromisoformat(job_of(on("jobs", "add", "mail.send", *options))["execution_time"])
            for options in ((), ("--in", "2h"))
        )
        assert abs(soon - now) < HOUR
        assert HOUR < later - now < 3 * HOUR

    def test_name_that_no_worker_claims_is_stated(self, on: Run, dsn: str) -> None:
        assert "no worker is alive" in on("jobs", "add", "mail.send").err
        populate(dsn, lambda world: world.worker("w", names=["mail.send"], lease=HOUR))
        assert (
            "no live worker reports the options of the task 'mail.send'" in on("jobs", "add", "mail.send").err
        )
        assert (
            "no live worker claims 'mail.sent'; did you mean mail.send?" in on("jobs", "add", "mail.sent").err
        )

    def test_conflict_is_refused_or_resolved(self, on: Run) -> None:
        job_of(on("jobs", "add", "mail.send", "--id", "a", "--in", "1h"))
        again = on("jobs", "add", "mail.send", "--id", "a")
        assert (again.code, again.out) == (ExitCode.REFUSED, "")
        assert "'a' already exists with status 'pending'" in again.err
        assert "pass another --id, or pass --on-conflict ignore or replace" in again.err
        assert job_of(on("jobs", "add", "mail.new", "--id", "a", "--on-conflict", "ignore"))["job_name"] == (
            "mail.send"
        )
        assert job_of(on("jobs", "add", "mail.new", "--id", "a", "--on-conflict", "replace"))["job_name"] == (
            "mail.new"
        )

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--args", "{}"), "--args must be a JSON list"),
            (("--args", "["), "--args must be a JSON list"),
            (("--kwargs", "[]"), "--kwargs must be a JSON object"),
            (("--kwargs", "[" * 100_000), "--kwargs must be a JSON object"),
            (("--metadata", "7"), "--metadata must be a JSON object"),
            (("--metadata", '{"tags": 1}', "--tag", "x"), "tags of --metadata must be a list"),
            (("--at", "soon"), "--at must be a time"),
            (("--in", "soon"), "--in must be a duration"),
            (("--at", "2030-01-01", "--in", "5m"), "either --at or --in"),
            (("--priority", "urgent"), "urgent"),
            (("--retries", "-1"), "-1"),
            (("--on-conflict", "x"), "x"),
            (("--id", ""), "Invalid value for '--id': it must not be empty"),
        ],
    )
    def test_wrong_option_is_a_usage_error(self, on: Run, options: tuple[str, ...], message: str) -> None:
        ran = on("jobs", "add", "mail.send", *options)
        assert (ran.code, ran.out) == (ExitCode.USAGE, "")
        assert message in ran.err


class TestResult:
    def test_value_error_or_reason_is_printed(self, on: Run, ended: None) -> None:
        kept = on("jobs", "result", "kept")
        assert (kept.code, result_of(kept)["value"]) == (0, {"question": "life", "answer": 42})
        failed = on("jobs", "result", "failed")
        assert failed.code == ExitCode.NEGATIVE
        document = result_of(failed)
        assert (document["status"], document["error"]["type"]) == ("failed", "LookupError")
        lost = on("jobs", "result", "lost")
        assert (lost.code, result_of(lost)["value"]) == (0, None)
        assert result_of(lost)["no_value_reason"]
        table = on("jobs", "result", "failed", "-o", "table")
        assert "no question" in table.out
        assert "\x1b" not in table.out

    def test_job_that_has_not_ended_is_a_negative_answer(self, on: Run) -> None:
        on("jobs", "add", "mail.send", "--id", "a", "--in", "1h")
        ran = on("jobs", "result", "a")
        assert (ran.code, result_of(ran)["status"]) == (ExitCode.NEGATIVE, "pending")
        assert result_of(ran)["no_value_reason"] == "the job has not ended: it is pending"

    @pytest.mark.parametrize("command", ["result", "wait"])
    def test_unknown_job_exits_with_3(self, on: Run, command: str) -> None:
        ran = on("jobs", command, "nothing")
        assert (ran.code, ran.out) == (ExitCode.NOT_FOUND, "")
        assert "job 'nothing' does not exist" in ran.err


class TestWait:
    def test_ends_are_printed_and_decide_the_exit_code(self, on: Run, ended: None) -> None:
        ran = on("jobs", "wait", "kept", "lost", "kept")
        assert (ran.code, [line["job_id"] for line in ran.checked("result")]) == (0, ["kept", "lost"])
        ran = on("jobs", "wait", "kept", "failed")
        assert (ran.code, [line["status"] for line in ran.checked("result")]) == (
            ExitCode.NEGATIVE,
            ["completed", "failed"],
        )

    def test_command_waits_for_the_end_of_a_job(self, on: Run, dsn: str) -> None:
        on("jobs", "add", "mail.send", "--id", "a", "--in", "1h")

        async def end(connection: Connection) -> None:
            while not await connection.fetchval(SESSIONS):
                pass
            await connection.execute(
                "UPDATE scheduled_jobs SET status = 'completed', finished_at = now() WHERE job_id = 'a'"
            )

        thread = threading.Thread(target=run_on, args=(dsn, end))
        thread.start()
        ran = on("jobs", "wait", "a", "--timeout", f"{PATIENCE}s")
        thread.join()
        assert (ran.code, ran.checked("result")[0]["status"]) == (0, "completed")

    @pytest.mark.slow
    def test_timeout_exits_with_7_after_the_ends_that_are_known(self, on: Run, ended: None) -> None:
        on("jobs", "add", "mail.send", "--id", "a", "--in", "1h")
        ran = on("jobs", "wait", "kept", "a", "--timeout", "0.5s")
        assert (ran.code, [line["job_id"] for line in ran.lines]) == (ExitCode.TIMEOUT, ["kept"])
        assert "not ended within 0.5s: 1 job" in ran.err


class TestExport:
    @staticmethod
    async def fill(world: World) -> None:
        """Add more jobs than a page has, with a name that controls a terminal."""
        due = datetime(2099, 1, 1, tzinfo=UTC)
        secret = {"kwargs": {"secret": "s3cr3t"}}
        await world.jobs(1201, '\x1b"x",\n', job_id="j{}".format, due=due, task_data=secret)

    def test_every_job_is_written_in_pages(self, on: Run, dsn: str) -> None:
        populate(dsn, self.fill)
        ran = on("jobs", "export", "status:pending")
        assert (ran.code, len({line["job_id"] for line in ran.lines})) == (0, 1201)
        jsonschema.validate(ran.lines[-1], schema("job"))
        assert "searched all of 1,201 jobs, 1,201 found" in ran.err
        rows = list(csv.DictReader(io.StringIO(on("jobs", "export", "-o", "csv").out)))
        assert len({row["job_id"] for row in rows}) == 1201
        assert rows[0]["job_name"] == '\\x1b"x",\n', "no output controls a terminal"
        assert json.loads(rows[0]["kwargs"]) == {"secret": "s3cr3t"}
        assert "s3cr3t" not in on("jobs", "export", "--no-arguments").out
        assert len(on("jobs", "export", "-o", "ids").out.splitlines()) == 1201

    def test_limit_leaves_a_position_that_continues(self, on: Run, dsn: str) -> None:
        populate(dsn, self.fill)
        first = on("jobs", "export", "--limit", "700", "-o", "ids")
        after = first.err.rpartition("--after '")[2].rstrip("'\n")
        rest = on("jobs", "export", "--after", after, "-o", "ids")
        assert len({*first.out.split(), *rest.out.split()}) == 1201
        assert len(first.out.split()) == 700

    def test_invalid_search_or_format_is_a_usage_error(self, on: Run) -> None:
        for arguments in (
            ("-o", "json"),
            ("-o", "table"),
            ("-o", "wide"),
            ("stats:x",),
            ("--after", "x"),
            ("--limit", "0"),
        ):
            ran = on("jobs", "export", *arguments)
            assert (ran.code, ran.out) == (ExitCode.USAGE, "")
        ran = on("jobs", "export", "--after", "x")
        assert "--after is no position of this search: 'x'; pass the one that the command printed" in ran.err

    @pytest.mark.slow
    def test_closed_pipe_is_no_error(self, on: Run, dsn: str) -> None:
        populate(dsn, self.fill)
        command = f"'{sys.executable}' -m pg_scheduler jobs export | head -1; echo ${{PIPESTATUS[0]}}"
        piped = subprocess.run(
            ["bash", "-c", command],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
            timeout=50,
        )
        assert piped.stdout.endswith("\n0\n")
        assert "Traceback" not in piped.stderr

    @pytest.mark.slow
    def test_interrupted_wait_exits_with_130(self, on: Run) -> None:
        on("jobs", "add", "mail.send", "--id", "a", "--in", "1h")
        self.wait_for_sessions(os.environ["PG_SCHEDULER_DSN"], 0)
        process = subprocess.Popen(
            [sys.executable, "-m", "pg_scheduler", "jobs", "wait", "a", "--progress", "lines"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            self.wait_for_sessions(os.environ["PG_SCHEDULER_DSN"], 1)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
        assert process.returncode == ExitCode.INTERRUPTED
        assert err == "pg-scheduler: interrupted\n"

    @staticmethod
    def wait_for_sessions(dsn: str, number: int) -> None:
        async def work(connection: Connection) -> None:
            while number != await connection.fetchval(SESSIONS):
                pass

        run_on(dsn, work)


@pytest.mark.parametrize(
    ("arguments", "parameter"),
    [
        (("show", ""), "ID"),
        (("wait", "order:7", ""), "ID"),
        (("cancel", "", "--yes"), "ID"),
        (("add", ""), "NAME"),
    ],
)
def test_empty_ids_and_names_are_usage_errors(arguments: tuple[str, ...], parameter: str, on: Run) -> None:
    ran = on("jobs", *arguments)
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert ran.err.endswith(f"Invalid value for '{parameter}': it must not be empty\n")
