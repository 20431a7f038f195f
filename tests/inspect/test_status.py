"""The state of everything in sentences."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from pg_scheduler import Scheduler
from pg_scheduler.inspect import (
    Diagnosis,
    Finding,
    FindingCode,
    Inspector,
    Severity,
    Statistics,
    StatisticsRow,
    Status,
    Totals,
)
from pg_scheduler.inspect.cluster import ClusterFigures
from pg_scheduler.inspect.status import AREAS, STATUS_CODES, describe_status
from pg_scheduler.inspect.store.cluster import ScheduleRow
from pg_scheduler.inspect.store.doctor import TableRow
from pg_scheduler.inspect.store.inspections import BacklogRow
from pg_scheduler.inspect.store.workers import InspectedWorker
from pg_scheduler.jobs.worker_report import ReportedHealth
from tests.support.inside import OUTCOMES, JobFigures
from tests.support.world import World

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def worker(name: str = "w1", **changes: Any) -> InspectedWorker:
    values: dict[str, Any] = {
        "hostname": "host", "slots": 25, "running_jobs": 20, "is_alive": True, "claims_jobs": True,
        "is_draining": False, "names": frozenset({"mail"}), "aliases": {}, "health": ReportedHealth(),
        "lease_until": NOW, "reclaim_at": None,
    }  # fmt: skip
    return InspectedWorker(worker_id=name, **(values | changes))


def figures(**changes: Any) -> ClusterFigures:
    values: dict[str, Any] = {
        "backlog": [], "is_capped": False, "blocked": {}, "quarantined": 0,
        "totals": Totals(9_800_000, 45_000, 0, 3), "workers": [worker(), worker("w2", running_jobs=21)],
        "paused": [], "schedules": [], "jobs": [],
        "tables": [TableRow("scheduled_jobs", {}, 0, 0, 0, 12, 0, 0, None, 0, 2_500_000)],
        "now": NOW, "clock_skew_s": 0.0, "oldest_transaction_s": 0.0, "last_death_at": None,
    }  # fmt: skip
    return ClusterFigures(**(values | changes))


NONE = (0,) * len(OUTCOMES)


def described(found: ClusterFigures, *findings: Finding, ended: tuple[int, ...] = NONE) -> Status:
    row = StatisticsRow(NOW, timedelta(minutes=1), "mail", JobFigures(ended=ended))
    statistics = Statistics(NOW - timedelta(minutes=15), NOW, (row,), True)
    return describe_status(found, statistics, Diagnosis.of(findings, list(FindingCode), ()))


def texts(status: Status) -> dict[str, str]:
    return {each.area: each.text for each in status.areas}


def test_one_job_and_one_dead_row_are_no_plurals() -> None:
    table = TableRow("scheduled_jobs", {}, 0, 0, 0, 1, 0, 0, None, 0, 2_500_000)
    status = described(figures(totals=Totals(1, 1, 0, 0), tables=[table]))
    assert texts(status)["jobs"] == "none waiting; about 1 unfinished job in all"
    assert texts(status)["tables"].startswith("2.5 MB, 1 dead row, ")


def test_one_sentence_states_that_all_is_well() -> None:
    status = described(figures(), ended=(7, 1, 0, 0, 0, 0, 0, 0, 2, 0))
    assert status.sentences == ("All is well: 2 workers, 41 of 50 slots busy, nothing late.",)
    assert (status.severity, {each.severity for each in status.areas}) == (Severity.OK, {Severity.OK})
    assert texts(status) == {
        "jobs": "none waiting; about 45 k unfinished jobs in all",
        "results": "7 completed, 3 failed (2 lost) in 15 min",
        "workers": "2 alive, 41 of 50 slots busy",
        "schedules": "0 active",
        "tasks": "none paused",
        "limits": "no job is blocked",
        "tables": "2.5 MB, 12 dead rows, the oldest transaction since 0 ms",
    }


def test_figures_of_every_area_are_shown() -> None:
    found = figures(
        backlog=[
            BacklogRow("mail", 3, 1, NOW - timedelta(minutes=3)),
            BacklogRow("report", 4, 0, NOW - timedelta(minutes=2)),
            BacklogRow("idle", 0, 1, None),
        ],
        is_capped=True,
        blocked={"limit:api": 4, "after": 1},
        paused=["mail", "report"],
        totals=Totals(None, None, None, None),
        workers=[worker(is_draining=True), worker("w2", is_alive=False)],
        schedules=[
            ScheduleRow("a", "mail", True, NOW + timedelta(hours=3), None, 0.0, "active"),
            ScheduleRow("b", "report", False, None, None, 0.0, "paused"),
        ],
        oldest_transaction_s=180.0,
    )
    shown = texts(described(found))
    assert shown["jobs"] == "waiting 12+: due 7+, blocked 5, the oldest since 3 min (mail)"
    assert shown["limits"] == "blocked jobs: 1 by after, 4 by limit:api"
    capped = figures(blocked={"limit:api": 4}, is_blocked_capped=True)
    assert texts(described(capped))["limits"] == "blocked jobs: 4+ by limit:api"
    assert texts(described(capped))["jobs"].startswith("waiting 4+: due 0, blocked 4+;")
    assert shown["tasks"] == "2 paused: mail, report"
    assert shown["workers"] == "1 alive, 20 of 25 slots busy, 1 draining"
    assert shown["schedules"] == "1 active, 1 paused, next fires in 3 h"
    assert shown["tables"].endswith("the oldest transaction since 3 min")
    overdue = figures(
        schedules=[ScheduleRow("a", "mail", True, NOW - timedelta(hours=1), None, 3600.0, "overdue")]
    )
    assert texts(described(overdue))["schedules"] == "0 active, 1 overdue: a"
    not_resumed = figures(schedules=[ScheduleRow("a", "mail", False, NOW, None, 3600.0, "overdue")])
    assert texts(described(not_resumed))["schedules"] == "0 active, 1 overdue: a"


def test_jobs_that_a_pause_holds_are_due_and_not_late() -> None:
    backlog = [
        BacklogRow("held", 20, 0, NOW - timedelta(minutes=9)),
        BacklogRow("mail", 2, 0, NOW - timedelta(seconds=3)),
    ]
    status = described(
        figures(backlog=backlog, held=frozenset({"held"}), totals=Totals(None, None, None, None))
    )
    assert status.sentences[0].endswith(" slots busy, nothing late, 20 due jobs of paused tasks.")
    assert texts(status)["jobs"] == (
        "waiting 22: due 22, blocked 0, the oldest since 3 s (mail), 20 of paused tasks"
    )


def test_findings_make_sentences_and_the_severity_of_their_areas() -> None:
    late = Finding(FindingCode.LATE, Severity.ERROR, "mail", "3 jobs of mail wait", "start workers")
    bloat = Finding(FindingCode.BLOAT, Severity.WARNING, "scheduled_jobs", "9 dead rows")
    status = described(figures(), bloat, late)
    assert status.severity is Severity.ERROR
    assert status.sentences == ("LATE: 3 jobs of mail wait; start workers", "BLOAT: 9 dead rows")
    assert {each.area: each.severity for each in status.areas if each.severity is not Severity.OK} == {
        "jobs": Severity.ERROR,
        "tables": Severity.WARNING,
    }
    many = [Finding(FindingCode.LATE, Severity.ERROR, str(n), f"{n} waits") for n in range(7)]
    sentences = described(figures(), *many).sentences
    assert len(sentences) == 6
    assert sentences[-1] == "and 2 more findings: pg-scheduler doctor"
    assert described(figures(), *many[1:]).sentences[-1] == "and 1 more finding: pg-scheduler doctor"


def test_information_is_no_sentence() -> None:
    note = Finding(FindingCode.WORKER_DRAINING, Severity.INFO, "w1", "drains")
    status = described(figures(), note)
    assert status.sentences[0].startswith("All is well")
    assert status.severity is Severity.INFO


def test_codes_of_areas_are_distinct() -> None:
    codes = [code for area in AREAS.values() for code in area]
    assert len(codes) == len(set(codes))
    assert {"LATE", "WORKER-NONE", "FAILING"} <= {code.value for code in FindingCode} & set(codes)


async def test_status_of_a_database_is_read(pool: asyncpg.Pool, world: World) -> None:
    inspector = Inspector(pool)
    without = await inspector.status()
    assert without.severity is Severity.ERROR
    assert without.sentences[0].startswith("WORKER-NONE: no live worker runs jobs; start a worker")
    await world.worker(state="running")
    status = await inspector.status()
    assert status.sentences == ("All is well: 1 worker, 1 of 2 slots busy, nothing late.",)
    assert [each.area for each in status.areas] == list(AREAS)


def test_estimate_that_is_less_than_what_was_counted_is_left_out() -> None:
    backlog = [BacklogRow("mail", 3, 1, NOW - timedelta(minutes=3))]
    found = figures(backlog=backlog, totals=Totals(9, 0, 0, 0))
    assert texts(described(found))["jobs"] == "waiting 3: due 3, blocked 0, the oldest since 3 min (mail)"


async def test_status_makes_its_checks_where_jobs_run_and_not_on_the_read_pool(
    pool: asyncpg.Pool, dsn: str
) -> None:
    """The tables of another schema stand for a standby on which nothing is wrong."""
    await pool.execute("CREATE SCHEMA copied")
    search_path = {"search_path": "copied"}
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2, server_settings=search_path) as copied:
        await Scheduler(copied).initialize_db()
        await World(copied).worker()
        scheduler = Scheduler(pool)
        await scheduler.schedule_job("status.late", datetime.now(UTC) - timedelta(hours=1), {}, job_id="late")
        inspector = Inspector(scheduler, read_pool=copied)
        assert await inspector.get_job("late") is None
        found = {finding.code for finding in (await inspector.doctor(only=STATUS_CODES)).findings}
        assert FindingCode.WORKER_NONE in found
        assert (await inspector.status()).severity is Severity.ERROR
