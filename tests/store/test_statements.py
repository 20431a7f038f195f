"""Named statements are declared, prepared and used, and work with the codecs of the pool's owner."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest

import pg_scheduler
from pg_scheduler import JobProgress, JobStatus
from pg_scheduler.admission.limits import AdmissionRequest, SurplusPosition
from pg_scheduler.admission.sequences import HandedOver, Moved
from pg_scheduler.admission.shares import Fed
from pg_scheduler.clock import FakeClock
from pg_scheduler.database import queries
from pg_scheduler.database.queries import FOLDERS, Route, Timeout
from pg_scheduler.database.statements import CallersTransaction, Transaction
from pg_scheduler.errors import JobConflictError
from pg_scheduler.events import JobBlocked
from pg_scheduler.inspect import parse_search
from pg_scheduler.inspect.search.conditions import conditions_of
from pg_scheduler.inspect.store.audit import AuditFilters
from pg_scheduler.inspect.store.bulk import Batch, BulkAction
from pg_scheduler.inspect.store.deploy import CheckedStep
from pg_scheduler.inspect.store.schedules import ScheduleFilters
from pg_scheduler.inspect.store.searches import Scan
from pg_scheduler.inspect.store.server import PRIVILEGES
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.inspect.store.workers import IdRange
from pg_scheduler.jobs.limits import LimitNumbers
from pg_scheduler.jobs.outcome import RowChange
from pg_scheduler.jobs.pause import Pause
from pg_scheduler.jobs.result import KeptResult
from pg_scheduler.jobs.rows import EPOCH, NO_EXTRAS
from pg_scheduler.jobs.step_values import SLEEP, StoredStep
from pg_scheduler.queue.consequences import EndedJob
from pg_scheduler.queue.dependencies import ScanPosition
from pg_scheduler.queue.jobs import JobFilters, StatusChange
from pg_scheduler.queue.passed_results import Edge
from pg_scheduler.queue.unique_keys import Holder
from pg_scheduler.schedules.statements import Plannable, ScheduleChange
from pg_scheduler.steps.signals import Audience, Reached, SentSignal
from pg_scheduler.streams.statements import NewItem, Wanted
from pg_scheduler.testing.written import WrittenJobs, WrittenPauses, WrittenSequences
from pg_scheduler.worker.claims import NO_IDS
from tests.support.inside import (
    COMPLETE,
    RELEASE,
    Connections,
    ExtendedJob,
    Extras,
    GeneratedIdJob,
    JobFigures,
    Outcome,
    Store,
    load_queries,
)
from tests.support.store import (
    LEASE,
    NAME,
    NOW,
    SECOND,
    Connection,
    Pool,
    due_in,
    methods_of,
    new_job,
    new_schedule,
    row,
    worker,
)

QUERIES = load_queries("public")
SOURCES = "\n".join(
    file.read_text(encoding="utf-8")
    for folder in (*FOLDERS, "inspect/store", "testing")
    for file in sorted(Path(pg_scheduler.__path__[0], folder).glob("*.py"))
)


async def test_every_statement_can_be_prepared(pool: asyncpg.Pool) -> None:
    errors = {}
    for name, query in QUERIES.items():
        try:
            async with pool.acquire() as connection:
                await connection.prepare(query.text)
        except asyncpg.PostgresError as error:
            errors[name] = error
    assert errors == {}


def test_every_statement_is_used_by_the_store() -> None:
    assert [name for name in QUERIES if f'"{name}"' not in SOURCES] == []


def test_store_uses_only_statements_that_exist() -> None:
    asked = re.findall(
        r'\b(?:fetch|fetch_retrying|value|number|change|query|execute|run|_run|_examine|_rows)\(\s*(?:[A-Z]\w+,\s*)?"([a-z]\w+)"',
        SOURCES,
    )
    assert set(asked) <= set(QUERIES)
    assert len(set(asked)) >= len(QUERIES) - 12, "all but those whose names are computed"


def test_every_statement_begins_with_a_comment_and_qualifies_its_tables() -> None:
    tables = "scheduled_jobs|vacuum_stats|scheduler_(?:workers|schedules|after|tasks)"
    # In "scheduled_jobs.ctid" the table is an alias.
    unqualified = re.compile(rf'(?<!"other"\.)\b({tables})\b(?!\.)|{{\w')
    texts = {name: query.text for name, query in load_queries("other").items()}
    assert [name for name, text in texts.items() if not text.startswith("-- ")] == []
    assert [name for name, text in texts.items() if unqualified.search(re.sub(r"--.*", "", text))] == []


def test_paths_that_read_an_instant_try_a_format_with_fractions_of_a_second() -> None:
    # Before 14.9 and 15.4, datetime() rejects what to_jsonb() writes, and a path takes the error for false.
    paths = {name: query.text for name, query in QUERIES.items() if ".datetime(" in query.text}
    assert paths, "limits count attempts that were ended by hand"
    for name, text in paths.items():
        code = re.sub(r"--.*", "", text)
        bare = re.findall(r"(\S+)\.datetime\(\)", code)
        formatted = re.findall(r'(\S+)\.datetime\("YYYY-MM-DD~HH24:MI:SS\.USTZH:TZM"\)', code)
        assert {instant.strip("(") for instant in bare} <= {instant.strip("(") for instant in formatted}, name


ROWS_COMPARED_WITH_EACH = {
    # The jobs of one claim, and the steps of the jobs of one insert that run.
    "exchange_jobs",
    "claim_jobs",
    "clear_steps",
    # The jobs of one turn of a share.
    "feed_shares",
}
TEXTS_READ_BY_PLACE = {
    # The outcomes and the progress of the attempts of one worker.
    "count_failures",
    "settle_failed",
    "settle_jobs",
    "settle_suspended",
    # The jobs that one broadcast reaches.
    "store_broadcast",
    "already_settled",
    "write_progress",
    # The due schedules of one turn of a planner.
    "advance_schedules",
    # The schedules of the jobs of one retry.
    "note_last_jobs",
}
OBJECT_CTE = re.compile(r"(\w+) AS MATERIALIZED \(\s*SELECT (?:jsonb_object_agg|\$\d+::text::jsonb)")
JOINED_OBJECTS = {
    # It locks no row, so nothing is copied.
    "admit_attempts",
}


def test_statements_read_many_values_of_a_row_each_in_constant_time() -> None:
    compared, read_by_place, copied = set(), set(), set()
    for name, query in QUERIES.items():
        text = re.sub(r"--.*", "", query.text).replace("pg_catalog.", "")
        if re.search(r"OPERATOR\(<>\) ALL \(ARRAY \(", text):
            compared.add(name)
        if re.search(r"\(\$\d+::text\[\]\)\[(?!\d)", text):
            read_by_place.add(name)
        # PostgreSQL copies a row of each other table for each row that it changes or locks.
        for cte in re.findall(OBJECT_CTE, text):
            if re.search(rf"(?<!\.)\b{cte}\.(?!\w+ FROM {cte}\))", text):
                copied.add(name)
    assert compared == ROWS_COMPARED_WITH_EACH
    assert read_by_place == TEXTS_READ_BY_PLACE
    assert copied == JOINED_OBJECTS


def clear_caches() -> None:
    queries.load_query.cache_clear()
    queries._sources.cache_clear()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Replace the SQL files by these texts."""

    def write(*texts: str) -> None:
        for number, text in enumerate(texts):
            (tmp_path / f"{number}.sql").write_text(text, encoding="utf-8")

    monkeypatch.setattr(queries, "FOLDERS", (str(tmp_path),))
    clear_caches()
    yield write
    clear_caches()


def test_load_queries_rejects_two_statements_with_the_same_name(written: Callable[..., None]) -> None:
    written(*["-- name: same\n-- route: pool\nSELECT 1;\n"] * 2)
    with pytest.raises(LookupError, match="two statements are named 'same'"):
        load_queries("x")


def test_load_queries_rejects_two_fragments_with_the_same_name(written: Callable[..., None]) -> None:
    written(*["-- fragment: same\n1\n\n-- name: a\n-- route: pool\nSELECT 1;\n"] * 2)
    with pytest.raises(LookupError, match="two fragments are named 'same'"):
        load_queries("x")


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("", "'a' declares no route"),
        ("-- timeout: hot\n", "'a' declares no route"),
        ("-- route: poool\n", "'poool' is not a valid Route"),
        ("-- route: pool | shared\n", "'shared' is not a valid Route"),
        ("-- route: pool\n-- timeout: soon\n", "'soon' is not a valid Timeout"),
    ],
)
def test_load_queries_rejects_an_invalid_declaration(
    written: Callable[..., None], declared: str, message: str
) -> None:
    written(f"-- name: a\n{declared}SELECT 1;\n")
    with pytest.raises(LookupError, match=message):
        load_queries("x")


def test_load_queries_reads_declarations_and_expands_fragments(written: Callable[..., None]) -> None:
    written(
        "-- fragment: one\n-- A comment.\n{two} + 1\n-- fragment: two\n2\n"
        "-- name: a\n-- route: shared, tuned\n-- Add.\nSELECT {one} FROM {schema}t WHERE p = {high};\n"
        "-- name: b\n-- route: pool | sticky\n-- timeout: hot\nSELECT 1;\n"
    )
    found = load_queries("x")
    assert found["a"].text == (
        '-- Add.\nSELECT 2 OPERATOR(pg_catalog.+) 1 FROM "x".t WHERE p OPERATOR(pg_catalog.=) 3;'
    )
    assert (found["a"].routes, found["a"].is_shareable, found["a"].timeout) == ((Route.TUNED,), True, "call")
    assert (found["b"].routes, found["b"].is_shareable, found["b"].timeout) == (
        (Route.POOL, Route.STICKY),
        False,
        "hot",
    )


def test_load_queries_rejects_an_unknown_fragment(written: Callable[..., None]) -> None:
    written("-- name: a\n-- route: pool\nSELECT {missing};\n")
    with pytest.raises(LookupError, match="'a' names an unknown fragment: 'missing'"):
        load_queries("x")


def test_load_queries_rejects_a_comment_between_a_statement_and_the_next_mark(
    written: Callable[..., None],
) -> None:
    written("-- name: a\n-- route: pool\n-- Add.\nSELECT 1;\n\n-- Two.\n\n-- fragment: two\n2\n")
    with pytest.raises(LookupError, match="a comment follows statement 'a'"):
        load_queries("x")


def test_load_queries_rejects_a_statement_that_depends_on_the_search_path(
    written: Callable[..., None],
) -> None:
    written("-- name: a\n-- route: pool\nSELECT 1\nWHERE $1 BETWEEN 1 AND 2;\n")
    with pytest.raises(LookupError, match=r"'a' depends on the search path: BETWEEN: .* \(line 2: W"):
        load_queries("x")


def test_every_statement_declares_a_valid_route_and_timeout() -> None:
    hot, shareable = (Route.DEDICATED,), {Route.TUNED, Route.RESERVED}
    assert [name for name, query in QUERIES.items() if not query.routes] == []
    wrong = [name for name, each in QUERIES.items() if (each.timeout is Timeout.HOT) != (each.routes == hot)]
    assert wrong == [], "the hot path is bounded more"
    wrong = [name for name, each in QUERIES.items() if each.is_shareable and each.routes[0] not in shareable]
    assert wrong == []


async def test_fetch_rejects_a_statement_without_its_transaction(store: Store) -> None:
    with pytest.raises(LookupError, match="'lock_orphans' does not run on route 'caller'; pass on="):
        await store.statements.fetch("lock_orphans", [], NOW, 120, 1, None, "{}")


async def test_fetch_rejects_a_route_that_the_statement_does_not_declare(store: Store) -> None:
    with pytest.raises(LookupError, match="'get_job' does not run on route 'sticky'"):
        await store.statements.fetch("get_job", "a", route=Route.STICKY)


def test_loaded_queries_are_cached_and_read_only() -> None:
    assert queries.load_query("public", "get_job") is queries.load_query("public", "get_job")
    with pytest.raises(TypeError):
        QUERIES["new"] = ""  # type: ignore[index]


Use = Callable[[Store], Awaitable[object]]


async def use_vacuum(store: Store) -> object:
    assert await store.retention.count_in_blocks(0, 10, {JobStatus.COMPLETED: NOW}) == {}
    await store.retention.vacuum_blocks(0, await store.retention.table_blocks(), {JobStatus.COMPLETED: NOW})
    assert await store.retention.note_range(0, 10, {JobStatus.COMPLETED: NOW}) == set()
    assert await store.retention.read_ranges(10, {JobStatus.COMPLETED: NOW}) == []
    assert await store.retention.begin_pass("policies", "w1", after_s=9, within_s=0) == 9
    await store.retention.end_pass("policies", "w1")
    await store.retention.vacuum_surplus(JobStatus.FAILED, 1, 10)
    assert await store.retention.vacuum_steps("", 10) is None
    assert await store.jobs.vacuum_deadlines(None, 10) is None
    assert await store.streams.vacuum("") == (None, False)
    await store.retention.record_vacuum({JobStatus.COMPLETED: 1}, "w1")
    assert (await store.retention.total_vacuum_stats()).total_completed == 1
    (day,) = await store.retention.vacuum_stats(1)
    return day.deleted_completed


async def use_suspending_pause(store: Store) -> None:
    """Call every method that ends a pause which suspends expiry, and leave nothing of it."""
    pause = Pause("mail.send", NOW, NOW, None, "me", 0.0, suspends_expiry=True)
    assert await store.pauses.pause("mail.send", NOW + SECOND, None, "me", suspends_expiry=True)
    assert await store.pauses.resume(["mail.send"])
    assert await store.pauses.renew_blocked(["mail.send"], NOW, ("", 0, "-infinity", ""), 10) is None
    assert await store.pauses.renew_due(["mail.send"], NOW, 5, ("-infinity", ""), 1000) is None
    assert await store.pauses.add_names("mail.send", {"send_mail"})
    assert not await store.pauses.add_names("mail.send", {"send_mail"})
    assert await store.pauses.add_names("mail.send", {"send_mail"}, {"send_mail"})
    assert not await store.pauses.add_names("mail.send", {"send_mail"}, {"send_mail"})
    names = ["mail.send", "send_mail"]
    deleted = await store.pauses.delete_renewed(names[:1], pause)
    assert (deleted.is_deleted, deleted.was_there, sorted(deleted.names)) == (False, True, names)
    deleted = await store.pauses.delete_renewed(names, pause)
    assert (deleted.is_deleted, deleted.was_there, sorted(deleted.names)) == (True, True, names)
    assert await store.pauses.delete_renewed(names, pause) == (False, False, [])


async def use_schedules(store: Store) -> object:
    """Call every method of the repository, and return what is left of the schedules."""
    kinds, anyone = ["every"], Plannable(["declared"], [NAME], ["every"])
    row, declared = new_schedule(paused_at=NOW), new_schedule("declared", owner="code")
    async with store.schedules.declaring() as (connection, _):
        now = await store.statements.read_clock(on=connection)
        assert await store.schedules.chain_due_times(["key"], on=connection) == {}
        assert await store.schedules.insert(row, kinds, on=connection)
        assert not await store.schedules.insert(row, kinds, on=connection)
        await store.schedules.insert(declared, kinds, on=connection)
        assert list((await store.schedules.declared([], on=connection))[0]) == ["declared"]
        assert await store.schedules.lock(["key"], on=connection) == {"key": (row, now)}
        await store.schedules.write(replace(row, runs=3), kinds, on=connection)
        assert await store.schedules.reported_options("task", on=connection) is None
    assert await store.schedules.resume("key", from_now=True) == (True, row.task)
    assert await store.schedules.resume("key", from_now=True) == (False, row.task)
    assert await store.schedules.declared_later(["declared"], "me") == set()
    assert await store.schedules.undeclared_modules(["declared"]) == []
    assert await store.schedules.continue_stalled(anyone) == []
    assert await store.schedules.retire(["declared"], ["app.jobs"]) == []
    rows, seen_at = await store.schedules.declared(["key"])
    assert (set(rows), seen_at) == ({"declared", "key"}, now)
    assert await store.schedules.next_fire_in(anyone) == 1
    async with store.connections.transaction() as connection:
        assert await store.schedules.lock_due(anyone, 9, on=connection) == ([], None)
        assert await store.schedules.lock_last_jobs(["gone"], on=connection) == {}
        assert await store.jobs.free_fire_times(["gone"], {"key": now}, connection) == set()
        assert await store.dependencies.lock_unfinished(["gone"], Transaction(connection, [])) == set()
        assert await store.dependencies.keeping(["gone"], connection) == set()
        await store.dependencies.forget_children(["gone"], connection)
        await store.dependencies.lock_retried("gone", Transaction(connection, []))
        await store.dependencies.wait_again(["gone"], ["gone too"], connection)
        ended = EndedJob("job", NAME, JobStatus.FAILED, 1, "why", {}, {"schedule_id": "key"})
        transaction = Transaction(connection, [])
        assert await store.schedules.note_ends([ended], transaction) == ()
        replacement = ended._replace(on_end={"fixed_delay": "key"})
        assert await store.schedules.note_ends_of_replacements([replacement], transaction) == ()
        assert transaction.events == []
        await store.schedules.note_last_job("key", "job", on=connection)
        await store.schedules.advance([ScheduleChange("declared", is_finished=True, missed=2)], on=connection)
    assert await store.schedules.pause("declared", "a note")
    assert await store.schedules.pause("gone", None) is None
    assert await store.schedules.pending_jobs("key") == []
    page = await store.schedules.list_page(
        after=None, owner=None, paused=None, tasks=None, metadata="{}", due_before=None, limit=9
    )
    assert {row.schedule_id: row for row in page} == await store.schedules.read(["declared", "key"])
    assert await store.schedules.get("key") == page[1]
    assert await store.schedules.vacuum(NOW, 9) == 0
    assert await store.schedules.remove("key")
    return [(each.runs, each.missed, each.last_job_id) for each in page]


async def use_generated(store: Store, due: GeneratedIdJob) -> None:
    """Enqueue a job and one with options in the transaction of a caller."""
    due = due._replace(misfire_grace_time=None)
    extended = ExtendedJob(due, Extras('{"a":1}')).with_id("r")
    async with store.connections.transaction() as connection:
        assert await store.inserts.enqueue([due], message="due", connection=connection) == {"q"}
        assert await store.inserts.enqueue_extended([extended], message="due", connection=connection) == {"r"}
        quiet = due._replace(job_id="s")
        assert await store.inserts.enqueue([quiet], connection=connection) == {"s": NOW}
    assert await store.jobs.delete(["s"])
    assert await store.jobs.delete(["q"])
    assert await store.jobs.delete(["r"])


async def use_path(store: Store) -> object:
    people = InspectionStore(store)
    await store.migrate()
    await store.identity.guard("refuse")
    await store.identity.guard_again("refuse")
    this, recorded = await store.identity.read()
    assert recorded == this
    await store.inserts.insert([new_job(each) for each in "abcde"])
    await store.inserts.insert([new_job("f")], route=Route.STICKY)
    await store.inserts.insert([GeneratedIdJob(*new_job(each, job_name="nobody.knows")) for each in "hi"])
    unknown = new_job("j", job_name="nobody.knows", execution_time=NOW - 2 * SECOND)
    await store.inserts.insert([GeneratedIdJob(*unknown)])
    since = (NOW - SECOND,) * 4
    assert await store.claims.find_claimable(["nobody.knows"], since, NO_IDS) == (NOW - 2 * SECOND, 1)
    await store.inserts.copy([GeneratedIdJob(*new_job("g", job_name="nobody.knows"))], 1000)
    delayed = new_job("k", job_name="nobody.knows", execution_time=EPOCH + 1.5 * SECOND)
    assert await store.inserts.enqueue([delayed, delayed._replace(job_id="l")]) == {"k": NOW, "l": NOW}
    assert await store.inserts.enqueue([delayed]) == {}
    assert await store.inserts.enqueue([delayed._replace(job_id="m")], message="due") == {"m": NOW}
    await use_generated(store, GeneratedIdJob(*new_job("q", job_name="nobody.knows", execution_time=EPOCH)))
    assert await store.statements.read_clock() == NOW
    assert await store.pauses.pause("mail.send", NOW + SECOND, "note", "me")
    assert await store.pauses.paused() == [
        Pause("mail.send", NOW, NOW + SECOND, "note", "me", 1.0, False, [], [], exact_names=["mail.send"])
    ]
    assert await store.pauses.end_pauses() == []
    assert await store.pauses.resume(["mail.send"])
    assert await people.audit_records.is_writable()
    records, last = await people.audit_records.read(None, 9, 9, AuditFilters(), "mail.send")
    assert [each.action for each in records] == ["resume_task", "pause_task"]
    assert last is None
    assert await people.audit_records.read(None, 9, 9, AuditFilters("resume_task")) == (records[:1], None)
    await use_suspending_pause(store)
    extended = ExtendedJob(
        new_job("n", job_name="nobody.knows"), Extras('{"a":1}', "key", "after", '{"b":1}')
    )
    assert await store.inserts.insert_extended([extended], message="due") == {"n"}
    later = extended.with_id("p").due_at(EPOCH + SECOND)
    assert await store.inserts.enqueue_extended([later]) == {}
    later = replace(later, extras=NO_EXTRAS)
    assert await store.inserts.enqueue_extended([later], message="due") == {"p": NOW}
    assert await store.jobs.delete(["p"])
    await store.inserts.replace_extended([extended])
    holder = Holder("n", "pending", "key")
    assert await store.unique_keys.find_conflicts(["n", "nobody"], ["key"]) == [holder]
    async with store.connections.transaction() as connection:
        assert await store.unique_keys.lock_holders(["key", "other"], connection) == {"key": holder}
        postponed = await store.inserts.replace_debounced([extended], connection=connection)
        assert postponed == [extended.postponed_to(extended.execution_time)]
    await store.jobs.cancel("n")
    await store.inserts.insert_extended([ExtendedJob(new_job("o", job_name="nobody.knows"), extended.extras)])
    with pytest.raises(JobConflictError, match="'o'"):
        await store.unique_keys.restart("n", lambda: store.jobs.retry("n"))
    actions: dict[BulkAction, bool] = {"retry": False, "cancel": True}
    for action, changed in actions.items():
        await people.bulk.versions(["a"])
        batch = await people.bulk.change(Batch(action, ["n", "o"], subject=f"run:{action}"))
        became = [each.outcome for each in batch.jobs]
        assert became == ["refused", "done" if changed else "refused"], "the key is taken, and n has ended"
    assert await store.jobs.retry("n")
    assert [each.job_id for each in await store.jobs.cancel_family("n", "why")] == ["n"]
    async with store.statements.transaction() as transaction:
        members = await store.families.lock(["n"], transaction, for_retry=True)
        assert [row["job_id"] for row in await store.families.retry(members, transaction)] == ["n"]
    assert await store.jobs.retry_family("n") == []
    await store.inserts.replace_extended([extended])
    assert await store.dependencies.repair(ScanPosition(), blocks=9, jobs=9) == ScanPosition()
    async with store.statements.transaction() as transaction:
        waiting = replace(extended, after=("a",))
        blocked = JobBlocked("n", "nobody.knows", 0, "after")
        await store.dependencies.lock_dependents([waiting], CallersTransaction(transaction.connection, []))
        await store.dependencies.block([waiting], transaction)
        await store.dependencies.resolve(["n"], transaction)
        assert transaction.events == [blocked]
    await store.inserts.replace([new_job("f", priority=1)])
    conditions = conditions_of(parse_search("status:due name:nobody.* -arg.0:1 created:<-1h", now=NOW))
    async with people.searches.transaction() as connection:
        examined = await people.searches.newest(None, Scan(conditions, 9, 99), on=connection)
        assert (examined.jobs, examined.count) == ([], 15)
        scan = Scan((), 2, 9)
        assert (await people.searches.ids(["a", "b", "c"], scan, on=connection)).count == 2
        assert (await people.searches.waiting(5, (NOW, "a"), NOW + SECOND, scan, on=connection)).count == 2
        assert (await people.searches.due([1, 5], (NOW, "a"), NOW + SECOND, scan, on=connection)).count == 2
        assert (await people.searches.blocked(("", 0, NOW, ""), scan, on=connection)).count == 0
        assert (await people.searches.unsuccessful((NOW, ""), None, scan, on=connection)).jobs == []
        assert (await people.searches.sizes(on=connection)).now == NOW
        assert (await people.cluster.unsuccessful(9, on=connection)).quarantined == 0
        assert (await people.cluster.unfinished(9, on=connection)).running == 0
    assert await store.uncounted.count() == 0
    assert await store.errors.fold(9) == 0
    assert (await people.errors.list(60, NOW, NOW, 9)).rows == []
    assert (await people.errors.read(60, NOW, NOW, "f")).rows == []
    assert (await people.inspections.backlog()).rows[0].oldest_due_at == NOW - 2 * SECOND
    assert await people.limits.blocked() == ({}, False)
    assert await people.limits.blocked_names() == ({}, False)
    assert await people.inspections.blockers(["a", "nothing"], 3) == []
    assert await people.worker_reads.running() == []
    assert await people.worker_reads.slots("b") == []
    assert await people.worker_reads.unsuccessful("w1", NOW) == []
    assert await people.worker_reads.completed("w1", NOW, [IdRange("a", "b", 9)]) == []
    assert await people.limits.next_starts([("limit:a:", 1, 1.0)]) == {}
    assert await people.limits.holders(["limit:a:"], 9) == []
    assert await people.limits.queue(["limit:a:"], 9) == []
    assert await people.limits.sequences(9) == []
    assert await people.limits.heads(["zsequence:s:a"]) == {}
    assert await people.limits.sequence_of("a") is None
    assert await people.inspections.expiring(["nothing"], [None]) == (0, 0, None, [0], False)
    assert await people.inspections.estimate_due() >= 0
    assert await people.workflows.family("nobody", for_retry=False) == []
    assert await people.workflows.children("a") == []
    assert await people.workflows.owner("a") is None
    assert await people.workflows.open_steps("signal", 9) == []
    assert await people.workflows.count_open() == []
    assert (await people.workflows.progress(["a"]))["a"].steps == 0
    assert await people.inspections.slot_use(NOW, NOW) == []
    inspected = await people.inspections.job("b")
    assert inspected is not None
    assert (inspected.task, inspected.now) == (NAME, NOW)
    assert (await people.inspections.queue(inspected.job, [])).ahead == 3
    assert (await people.inspections.tenant_queue(inspected.job)).ahead == 0
    assert (await people.inspections.sequence_queue(inspected.job)).ahead == 0
    assert (await people.inspections.queue(inspected.job, [NAME])).ahead == 1
    assert await people.inspections.locks("b") == []
    assert await people.worker_reads.workers() == []
    assert len(await people.inspections.migrations(1)) == 1
    assert await people.limits.use("limit:a:") == (0, 0)
    assert await people.limits.keys("limit:nothing:") == ([], False)
    assert await people.inspections.steps("n") == []
    assert await people.inspections.waits("n") == []
    assert await people.inspections.published("n") == []
    assert await people.limits.tenants(["share:a:"]) == ([("share:a:", 0, None)], False)
    assert await people.limits.in_flight() == ({}, False)
    assert await people.inspections.look("a") is None
    assert await people.inspections.parents("n") == [("a", "pending")]
    assert [job.job_id for job in (await people.inspections.linked_jobs("n", 9))[0]] == ["a"]
    assert await people.inspections.edges(["a", "n"], 9) == [("a", "n")]
    assert await people.inspections.edges(["a", "other"], 9) == []
    assert await people.doctor.schema_problem() is None
    assert await people.doctor.find_missing_indexes() == []
    assert (await people.doctor.tables())[0].options["fillfactor"] == "45"
    assert "job_id" in (await people.doctor.indexes())[0].columns
    assert (await people.doctor.settings())["track_counts"].value == "on"
    assert await people.cluster.totals(9) == []
    assert {row.schedule_id for row in await people.cluster.schedules(9)} <= {"declared"}
    assert (await people.cluster.server()).oldest_transaction_s >= 0
    assert await people.cluster.last_death(10) is None
    assert await people.doctor.quarantined(9.0) == ([], False)
    assert await people.doctor.failing(9.0, 99.0) == []
    assert await people.doctor.expired_names(9.0) == []
    assert await people.doctor.expiry_causes(9.0) == []
    assert await people.doctor.endings(9.0) == (
        {"completed": 0, "failed": 0, "cancelled": 0, "expired": 0},
        0.0,
    )
    assert await people.doctor.running() == []
    assert (await people.doctor.payloads(9, 0))[0].jobs > 0
    assert await people.doctor.orphaned_steps() == (0, [])
    assert set(await people.doctor.oldest()) <= {"failed", "cancelled", "expired"}
    assert await people.doctor.overdue(9.0) == []
    assert await people.doctor.schedule_tasks() == ([], False)
    assert await people.doctor.lost_schedules(["a"]) == ["a"]
    assert await people.doctor.retired() == []
    assert await people.doctor.herds(0) == []
    assert await people.doctor.broken() == []
    assert isinstance(await people.doctor.ahead(), list)
    assert await people.doctor.zoned() == []
    assert "scheduled_jobs" in await people.deploy.tables()
    pages = [page async for page in people.deploy.unfinished(is_migrated=True)]
    read = [job for page in pages async for job in people.deploy.with_arguments(page)]
    assert json.loads(read[0].task_data or "") == {"args": [], "kwargs": {}}
    assert [page async for page in people.deploy.steps(["a", "b"])] == [[]]
    assert [step async for step in people.deploy.with_values([CheckedStep("a", "n", "step", None, 9)])] == []
    assert (await people.server.ping()).seconds > 0
    assert (await people.server.role()).database
    (rights,) = await people.server.rights(["scheduled_jobs"])
    assert (rights.is_owned, rights.may_create, rights.privileges) == (True, True, list(PRIVILEGES))
    assert all(holder.kind == "transaction" for holder in await people.server.holders())
    assert sum(group.connections for group in await people.server.connections()) > 0
    assert 0 <= await people.server.notification_queue() < 1
    assert await people.server.locking_schedules() == 0
    assert await people.server.changes_session() in {False, None}
    assert await people.server.receives_notification(20) in {True, None}
    assert await people.server.has_own_session()
    await store.workers.register(worker(), LEASE)
    figures = JobFigures(started=2)
    assert await store.statistics.add("w1", 1, {"mail.send": figures})
    assert [row.figures for row in (await people.statistics.read(60.0, ["mail.send"], 9)).rows] == [figures]
    assert (await people.statistics.read(60.0, ["other"], 9)).rows == []
    by_name = await people.statistics.add_up_by_name(EPOCH, None, 9)
    assert by_name.totals == {"mail.send": figures}
    (added,) = (await people.statistics.add_up(60.0, timedelta(days=1), ["mail.%"], 9)).rows
    assert (added.job_name, added.figures) == ("", figures)
    assert await people.statistics.starts_per_s(600.0) is not None
    assert await store.statistics.fold(60, 600, -1, 9) == 1
    assert await store.statistics.fold(600, None, -1, 9) == 1
    assert await due_in(store, [NAME]) == 0
    claims = {claim.job_id: claim for claim in (await store.claims.exchange("w1", [NAME], 10)).jobs}
    assert list(claims) == ["f", "a", "b", "c", "d", "e"]
    assert (await store.workers.renew("w1", dict.fromkeys(claims, 1), LEASE)).lost == []
    reports = {"a": (claims["a"], JobProgress(1, 2.5, "ö"))}
    assert await store.progress.write_progress("w1", reports) == {"a"}
    assert await store.progress.write_look("w1", claims["a"], '{"attempt": 1, "log": ["ö"]}')
    assert await store.progress.remove_look(claims["a"])
    sleep = await store.steps.store("w1", claims["f"], "ö", SLEEP, None, version=2, delay_s=1.0)
    assert sleep == StoredStep("ö", SLEEP, None, has_ended=False, until=NOW + SECOND, left_s=1.0)
    assert await store.steps.load("f") == [sleep]
    await store.streams.append("w1", claims["f"], "first", [NewItem("ö", 1, '"ö"')])
    assert await store.streams.sizes("f") == [("ö", 1, 4)]
    (streamed,) = await store.streams.read([Wanted("f", "ö", 0, 1)])
    assert streamed.items == [(1, '"ö"')]
    async with store.connections.transaction() as connection:
        family = await store.steps.find_children("w1", claims["f"], "ö", {"nobody": None}, connection)
        assert [row.state for row in family.rows.values()] == [None]
        assert await store.steps.keep_holders_results(["f"], 60.0, connection) == [("f", "running", None)]
    assert await store.steps.end("w1", claims["f"], "ö")
    await store.steps.repeat_wait("w1", claims["f"], "ö", 1, delay_s=1.0, until=None)
    limits = [("limit:a:", LimitNumbers(1, 9, 60.0))]
    requests = [AdmissionRequest(claims[each], limits) for each in "fa"]
    answer = await store.limits.admit("w1", requests, {"limit:a:": 60.0})
    assert answer == {"f": None, "a": "limit:a:"}
    assert await store.limits.block_surplus("limit:a:", [NAME], SurplusPosition(1, NOW, ""), 9) == []
    assert await store.limits.read_surplus([NAME], SurplusPosition(1, NOW, ""), 9, 100) == []
    assert await store.limits.blocked_keys("after", 9) == ["limit:a:"]
    assert await store.shares.tenants("share:", 9) == []
    assert await store.shares.feed(["share:s:t"], {"share:s:": [NAME]}, [NAME]) == Fed(0, None, 25, True)
    assert await store.shares.find_locked(["a"]) == set()
    assert await store.sequences.waiting("zsequence:", 9) == []
    assert await store.sequences.find_idle(["zsequence:s:ö"]) == {}
    assert await store.sequences.find_past(9) == []
    assert await store.sequences.move(["zsequence:s:ö"]) == Moved(0, None, set(), {})
    await WrittenSequences(store.statements).move_waiting()
    over = await store.sequences.hand_over(
        "w1", [claims["a"]], keep=True, names=[NAME], room=1, isolated_from=2
    )
    assert over == HandedOver([], [], 0, None, [])
    async with store.statements.transaction() as transaction:
        assert await store.sequences.pass_on([], transaction) == ()
    assert await store.sequences.resume("zsequence:s:ö", "ö") is None
    assert not await store.sequences.skip_failed("zsequence:s:ö", "ö")
    assert await store.sequences.move_to_front("ö") is None
    (unblocked,) = await store.limits.unblock({"limit:a:": [[LimitNumbers(9, 9, 60.0)]]}, 9)
    assert unblocked == ("limit:a:", None, 1, 0, NOW, [NAME])
    assert await store.limits.unblock_late(["limit:a:"], None, 9) == (0, None)
    assert await store.limits.unblock_unclaimed(["limit:a:"], [NAME], "w1", 9) == {NAME}
    assert await store.limits.unblock_forgotten(["limit:a:"], [NAME], 9) == 0
    await store.limits.delete_past_starts(9)
    (claims["a"],) = (await store.claims.exchange("w1", [NAME], 10)).jobs
    assert await store.signals.job_name("a") == NAME
    assert await store.signals.end_sleep("a") is None
    assert await store.signals.send("a", "go", "[1]") == SentSignal(is_stored=True)
    assert await store.signals.send_message("a", "mail", "[1]") == SentSignal(is_stored=True)
    audience = Audience(["any"], '{"a": 1}', ["a"])
    assert await store.signals.broadcast("go", audience, lambda _: "[1]") == Reached(0, None)
    await store.inserts.replace([new_job("a", task_data='{"args":["new"],"kwargs":{}}')])
    outcomes: list[Outcome] = [
        COMPLETE,
        COMPLETE,
        Outcome.fail("no"),
        Outcome.retry(SECOND, "no"),
        Outcome.skip("no"),
        RELEASE,
    ]
    assert await store.results.settle(
        "w1", list(zip((claims[each] for each in "abcdef"), outcomes, strict=True))
    )
    async with store.statements.transaction() as transaction:
        completion = RowChange(JobStatus.COMPLETED, kept=KeptResult(1.0, "[]"))
        await store.progress.write_own_progress("w1", claims["a"], JobProgress(1), transaction)
        connection = transaction.connection
        assert not await store.results.complete_plain(claims["a"], "w1", connection)
        assert not await store.results.complete_own(claims["a"], completion, "w1", transaction, is_own=True)
        number = await store.results.transaction_id(transaction.connection)
    assert await store.results.has_committed(claims["a"], "w1", number)
    assert not await store.results.has_committed(claims["a"], "w1", 2**62)
    assert not await store.results.was_rolled_back(claims["a"], "w1", number)
    kept = {"a": KeptResult(1.5, "[1]"), "b": KeptResult(60.0, "[2]", None, '{"type": "x"}')}
    async with store.connections.transaction() as connection:
        await store.kept_results.keep(kept, connection, are_outcomes=True)
        assert await store.passed_results.clear(["c"], connection) == {"c": "result:"}
        await store.passed_results.copy([Edge("b", "c", "")], {"c": "next:"}, connection)
        await store.passed_results.take_over(["c"], connection)
        await store.passed_results.copy([Edge("b", "c", None)], {"c": "child:"}, connection)
    assert list(await store.passed_results.of_children("c", "step", ["b", "a"])) == ["b"]
    (passed,) = await store.passed_results.get("c", await store.passed_results.names("c"))
    assert (passed.value, passed.attempts, passed.finished_at) == ([2], 1, NOW)
    results = await store.kept_results.get(["b", "nobody"])
    assert results["b"] is not None
    assert (results["b"].value, results["b"].attempts) == ([2], 1)
    assert await store.kept_results.vacuum(10) == 0
    await store.jobs.cancel("f")
    assert await store.jobs.retry("f")
    assert not await store.jobs.keep("f")
    version = await store.jobs.version("f")
    assert not await store.jobs.change("f", version or "", "{}", 5)
    await store.jobs.cancel("f")
    assert await store.jobs.retry_from("f", "ö")
    await store.jobs.cancel("f")
    await store.jobs.set_status("e", JobStatus.RUNNING, LEASE)
    assert (await store.workers.renew("w1", {}, LEASE, liveness_key=2**62)).alive
    await store.workers.announce_subscriptions("w1", ["JobFailed"], "subscriptions w1")
    assert await store.workers.request_state(["w1", "w0"], "drain") == ["w1"]
    assert list(await store.workers.suspect_workers("w2")) in ([], ["w1"])  # depends on the age of the server
    await store.workers.scan_deadlines(30, 120)
    await store.workers.next_instants("w1")
    await store.workers.restart_leases()
    assert await store.jobs.correct_due_times(10) == 0
    assert not (await store.jobs.find_uncorrected()).is_left
    await store.workers.rescue(120)
    assert await store.claims.release_unacknowledged("w1", {}) == []
    await store.jobs.overdue_names("w1", [NAME], 10)
    await store.jobs.expire("w1", [NAME], 10)
    assert await store.jobs.end_past_deadlines(10) == []
    assert await store.jobs.forget_deadlines(10) == 0
    job = await store.jobs.get_job("a")
    assert await store.jobs.get_jobs(["a", "missing"]) == [job]
    assert job
    assert len(await store.workers.list_workers()) == 1
    assert await store.claims.claim_one("w1", "missing") is None
    written = WrittenJobs(store.statements, store.consequences)
    assert await written.claim_next("w1", ["no.such.name"], None) is None
    assert await written.claim_next("w1", ["no.such.name"], ["missing"]) is None
    assert await written.ids(due_at=NOW) <= await written.ids()
    assert NAME in await written.ready_names()
    await written.mark_uncommitted()
    assert await WrittenPauses(store.statements).names() == set()
    assert await store.jobs.move(["missing"], by_s=1) == []
    assert await store.jobs.delete(["missing"]) == []
    await store.audit.record("trigger_schedule", "s", job_id="a")
    assert await people.audit_records.trigger_changes(["s"], 9) == {}
    newest, *_ = await people.audit_records.newest_records(["s", "t"], ["trigger_schedule"], 9)
    assert (newest.subject, newest.details["job_id"]) == ("s", "a")
    assert await people.audit_records.newest_records(["s"], ["mute_error"], 9) == []
    none = ScheduleFilters(["%"], NAME, "s")
    numbers, is_capped = await people.schedule_lists.count(none)
    assert (numbers["all"], is_capped) == (0, False)
    assert await people.schedule_lists.find(none, "paused", None, 9) == ([], None)
    assert await people.schedule_lists.state("s") is None
    assert await people.bulk_runs.begin("run", {"verb": "cancel"}, "start_bulk") == 1
    await people.bulk_runs.stop("run")
    await people.bulk_runs.end("run", 1, "why")
    run = await people.bulk_runs.read("run")
    assert await people.bulk_runs.recent(9) == [run]
    assert run is not None
    assert (run.details, run.phase, run.error, run.last_at) == ({"verb": "cancel"}, "stopped", "why", NOW)
    assert await store.audit.vacuum(NOW - SECOND, 10) == 0
    assert (await store.identity.adopt(hold=True)).tasks > 0
    assert NAME in {hold.name for hold in (await store.identity.held())[0]}
    assert NAME in (await store.identity.release()).tasks
    await store.locks.notify(["due"])
    await store.locks.notify_once("due")
    async with store.connections.transaction() as connection:
        assert await store.locks.session_pid(connection) > 0
    assert await store.locks.blockers(1) == []
    assert await store.locks.find_holders() == ()
    async with store.locks.advisory_lock(1) as taken:
        assert taken
    page = await store.jobs.list_jobs(
        after=None, statuses=None, names=None, worker_id=None, due_from=None, due_before=None, limit=9
    )
    found = await store.jobs.list_jobs(
        after=None,
        statuses=None,
        names=None,
        worker_id=None,
        due_from=None,
        due_before=None,
        limit=9,
        metadata="{}",
    )
    assert found == []
    assert await store.jobs.cancel_next(None, JobFilters(metadata='{"a": 1}')) == ([], None)
    assert len((await store.jobs.cancel_next(None, JobFilters(names=["nobody.knows"])))[0]) == 8
    counts = await store.jobs.count_jobs(None)
    return job.args, len(page), counts.total


@pytest.mark.parametrize(
    ("use", "expected"),
    [(use_vacuum, 1), (use_schedules, [(0, 2, None), (3, 0, "job")]), (use_path, (("new",), 9, 15))],
)
@pytest.mark.parametrize("codec", ["text", "binary"])
async def test_store_works_with_codecs_of_the_pools_owner(
    codec: str, use: Use, expected: object, dsn: str, clock: FakeClock
) -> None:
    async def init(connection: Connection) -> None:
        for kind in ("json", "jsonb"):
            if codec == "text":
                await connection.set_type_codec(
                    kind, schema="pg_catalog", encoder=json.dumps, decoder=json.loads
                )
            else:
                await connection.set_type_codec(
                    kind,
                    schema="pg_catalog",
                    format="binary",
                    encoder=lambda value: b"\x01" + json.dumps(value).encode(),
                    decoder=lambda value: json.loads(value[1:]),
                )
        await connection.set_type_codec(
            "numeric", schema="pg_catalog", format="text", encoder=str, decoder=float
        )
        await connection.execute("SET TIME ZONE 'Asia/Kathmandu'; SET DateStyle = 'German'")

    async with asyncpg.create_pool(dsn, min_size=1, max_size=2, init=init) as pool:
        assert await use(Store(Connections(pool), clock=clock)) == expected


class OwnRecord(asyncpg.Record):
    def __getattr__(self, name: str) -> Any:
        return self[name]


async def test_store_works_with_a_record_class_of_the_pools_owner(dsn: str, clock: FakeClock) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2, record_class=OwnRecord) as pool:
        store = Store(Connections(cast("Pool", pool)), clock=clock)
        assert await use_path(store) == (("new",), 9, 15)


async def test_store_works_without_a_statement_cache(dsn: str, clock: FakeClock) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1, statement_cache_size=0) as pool:
        assert await use_path(Store(Connections(pool), clock=clock)) == (("new",), 9, 15)


async def test_store_uses_the_database_clock_when_there_is_no_test_clock(pool: asyncpg.Pool) -> None:
    connections = Connections(pool)
    store = Store(connections)
    before = await pool.fetchval("SELECT clock_timestamp()")
    now = await store.statements.read_clock()
    assert before <= now <= await pool.fetchval("SELECT clock_timestamp()")
    await store.inserts.insert([new_job(execution_time=now)])
    await store.workers.register(worker(), LEASE)
    (claim,) = (await store.claims.claim("w1", [NAME], 1)).jobs
    assert await store.claims.complete("w1", [claim], keep=True) == set()
    assert now <= (await row(pool))["finished_at"]
    assert await store.jobs.cancel("job") == StatusChange(False, None)
    await connections.release_held()


async def test_codec_test_covers_every_store_method_that_has_no_other_test(pool: Pool) -> None:
    here = inspect.getsource(inspect.getmodule(use_path) or pytest)
    elsewhere = {
        "begin",
        "schema",
        "locks.channel",
        "locks.watching",
        "jobs.statuses_of",
        "jobs.cancel_within",
        "jobs.read_revoked",
        "claims.held_claim",
        "claims.explain_expiry",
        "claims.quarantine_oversized",
        "claims.quarantine",
        "results.count_crashes",
        "results.find_cancelled",
        "results.find_blockers",
        "results.settle_divided",
        "results.settle_unlocked",
        "results.settle_within",
        "kept_results.keep_ended",
        "dependencies.await_jobs",
        "dependencies.lock_schedules",
        "dependencies.queue_retried",
        "dependencies.mark_uncommitted",
        "dependencies.release_children",
        "steps.has_rolled_back",
        "steps.is_locked_by",
        "workers.deregister",
        "workers.ended_namesakes",
        "workers.mark_stopping",
        "jobs.waiting_names",
    }
    store = Store(Connections(pool))
    methods = methods_of(store) | methods_of(InspectionStore(store))
    assert {name for name in methods if not re.search(rf"(store|people)\.{name}\(", here)} <= elsewhere


def test_no_statement_that_writes_takes_the_begin_of_its_transaction_for_now() -> None:
    """The transaction may be one of the application, and old. What only reads may show one instant."""
    texts = {name: re.sub(r"--.*", "", query.text) for name, query in QUERIES.items()}
    begin = re.compile(
        r"\b(?:now\(\)|transaction_timestamp\(\)|current_(?:timestamp|time|date)\b)", re.IGNORECASE
    )
    writing = re.compile(r"\b(?:INSERT INTO|UPDATE|DELETE FROM|FOR UPDATE|FOR NO KEY UPDATE)\b")
    assert sorted(name for name, text in texts.items() if begin.search(text) and writing.search(text)) == []
    reading = {name for name, text in texts.items() if begin.search(text)}
    assert len(reading) > 20, "the search finds nothing any more"
