"""Check whether workers are alive, claim jobs, receive notifications and agree with each other."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import combinations
from typing import Any, Final, NamedTuple

from pg_scheduler.base.settings import JOB_ROLES
from pg_scheduler.base.text.remedies import execute, then
from pg_scheduler.database.author import release_of
from pg_scheduler.errors import SchemaForbiddenError
from pg_scheduler.facts.lateness import is_late
from pg_scheduler.facts.worker_state import state_of
from pg_scheduler.inspect.doctor.check import CheckResults, SharedFacts, check, error, info, warning
from pg_scheduler.inspect.doctor.codes import FindingCode
from pg_scheduler.inspect.doctor.findings import Finding, Thresholds, UnmadeCheck
from pg_scheduler.inspect.store.audit import AuditFilters
from pg_scheduler.inspect.store.doctor import OFF, SettingRow
from pg_scheduler.inspect.store.inspections import BacklogRow, BacklogRows
from pg_scheduler.inspect.texts import command, counted, instant, length, listed, on_host, short
from pg_scheduler.jobs.model import Worker
from pg_scheduler.jobs.shared_names import shared_names
from pg_scheduler.jobs.worker_report import (
    CODE,
    DECLARED,
    DECLARED_FUNCTIONS,
    LEFT_OUT,
    TASK_METADATA,
    ZONE_DATA,
    LoopBlock,
    ReportedHealth,
    ReportedSettings,
)
from pg_scheduler.worker.worker_rows import DRAIN

MAX_VALUE_LENGTH: Final = 60
MAX_DRAINING: Final = 100
MAX_RESUMED: Final = 20
"""The maximum number of workers that the command of a remedy resumes."""
MAX_RECORDS: Final = 100

MAX_COMPARED: Final = 50
"""The maximum number of workers whose code is compared with one another."""

DEPLOYMENT: Final = timedelta(hours=1)
"""How long two releases of one service may run at the same time without a finding."""

NO_JOB: Final = ", not by a job"

START: Final = "start a worker"


@check(
    FindingCode.WORKER_NONE,
    FindingCode.WORKER_DEAD,
    FindingCode.WORKER_MIXED,
    FindingCode.NAME_SHARED,
    FindingCode.TZDATA,
    FindingCode.WORKER_NO_LISTEN,
    FindingCode.WORKER_NO_LOCK,
    FindingCode.WORKER_DRAINING,
    FindingCode.LOOP_BLOCKED,
    FindingCode.LOGGER_DISABLED,
    FindingCode.THREAD_STUCK,
)
async def _check_workers(facts: SharedFacts, thresholds: Thresholds) -> CheckResults:
    """Check the workers by their rows, and by what they report about themselves."""
    workers = await facts.once(facts.store.workers.list_workers)
    now = await facts.store.statements.read_clock()
    alive = [worker for worker in workers if worker.is_alive and not worker.is_stopping]
    # A statement is executed for each of these workers, so their number has a bound.
    draining = [worker for worker in workers if _drains(worker)][:MAX_DRAINING]
    requested: Mapping[str, datetime] = {}
    try:
        requested = await _read_requests(facts, draining)
    except SchemaForbiddenError as error:
        # The times of requests are in the audit, which not all roles may read. The other checks do not need
        # them.
        reason = f"when workers were requested to drain is unknown: {error}"
        yield UnmadeCheck(FindingCode.WORKER_DRAINING, reason)
    # The backlog is needed only to find jobs that wait because workers drain.
    backlog = BacklogRows([], is_capped=False, are_names_capped=False)
    if draining:
        backlog = await facts.once(facts.backlog)
    for finding in (
        *judge_lives(workers, now, how_to_start(await facts.once(facts.store.doctor.settings))),
        *judge_drained_names(backlog, alive, now, thresholds.late_s),
        *judge_drains(draining, requested, now, thresholds.draining_s),
        *judge_mixture(alive),
        *judge_shared_code(alive, now),
        *judge_zones(alive),
        *judge_connections(alive),
        *judge_loops(alive, thresholds.loop_lag_s),
        *judge_loggers(alive),
        *judge_threads(alive),
    ):
        yield finding


async def _read_requests(facts: SharedFacts, draining: Sequence[Worker]) -> dict[str, datetime]:
    """Return when each worker was requested to drain. Workers without a record of that are missing."""
    filters = AuditFilters(action=f"{DRAIN}_worker")
    requested = {}
    for worker in draining:
        newest, _ = await facts.store.audit_records.read(None, 1, MAX_RECORDS, filters, worker.worker_id)
        if newest:
            requested[worker.worker_id] = newest[0].at
    return requested


def how_to_start(settings: Mapping[str, SettingRow]) -> str:
    """Return how to start a worker, and what to do before if sessions like this one cannot write.

    ``settings`` are the settings of this session, by name.
    """
    read_only = settings.get("default_transaction_read_only", OFF)
    in_hot_standby = settings.get("in_hot_standby", OFF)
    # A standby is examined first, because its sessions are always read-only.
    if in_hot_standby.value == "on":
        return "start a worker that connects to the primary: this server is a standby"
    if read_only.value == "on":
        return (
            f"default_transaction_read_only is on for this role (from: {read_only.source}): set it to off "
            "for the role and the database of the workers, and start one"
        )
    return START


def judge_lives(workers: Sequence[Worker], now: datetime, remedy: str = START) -> Iterator[Finding]:
    """Yield findings about missing and dead workers. ``remedy`` is the remedy if no worker runs jobs."""
    live = [worker for worker in workers if worker.is_alive and not worker.is_stopping]
    claiming = [worker for worker in live if _runs_jobs(worker)]
    if not claiming:
        # Live workers that run no jobs have other roles, which the finding names.
        roles = listed(sorted({worker.role for worker in live}))
        role_note = f"; {counted(len(live), 'live worker')} with another role: {roles}" if live else ""
        yield error(
            FindingCode.WORKER_NONE,
            "workers",
            f"no live worker runs jobs{role_note}",
            remedy,
        )
    reclaim_remedy = "start a worker, which reclaims its jobs"
    if claiming:
        reclaim_remedy = "wait: a live worker reclaims its jobs"
    for worker in workers:
        if not worker.is_alive:
            yield warning(
                FindingCode.WORKER_DEAD,
                worker.worker_id,
                f"the lease of {on_host(worker)} expired at {instant(worker.lease_until)}, "
                f"{length(now - worker.lease_until)} ago, with {counted(worker.running_jobs, 'running job')}",
                reclaim_remedy,
            )


def judge_drained_names(
    backlog: BacklogRows, alive: Sequence[Worker], now: datetime, late_s: float
) -> Iterator[Finding]:
    """Yield a finding if late jobs wait because every live worker that claims their names drains."""
    with_jobs = [worker for worker in alive if _runs_jobs(worker)]
    waiting_rows: list[BacklogRow] = []
    draining_ids: set[str] = set()
    for row in backlog.rows:
        if not is_late(row.oldest_due_at, now, late_s):
            continue
        # A worker that does not report its names may claim any.
        able = [worker for worker in with_jobs if worker.names is None or row.name in worker.names]
        # If no worker claims the name, the finding is NAME-UNKNOWN, or WORKER-NONE.
        if able and all(map(_drains, able)):
            waiting_rows.append(row)
            draining_ids |= {worker.worker_id for worker in able}
    if not waiting_rows:
        return
    # Each of these rows has a due time, because it is late. So ``now`` only satisfies the type.
    oldest_due_at = min(row.oldest_due_at or now for row in waiting_rows)
    resumed = ["--all"] if all(map(_drains, with_jobs)) else sorted(draining_ids)[:MAX_RESUMED]
    due_jobs = counted(sum(row.due for row in waiting_rows), "due job", is_capped=backlog.is_capped)
    yield error(
        FindingCode.WORKER_DRAINING,
        "workers",
        f"{due_jobs} of {listed([repr(row.name) for row in waiting_rows])} not started, the oldest for "
        f"{length(now - oldest_due_at)}: every live worker that claims them drains "
        f"({listed(sorted(draining_ids))})",
        execute(command("workers", "resume", *resumed), "or start a worker", command_end=", "),
    )


def judge_drains(
    workers: Sequence[Worker], requested: Mapping[str, datetime], now: datetime, patience_s: float
) -> Iterator[Finding]:
    """Yield a finding for each draining worker that was requested to drain long ago.

    If the request has no record, there is a finding only while the worker runs no job.

    Args:
        workers: The draining workers.
        requested: When they were requested to drain, by the ids of workers, as far as there are records.
        now: The time of the database.
        patience_s: For how many seconds a worker may drain without a finding.
    """
    for worker in workers:
        requested_at = requested.get(worker.worker_id)
        is_recent = requested_at is not None and (now - requested_at).total_seconds() < patience_s
        # Without a record, a worker that still runs jobs may have been requested to drain just now.
        may_be_recent = requested_at is None and worker.running_jobs > 0
        if is_recent or may_be_recent:
            continue
        ago = "" if requested_at is None else f" {length(now - requested_at)} ago"
        jobs = counted(worker.running_jobs, "job") if worker.running_jobs else "no job"
        resume = execute(command("workers", "resume", worker.worker_id), before="stop its process, or")
        steps = [resume]
        if worker.running_jobs:
            wait = execute(command("workers", "drain", worker.worker_id, "--wait"))
            steps = [wait, then(resume)]
        yield warning(
            FindingCode.WORKER_DRAINING,
            worker.worker_id,
            f"{on_host(worker)} was requested to drain{ago}, runs {jobs} and claims none",
            *steps,
        )


def judge_mixture(alive: Sequence[Worker]) -> Iterator[Finding]:
    """Yield a finding for each version, release or setting in which live workers differ."""
    worker_names = [worker.identity or worker.hostname for worker in alive]
    versions = [worker.version for worker in alive]
    releases = [release_of(worker.metadata) or "none" for worker in alive]
    for subject, values in (("version", versions), ("release", releases)):
        # Each value is paired with the name of its worker.
        if differences := _differing(list(zip(values, worker_names, strict=True))):
            yield warning(
                FindingCode.WORKER_MIXED,
                subject,
                f"live workers have different {subject}s: {differences}",
                "finish the deployment",
            )
    reporting = [worker for worker in alive if worker.settings]
    # The settings that are left out may differ between services, must not be shown to everyone, or are judged
    # by another check.
    setting_names = sorted(
        {name for worker in reporting for name in worker.settings}
        - {ZONE_DATA, DECLARED, DECLARED_FUNCTIONS, CODE, LEFT_OUT, TASK_METADATA}
    )
    for name in setting_names:
        texts = {_shown(worker.settings.get(name)) for worker in reporting}
        if len(texts) > 1:
            yield info(
                FindingCode.WORKER_MIXED,
                f"setting {name}",
                f"live workers have different values of {name}: {listed(sorted(map(_cut, texts)))}",
                "finish the deployment, or give the workers the same settings",
            )


class _SharingPair(NamedTuple):
    """Two workers that have different code for the same names."""

    worker: Worker
    other: Worker
    are_different_services: bool


def judge_shared_code(alive: Sequence[Worker], now: datetime) -> Iterator[Finding]:
    """Yield a finding for each set of task names for which two live workers have different code.

    Two releases of one service have different code during a deployment too, so they are a finding only after
    that. If two services share the same names as well, the finding is about the services.
    """
    compared = [worker for worker in alive if _runs_jobs(worker)][:MAX_COMPARED]
    pairs: dict[tuple[str, ...], _SharingPair] = {}
    for worker, other in combinations(compared, 2):
        shared = shared_names(ReportedSettings(worker.settings), ReportedSettings(other.settings))
        is_after_deployment = now - max(worker.started_at, other.started_at) > DEPLOYMENT
        names = tuple(shared.names)
        is_finding = shared.are_different_services or is_after_deployment
        if not names or not is_finding:
            continue
        # There is one finding for each set of names. A pair of services is the worse problem, so it takes the
        # place of a pair of releases of one service.
        former_pair = pairs.get(names)
        is_replaced = (
            former_pair is not None
            and not former_pair.are_different_services
            and shared.are_different_services
        )
        if former_pair is None or is_replaced:
            pairs[names] = _SharingPair(worker, other, shared.are_different_services)
    for names, pair in pairs.items():
        new_finding = warning if pair.are_different_services else info
        yield new_finding(
            FindingCode.NAME_SHARED,
            listed(names),
            f"{on_host(pair.worker)} and {on_host(pair.other)} have different code for "
            f"{counted(len(names), 'task')} of the same name: {listed(names)}",
            # The sentence is: for two services: different names, @job(name=...), or a schema= for each one.
            execute(
                "@job(name=...)",
                "or a schema= for each service",
                before="for two services: different names",
                text_end=", ",
                command_end=", ",
            ),
            *(() if pair.are_different_services else ("for one: finish the deployment",)),
        )


def judge_zones(alive: Sequence[Worker]) -> Iterator[Finding]:
    """Yield a finding if live workers have different time zone data, as far as they report it."""
    zone_data_and_hosts = []
    for worker in alive:
        zone_data = ReportedSettings(worker.settings).zone_data
        if zone_data is not None:
            zone_data_and_hosts.append((_cut(zone_data), worker.hostname))
    if differences := _differing(zone_data_and_hosts):
        yield warning(
            FindingCode.TZDATA,
            "time zone data",
            f"live workers have different time zone data: {differences}",
            "install the newest tzdata on every host",
            then("restart its workers"),
        )


def judge_connections(alive: Sequence[Worker]) -> Iterator[Finding]:
    """Yield a finding for each worker that receives no notifications or holds no liveness lock.

    A worker connects after it has registered, so workers are judged from their first heartbeat on. A stopping
    worker disconnects, so it is not judged.
    """
    for worker in alive:
        if worker.last_beat <= worker.started_at or worker.state == "stopping":
            continue
        health = ReportedHealth.of(worker.health)
        max_size = health.pool.max
        size = "" if max_size is None else f" (max_size of its pool: {max_size})"
        larger_pool = "use a pool with max_size of 4 or more"
        if max_size is not None and max_size >= 4:
            larger_pool = "use a larger pool if other code uses its connections"
        # Each value is compared with False, because it is None if the worker does not report it.
        if health.is_listening is False:
            yield warning(
                FindingCode.WORKER_NO_LISTEN,
                worker.worker_id,
                f"{on_host(worker)} receives no notifications, so it polls{size}",
                f"{larger_pool}, or direct_dsn= behind a pooler",
            )
        if health.has_liveness_lock is False:
            yield warning(
                FindingCode.WORKER_NO_LOCK,
                worker.worker_id,
                f"{on_host(worker)} holds no liveness lock: if it is killed, its jobs wait for its lease"
                f"{size}",
                f"{larger_pool}, or keeper_dsn= or direct_dsn=",
            )


def judge_loops(alive: Sequence[Worker], lag_s: float) -> Iterator[Finding]:
    """Yield a finding for each worker whose event loop is blocked, or was lately, with the cause.

    ``lag_s`` is for how many seconds an event loop must have been blocked.
    """
    for worker in alive:
        health = ReportedHealth.of(worker.health)
        # A block in progress is reported before one that has ended. The lag at the last heartbeat comes last,
        # because its cause is unknown.
        if health.block is not None and health.block.seconds >= lag_s:
            cause = _culprit(health.block)
            block = f"has been blocked for {length(health.block.seconds)}"
        elif health.last_block is not None and health.last_block.seconds >= lag_s:
            cause = _culprit(health.last_block)
            block = f"was blocked for {length(health.last_block.seconds)} within the last 15 minutes"
        elif health.loop_lag_s is not None and health.loop_lag_s >= lag_s:
            cause = ""
            block = f"was blocked for {length(health.loop_lag_s)} at its last heartbeat"
        else:
            continue
        steps = ["declare the blocking function as a plain one, which runs in a thread"]
        if cause == NO_JOB:
            steps = [
                "the record of its log has the stack",
                "call that function of the application by asyncio.to_thread()",
            ]
        elif not cause:
            steps = ["its log has the stack, and names the job if a job blocked it", *steps]
        yield warning(
            FindingCode.LOOP_BLOCKED,
            worker.worker_id,
            f"the event loop of {on_host(worker)} {block}{cause}",
            *steps,
        )


def judge_loggers(alive: Sequence[Worker]) -> Iterator[Finding]:
    """Yield a finding for each worker whose logger is disabled."""
    for worker in alive:
        if ReportedHealth.of(worker.health).is_logger_disabled:
            yield warning(
                FindingCode.LOGGER_DISABLED,
                worker.worker_id,
                f"the logger 'pg_scheduler' of {on_host(worker)} is disabled: failures leave no record",
                "disable_existing_loggers=False in the configuration of logging, and restart the worker",
            )


def judge_threads(alive: Sequence[Worker]) -> Iterator[Finding]:
    """Yield a finding for each worker with threads that run on although their jobs were to stop."""
    for worker in alive:
        health = ReportedHealth.of(worker.health)
        threads = [attempt for attempt in health.abandoned if attempt.in_thread]
        if not threads:
            continue
        run, their_jobs_were = ("runs", "its job was") if len(threads) == 1 else ("run", "their jobs were")
        slot_count = sum(attempt.has_slot for attempt in threads)
        slots = f"{slot_count} of its {counted(worker.max_concurrent_jobs, 'slot')}"
        yield warning(
            FindingCode.THREAD_STUCK,
            worker.worker_id,
            f"{counted(len(threads), 'thread')} of {on_host(worker)} {run} on although {their_jobs_were} to "
            f"stop, the first one since {instant(threads[0].since)}; they take {slots}",
            "give the blocking call a timeout, of which its log has the stack",
            then("restart the worker to end the threads"),
            "release their slots meanwhile by max_stuck_threads=",
        )


def _culprit(block: LoopBlock) -> str:
    """Return what blocked an event loop, as the end of a sentence; empty if the worker does not report it."""
    if block.job_id is not None:
        return f" by job {block.job_id!r} ({block.job_name!r})"
    if block.job_name is not None:
        return f" by a chunk of jobs {block.job_name!r}"
    return NO_JOB if block.names_culprit else ""


def _runs_jobs(worker: Worker) -> bool:
    """Return whether the role of a worker is one that runs jobs, and not only plans schedules."""
    return worker.role in JOB_ROLES


def _drains(worker: Worker) -> bool:
    """Return whether a worker with a role that runs jobs has obeyed a request to drain."""
    has_obeyed = worker.wanted == DRAIN and worker.state == "draining"
    # A worker that has died or stops now has obeyed too, but drains no more.
    return has_obeyed and state_of(worker) == "draining" and _runs_jobs(worker)


def _shown(value: Any) -> str:
    """Return the value of a setting as JSON, so that equal values have the same text."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _differing(values_and_hosts: Sequence[tuple[str, str]]) -> str | None:
    """Return the different values as a text, each with its hosts; None if all values are equal."""
    hosts_by_value = defaultdict[str, set[str]](set)
    for value, host in values_and_hosts:
        hosts_by_value[value].add(host)
    if len(hosts_by_value) <= 1:
        return None
    return listed([f"{value} on {listed(sorted(hosts))}" for value, hosts in sorted(hosts_by_value.items())])


def _cut(text: str) -> str:
    """Return a text that is cut if it has more than ``MAX_VALUE_LENGTH`` characters."""
    return text if len(text) <= MAX_VALUE_LENGTH else f"{short(text)[:MAX_VALUE_LENGTH]}..."
