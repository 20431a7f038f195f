"""What workers report in their rows, with each value replaced by others: no reader fails at any of them.

A row may be that of another release, and people can write rows. The values are those of a worker
that has started, and those that it reports in trouble, so a new one is examined without a change here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, TypeAlias

import asyncpg
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pg_scheduler import Limit, Scheduler, Share, call, periodic
from pg_scheduler.dashboard import Access, dashboard
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.inspect import Inspector
from pg_scheduler.telemetry.cluster import ClusterCollector
from pg_scheduler.triggers import Every
from tests.dashboard.client import JSON, request
from tests.support.catalogues import clear_registrations
from tests.support.inside import run_command
from tests.support.patience import PATIENCE
from tests.support.stories import LONG, NIGHTLY
from tests.support.world import DAY, HOUR, World

TASK: Final = "rows.work"
LIMIT: Final = "rows.limit"
SCHEDULE: Final = "rows.hourly"

Report: TypeAlias = Mapping[str, Any]
Faults: TypeAlias = dict[str, object]

IN_TROUBLE: Final[Mapping[str, Any]] = {
    "loop_blocked_s": 40.0,
    "blocking_job_id": "job",
    "blocking_job_name": TASK,
    "last_blocked": {"seconds": 9.0, "job_id": "job", "job_name": TASK},
    "clock_offset_s": 7.0,
    "is_logger_disabled": True,
    "is_listening": False,
    "has_liveness_lock": False,
    "missing_executors": {TASK: "gpu"},
    "unknown_zones": {SCHEDULE: "Europe/Kyiv"},
    "refused_claims": {"job": "P0001"},
    "refused_names": [TASK],
    "held": {"job": 1},
    "abandoned": [
        {
            "job_id": "job",
            "job_name": TASK,
            "attempt": 1,
            "reason": "cancelled",
            "since": "2026-11-01T00:00:00+00:00",
            "in_thread": True,
            "has_slot": False,
        }
    ],
}
"""What the health of a worker has besides, or instead, while something is wrong with it."""

VALUES: Final[Mapping[str, str | None]] = {
    "missing": None,
    "null": "null",
    "true": "true",
    "false": "false",
    "zero": "0",
    "negative": "-7",
    "large integer": "1" + "0" * 400,
    "infinite": "1" + "0" * 400 + ".5",
    "minus infinite": "-1" + "0" * 400 + ".5",
    "text": '"a <b> \\u202e"',
    "empty text": '""',
    "list": "[7]",
    "list of lists": '[[null], ["a"], ["a", true, 3]]',
    "list of objects": '[{}, {"name": 7}, {"name": "a", "max_running": "x", "per_s": []}]',
    "object": '{"a": 7}',
    "object of objects": '{"a": {"b": null}, "rows.work": {"c": []}, "completed": {"days": "x"}}',
    "object of lists": '{"rows.work": [[7, 7], "x", {}], "b": []}',
}
"""Values of JSON by their names; None for no value."""

ONE_OF_EACH_KIND: Final = (
    *("missing", "large integer", "text", "list of objects", "object of objects", "object of lists"),
)
REPORTED: Final = tuple(VALUES) if LONG else ONE_OF_EACH_KIND
"""The names of the values that the reports have. A test with one value takes some seconds."""

COMMANDS: Final = (
    *(["status"], ["doctor"], ["stats"], ["workers", "list"], ["workers", "show", "w0"], ["tasks", "list"]),
    *(["limits", "list"], ["limits", "show", LIMIT], ["limits", "shares"], ["schedules", "list"]),
    *(["schedules", "show", SCHEDULE], ["jobs", "list"], ["jobs", "explain", "job"], ["jobs", "add", TASK]),
)

PAGES: Final = (
    *("/", "/jobs", "/job?id=job", "/job-form?id=job", "/errors", "/schedules", "/schedule-form"),
    *(f"/schedule?id={SCHEDULE}", "/calendar", "/tasks", f"/task?id={TASK}", "/limits", "/workers"),
    *(f"/limit?name={LIMIT}", "/worker?id=w0", "/doctor", "/find?q=w", "/metrics"),
)


async def work(number: int = 1, *, name: str = "") -> None:
    """Do nothing, with a parameter of each kind."""


@pytest.fixture
async def report(pool: asyncpg.Pool) -> tuple[Report, Report]:
    """Return the health and the settings that a worker reports, and every trouble that it could have."""
    # The tasks of other test modules would make the reports longer, and each value of a report is a row.
    clear_registrations()
    scheduler = Scheduler(pool)
    limit = Limit(LIMIT, max_running=2, max_starts=9, per=timedelta(minutes=1))
    share = Share("rows.share", key=lambda number=1, **_: str(number))
    scheduler.register(
        work, name=TASK, aliases=["rows.alias"], limits=[limit], share=share, keep_result=timedelta(hours=1)
    )

    @periodic(every=timedelta(hours=1), dedup_key="rows.declared")
    async def declared() -> None: ...

    async with scheduler, asyncio.timeout(PATIENCE):
        await scheduler.schedules.add(work, Every(timedelta(hours=1)), schedule_id=SCHEDULE)
        (worker,) = await scheduler.workers()
        while not worker.health:
            await asyncio.sleep(0.02)
            (worker,) = await scheduler.workers()
    return {**worker.health, **IN_TROUBLE}, worker.settings


def paths_of(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path to each value within a report."""
    if path:
        yield path
    names: Sequence[Any] = ()
    if isinstance(value, dict):
        names = list(value)
    elif isinstance(value, list):
        names = range(len(value))
    for name in names:
        yield from paths_of(value[name], (*path, name))


def with_value(report: Report, path: tuple[str | int, ...], text: str | None) -> str:
    """Return the JSON of a report in which a value is replaced, or removed."""
    mark = "the value of this test"
    document = json.loads(json.dumps(dict(report)))
    holder = document
    for name in path[:-1]:
        holder = holder[name]
    if text is None:
        del holder[path[-1]]
    else:
        holder[path[-1]] = mark
    return json.dumps(document).replace(json.dumps(mark), text or "")


async def write_rows(world: World, report: tuple[Report, Report], text: str | None) -> int:
    """Write the row of a worker for each value that it reports, and return how many there are."""
    health, settings = report
    whole = json.dumps(dict(health)), json.dumps(dict(settings))
    rows: list[tuple[str | None, str | None]] = [(text, whole[1]), (whole[0], text), (text, text)]
    rows += [(with_value(health, path, text), whole[1]) for path in paths_of(dict(health))]
    rows += [(whole[0], with_value(settings, path, text)) for path in paths_of(dict(settings))]
    # The readers take longer than a lease where other tests run at the same time, and the doctor judges
    # neither the first seconds of a worker, nor one without a heartbeat.
    times = {"started": -DAY, "lease": HOUR}
    for number, (health_text, settings_text) in enumerate(rows):
        await world.worker(f"w{number}", names=[TASK], health=health_text, settings=settings_text, **times)
    for number, names in enumerate(([], [None], [None, TASK], [[TASK, None]], [["a"], ["b"]])):
        await world.worker(f"names{number}", names=names, health=whole[0], settings=whole[1], **times)
    return len(rows)


async def ask_inspector(inspector: Inspector) -> Faults:
    faults: Faults = {}
    for name in ("status", "workers", "limits", "shares", "statistics", "tasks", "schedules", "doctor"):
        try:
            answer = await getattr(inspector, name)()
        except Exception as error:  # noqa: BLE001 - the other methods are asked too
            faults[name] = repr(error)
        else:
            faults |= {
                f"doctor {check.code}": check
                for check in getattr(answer, "not_made", ())
                if not check.reason.startswith("statistics are off")  # which a worker may report
            }
    with suppress(ConfigurationError):  # workers report different policies, or none
        await inspector.retention()
    return faults


async def ask_dashboard(scheduler: Scheduler) -> Faults:
    faults: Faults = {}
    app = dashboard(scheduler, authorize=lambda _: Access("ada", "admin"))
    for page in PAGES:
        for headers in ({}, JSON):
            answer = await request(app, page, headers=headers)
            if answer.status != 200:
                faults[page] = answer.status, answer.text[-200:]
    return faults


async def ask_command_line(dsn: str, capsys: pytest.CaptureFixture[str]) -> Faults:
    faults: Faults = {}
    for command in COMMANDS:
        code = await asyncio.to_thread(run_command, [*command, "--dsn", dsn])
        errors = capsys.readouterr().err
        if code not in {0, 1}:
            faults[" ".join(command)] = code, errors[-1000:]
    return faults


async def ask_metrics(inspector: Inspector) -> Faults:
    registry = CollectorRegistry()
    registry.register(ClusterCollector(inspector))
    text = (await asyncio.to_thread(generate_latest, registry)).decode()
    return {} if "pg_scheduler_cluster_collect_errors_total 0.0" in text else {"metrics": text}


@NIGHTLY
@pytest.mark.slow
@pytest.mark.parametrize("value", REPORTED)
async def test_every_reader_accepts_every_report_of_a_worker(
    world: World,
    dsn: str,
    report: tuple[Report, Report],
    capsys: pytest.CaptureFixture[str],
    value: str,
) -> None:
    assert await write_rows(world, report, VALUES[value]) > 100
    scheduler = Scheduler(world.pool)
    scheduler.register(work, name=TASK)
    await scheduler.enqueue(call(work, 1), job_id="job")
    inspector = Inspector(scheduler)
    faults = await ask_inspector(inspector)
    faults |= await ask_dashboard(scheduler)
    faults |= await ask_metrics(inspector)
    faults |= await ask_command_line(dsn, capsys)
    async with scheduler:  # it compares its code with theirs, and looks for schedules that they will move
        pass
    assert not faults
