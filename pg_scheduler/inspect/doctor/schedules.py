"""Check whether schedules fire, and whether clock changes move their fire times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import Final, TypeVar

from pg_scheduler.base.text.json_text import load_json
from pg_scheduler.base.text.remedies import execute, then
from pg_scheduler.inspect.clock_changes import clock_effects
from pg_scheduler.inspect.doctor.check import (
    CheckResults,
    Evidence,
    SharedFacts,
    check,
    error,
    hint_at_new_name,
    info,
    warning,
)
from pg_scheduler.inspect.doctor.codes import FindingCode
from pg_scheduler.inspect.doctor.findings import Finding, Thresholds, UnmadeCheck
from pg_scheduler.inspect.store.doctor import OverdueRow, ZonedRow
from pg_scheduler.inspect.store.workers import MAX_WORKERS, InspectedWorker
from pg_scheduler.inspect.tasks import claimed_names, count_claiming
from pg_scheduler.inspect.texts import command, counted, hosts, instant, length, listed, short
from pg_scheduler.jobs.model import Worker
from pg_scheduler.jobs.worker_report import ReportedHealth, ReportedSettings
from pg_scheduler.schedules.declared import reported_declarations, service_among

AnyWorker = TypeVar("AnyWorker", Worker, InspectedWorker)

PLANNING_ROLES: Final = frozenset({"both", "scheduler"})

AHEAD: Final = timedelta(days=7)
STARTING: Final = timedelta(seconds=10)
"""How long after the start of a worker its schedules must have rows."""
MAX_SECONDS: Final = 2.0
"""Seconds after which no further fire times are computed, because this blocks the event loop."""


@check(FindingCode.SCHED_OVERDUE)
async def _check_overdue(facts: SharedFacts, thresholds: Thresholds) -> CheckResults:
    """Check whether schedules should have fired."""
    workers = await facts.once(facts.store.worker_reads.workers)
    for finding in judge_overdue(await facts.store.doctor.overdue(thresholds.overdue_s), workers):
        yield finding


@check(FindingCode.SCHED_UNKNOWN)
async def _check_tasks(facts: SharedFacts, _: Thresholds) -> CheckResults:
    """Check whether live workers claim the tasks of the schedules."""
    workers = await facts.once(facts.store.worker_reads.workers)
    claiming = [worker for worker in workers if worker.is_alive and worker.claims_jobs]
    if not claiming:
        return  # the finding is WORKER-NONE
    known_names = sorted(claimed_names(claiming))
    rows, is_capped = await facts.store.doctor.schedule_tasks()
    for row in rows:
        # The count is None, and not 0, if a worker does not report its names: it may claim any.
        if count_claiming(workers, row.task, with_draining=True) != 0:
            continue
        yield error(
            FindingCode.SCHED_UNKNOWN,
            row.task,
            Evidence(
                f"the task {row.task!r} of {counted(row.schedules, 'schedule', is_capped=is_capped)} "
                f"({listed(row.ids, row.schedules, is_capped=is_capped)}) is claimed by none of "
                f"{counted(len(claiming), 'live worker', is_capped=len(workers) >= MAX_WORKERS)}"
            ),
            execute(
                command("schedules", "pause", arguments=[row.ids[0]]),
                before="import its module in a worker, or",
            ),
            *hint_at_new_name(row.task, known_names),
        )


@check(FindingCode.SCHED_LOST)
async def _check_lost(facts: SharedFacts, _: Thresholds) -> CheckResults:
    """Check whether each schedule that the code of a live worker declares has a row."""
    workers = await facts.once(facts.store.workers.list_workers)
    now = await facts.store.statements.read_clock()
    alive = [worker for worker in workers if worker.is_alive]
    # A worker that declares it, for each id of a schedule.
    workers_by_schedule: dict[str, Worker] = {}
    for worker in alive:
        # A worker that has just started writes its schedules after its row.
        if not worker.is_stopping and now - worker.started_at > STARTING:
            for schedule_id in ReportedSettings(worker.settings).declared_ids:
                workers_by_schedule[schedule_id] = worker
    if not workers_by_schedule:
        return
    lost_ids = await facts.store.doctor.lost_schedules(workers_by_schedule)
    if not lost_ids:
        return
    code_rows, _now = await facts.store.schedules.declared([])
    for schedule_id in lost_ids:
        worker = workers_by_schedule[schedule_id]
        declarations = reported_declarations(ReportedSettings(worker.settings).declared_functions)
        # The rows that this schedule may have had under other ids, as far as the worker reports its function.
        former_rows = []
        if schedule_id in declarations:
            service = service_among(declarations, code_rows)
            former_rows = declarations[schedule_id].find_former_rows(declarations, code_rows, service)
        # A worker of another release may have given the row the key of that release. Once that worker has
        # ended, this worker gives the row its own key again, so the schedule is not lost.
        if any(row.retired_at is None for row in former_rows):
            continue
        yield error(
            FindingCode.SCHED_LOST,
            schedule_id,
            f"the code of worker {worker.worker_id} declares the schedule {schedule_id!r}, which has no row",
            "restart that worker: every start writes the schedules of its code",
        )


@check(FindingCode.SCHED_RETIRED)
async def _check_retired(facts: SharedFacts, _: Thresholds) -> CheckResults:
    """Check whether the code declares some schedules no longer."""
    for row in await facts.store.doctor.retired():
        yield info(
            FindingCode.SCHED_RETIRED,
            row.schedule_id,
            f"the code has not declared the schedule {row.schedule_id!r} of the task {row.task!r} since "
            f"{instant(row.retired_at)}, so it fires no more",
            execute(
                command("schedules", "remove", arguments=[row.schedule_id]),
                "unless code is to declare it again",
                command_end=", ",
            ),
        )


@check(FindingCode.SCHED_BROKEN)
async def _check_broken(facts: SharedFacts, _: Thresholds) -> CheckResults:
    """Check whether the planner paused schedules because of errors."""
    for row in await facts.store.doctor.broken():
        yield error(
            FindingCode.SCHED_BROKEN,
            row.schedule_id,
            f"the planner paused the schedule {row.schedule_id!r}: {short(row.note or 'no reason')}",
            execute(
                f"await scheduler.schedules.update({row.schedule_id!r}, trigger=...)", "with a valid trigger"
            ),
            then(execute(command("schedules", "resume", arguments=[row.schedule_id]))),
            "or remove it",
        )


@check(FindingCode.SCHED_ZONE)
async def _check_zones(facts: SharedFacts, _: Thresholds) -> CheckResults:
    """Check whether live workers know the time zones of the schedules."""
    workers = await facts.once(facts.store.workers.list_workers)
    for finding in judge_unknown_zones([worker for worker in workers if worker.is_alive]):
        yield finding


@check(FindingCode.SCHED_AHEAD)
async def _check_ahead(facts: SharedFacts, _: Thresholds) -> CheckResults:
    """Check whether fire times were computed before the server's clock was set back."""
    for row in await facts.store.doctor.ahead():
        yield error(
            FindingCode.SCHED_AHEAD,
            row.schedule_id,
            f"the schedule {row.schedule_id!r} fires next at {instant(row.next_fire_at)}, which was computed "
            f"at {instant(row.computed_at)}; the server's clock was set back since then",
            f"start a worker with the task {row.task!r}, whose planner computes it again within two minutes",
        )


@check(FindingCode.SCHED_DST)
async def _check_clock_changes(facts: SharedFacts, _: Thresholds) -> CheckResults:
    """Check whether clock changes will soon skip or repeat fire times."""
    now = await facts.store.statements.read_clock()
    ends_at_s = monotonic() + MAX_SECONDS
    rows = await facts.store.doctor.zoned()
    for examined, row in enumerate(rows):
        if monotonic() > ends_at_s:
            reason = f"computing fire times took {MAX_SECONDS:g} s, after {examined} of {len(rows)}"
            yield UnmadeCheck(FindingCode.SCHED_DST, reason)
            return
        for finding in judge_clock_changes(row, now):
            yield finding


@check(FindingCode.SCHED_HERD)
async def _check_herds(facts: SharedFacts, thresholds: Thresholds) -> CheckResults:
    """Check whether many schedules fire in the same second."""
    for row in await facts.store.doctor.herds(thresholds.herd):
        yield info(
            FindingCode.SCHED_HERD,
            instant(row.second),
            f"{row.schedules:,} schedules fire at {instant(row.second)}: {listed(row.ids, row.schedules)}",
            "jitter= for these schedules spreads their jobs",
        )


def judge_overdue(rows: Sequence[OverdueRow], workers: Sequence[InspectedWorker]) -> Iterator[Finding]:
    """Yield a finding for each schedule that should have fired, with the probable cause."""
    alive = [worker for worker in workers if worker.is_alive]
    zones = zones_unknown_to((worker, worker.health) for worker in alive)
    for row in rows:
        # This cause stays if no worker is alive, because each case below needs a live worker.
        cause = "no node is alive"
        steps = ["start a worker"]
        if alive and count_claiming(workers, row.task) == 0:
            cause = f"no live worker claims its task {row.task!r}"
            steps = ["import the module of the task in a worker, or pause the schedule"]
        elif row.schedule_id in zones:
            zone, lacking = zones[row.schedule_id]
            cause = f"{hosts(lacking)} without its time zone {zone!r}, and no other node plans it"
            steps = ["install the package tzdata, of Debian also tzdata-legacy, or change its zone"]
        elif alive:
            cause = (
                f"no node plans it: a node needs its task and the trigger kinds {listed(sorted(row.kinds))}"
            )
            steps = [
                "read the logs of the workers",
                "their records name schedules that cannot be planned",
            ]
        yield error(
            FindingCode.SCHED_OVERDUE,
            row.schedule_id,
            f"the schedule {row.schedule_id!r} should have fired {length(row.overdue_s)} ago; {cause}",
            *steps,
        )


def zones_unknown_to(
    reports: Iterable[tuple[AnyWorker, ReportedHealth]],
) -> dict[str, tuple[str, list[AnyWorker]]]:
    """Return for the id of each schedule its time zone and the workers that do not know this zone.

    Only schedules with such workers are in the result. ``reports`` has each worker with what it reports about
    itself.
    """
    zones: dict[str, tuple[str, list[AnyWorker]]] = {}
    for worker, health in reports:
        for schedule_id, zone in health.unknown_zones.items():
            _, workers = zones.setdefault(schedule_id, (zone, []))
            workers.append(worker)
    return zones


def judge_unknown_zones(workers: Sequence[Worker]) -> Iterator[Finding]:
    """Yield a finding for each schedule whose time zone a live worker does not know.

    It is only a warning if another worker that plans schedules knows the zone.
    """
    planning = [worker for worker in workers if worker.role in PLANNING_ROLES]
    zones = zones_unknown_to((worker, ReportedHealth.of(worker.health)) for worker in workers)
    for schedule_id, (zone, lacking) in sorted(zones.items()):
        # Only workers that plan schedules report zones, so the others of them know this one.
        is_known = len(lacking) < len(planning)
        new_finding = warning if is_known else error
        yield new_finding(
            FindingCode.SCHED_ZONE,
            schedule_id,
            f"the schedule {schedule_id!r} has the time zone {zone!r}, which "
            f"{counted(len(lacking), 'live worker')} cannot find: {hosts(lacking)}; "
            f"{'other nodes plan it' if is_known else 'no live worker plans it'}",
            "install the package tzdata there, of Debian also tzdata-legacy, and restart the worker",
            "or change the zone of the schedule",
        )


def judge_clock_changes(row: ZonedRow, now: datetime) -> Iterator[Finding]:
    """Yield findings if a clock change in the next seven days skips or repeats a fire time of a schedule."""
    try:
        effects = clock_effects(load_json(row.trigger), row.anchor, now, now + AHEAD)
    except ValueError:
        # A person wrote the trigger by hand. Once the planner has read it, the finding is SCHED-BROKEN.
        return
    for effect in effects:
        yield info(
            FindingCode.SCHED_DST,
            row.schedule_id,
            f"the schedule {row.schedule_id!r}: {effect.text}",
            execute(command("schedules", "preview", arguments=[row.schedule_id]), "shows when it fires"),
            "or choose UTC",
        )
