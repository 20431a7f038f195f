"""Check whether jobs start in time, complete, and have arguments of a reasonable size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from pg_scheduler.base.text.remedies import RemedyStep, execute, then
from pg_scheduler.facts.expiry import CAUSES, ExpiryCause
from pg_scheduler.facts.lateness import is_late
from pg_scheduler.inspect.doctor.check import (
    CheckResults,
    Evidence,
    SharedFacts,
    check,
    error,
    hint_at_new_name,
    warning,
)
from pg_scheduler.inspect.doctor.codes import FindingCode
from pg_scheduler.inspect.doctor.findings import Finding, Thresholds, UnmadeCheck
from pg_scheduler.inspect.paths import UNSUCCESSFUL_INDEX
from pg_scheduler.inspect.statistics import why_uncounted
from pg_scheduler.inspect.store.doctor import ExpiryCauseRow, FailingRow, QuarantinedRow
from pg_scheduler.inspect.store.inspections import BacklogRow, BacklogRows
from pg_scheduler.inspect.store.workers import MAX_WORKERS, InspectedWorker
from pg_scheduler.inspect.tasks import claimed_names, count_claiming
from pg_scheduler.inspect.texts import command, count, counted, estimated, instant, length, listed, term
from pg_scheduler.jobs.keys import name_and_key

SAMPLE: Final = 1000
MAX_RETRIED: Final = 20
"""The maximum number of jobs that the command of a remedy retries."""

WEEK_S: Final = 7 * 86_400.0

WITH_ITS_ID: Final = "with the id that it prints:"
"""The words before a command whose ``ID`` the command of the step before it prints."""

EXPLAIN: Final = execute("pg-scheduler jobs explain ID", before=WITH_ITS_ID)

RECENT_S: Final = 15 * 60.0
"""The length of the period in which failed attempts and expired jobs are counted, in seconds."""

ALWAYS_FAILING: Final = 0.5
"""The share of failed attempts from which on there is a finding, whatever the share of the week before
was."""
STUCK_FACTOR: Final = 10
MIN_DURATIONS: Final = 20
"""The number of attempts from which on their durations show which duration is usual."""


@check(FindingCode.LATE, FindingCode.NAME_UNKNOWN)
async def _check_backlog(facts: SharedFacts, thresholds: Thresholds) -> CheckResults:
    """Check whether due jobs have names that no live worker claims, or are late."""
    backlog = await facts.once(facts.backlog)
    workers = await facts.once(facts.store.worker_reads.workers)
    now = await facts.store.statements.read_clock()
    claiming = [worker for worker in workers if worker.is_alive and worker.claims_jobs]
    if not claiming:
        return  # the finding is WORKER-NONE
    names = sorted(claimed_names(claiming))
    is_capped = len(workers) >= MAX_WORKERS
    live_workers = counted(len(claiming), "live worker", is_capped=is_capped)
    for row in backlog.rows:
        # A row may have running jobs only.
        if not row.due or row.oldest_due_at is None:
            continue
        # The count is None, and not 0, if a worker does not report its names: it may claim any.
        if count_claiming(workers, row.name, with_draining=True) == 0:
            yield _unknown_name_finding(row, backlog, names, claiming, live_workers=live_workers)
            continue
        able = [
            worker
            for worker in claiming
            if not worker.is_draining and (worker.names is None or row.name in worker.names)
        ]
        # If all workers that claim the name drain, the finding is WORKER-DRAINING.
        if able and is_late(row.oldest_due_at, now, thresholds.late_s):
            late_s = (now - row.oldest_due_at).total_seconds()
            yield _late_finding(row, backlog, late_s, able, are_workers_capped=is_capped)


@check(FindingCode.QUARANTINE)
async def _check_quarantine(facts: SharedFacts, _: Thresholds) -> CheckResults:
    """Check whether jobs were quarantined in the last week, and name others that ran on the same worker.

    A job is quarantined (it has failed, without further retries) if workers died ``max_crashes`` times while
    they ran it. Any of the jobs that ran on a worker may have killed it.
    """
    if UNSUCCESSFUL_INDEX in await facts.once(facts.store.doctor.find_missing_indexes):
        reason = f"it needs the index {UNSUCCESSFUL_INDEX}; see INDEX-MISSING"
        yield UnmadeCheck(FindingCode.QUARANTINE, reason)
        return
    by_name = defaultdict[str, list[QuarantinedRow]](list)
    # The quarantined jobs of one dead worker end at the same instant, which identifies the worker here.
    ids_by_end = defaultdict[datetime, list[str]](list)
    rows, is_capped = await facts.store.doctor.quarantined(WEEK_S)
    for row in rows:
        by_name[row.job_name].append(row)
        ids_by_end[row.finished_at].append(row.job_id)
    for name, jobs in by_name.items():
        ids = [job.job_id for job in jobs]
        ids_of_same_workers = {job_id for job in jobs for job_id in ids_by_end[job.finished_at]}
        neighbours = sorted(ids_of_same_workers - set(ids))
        yield warning(
            FindingCode.QUARANTINE,
            name,
            Evidence(
                f"{counted(len(jobs), 'quarantined job', is_capped=is_capped)} of {name!r}, the last one at "
                f"{instant(jobs[0].finished_at)}: {listed(ids, is_capped=is_capped)}",
                f"; {listed(neighbours, is_capped=is_capped)} ran on the same worker" if neighbours else "",
            ),
            "read the logs of the workers that died, correct the function",
            then(execute(command("jobs", "retry", arguments=ids[:MAX_RETRIED]))),
        )


@check(FindingCode.FAILING)
async def _check_failures(facts: SharedFacts, thresholds: Thresholds) -> CheckResults:
    """Check whether unusually many attempts failed lately."""
    rows = await facts.store.doctor.failing(RECENT_S, WEEK_S)
    for finding in judge_failures(rows, thresholds.failures, thresholds.failure_ratio):
        yield finding
    async for unmade in _uncounted(facts, FindingCode.FAILING):
        yield unmade


@check(FindingCode.JOBS_EXPIRED)
async def _check_expired(facts: SharedFacts, thresholds: Thresholds) -> CheckResults:
    """Check whether jobs expired lately, and name the causes that are known."""
    expired_names = await facts.store.doctor.expired_names(RECENT_S)
    rows = await facts.store.doctor.expiry_causes(RECENT_S) if expired_names else []
    for name, expired in expired_names:
        if expired >= thresholds.expired:
            # A job may have a cause of another release, for which this one has no text.
            causes = [_cause_of(row) for row in rows if row.job_name == name and row.cause in CAUSES]
            texts = [f"{cause.jobs:,} {cause.text}" for cause in causes]
            listing = command("jobs", "list", "status:expired", term("name", name), "--limit", "1")
            yield warning(
                FindingCode.JOBS_EXPIRED,
                name,
                Evidence(
                    f"{counted(expired, 'job')} of {name!r} expired in the last 15 minutes",
                    f": {listed(texts)}" if texts else "",
                    tuple(dict.fromkeys(cause.culprit for cause in causes)),
                ),
                execute(listing),
                then(EXPLAIN),
            )
    # Jobs of workers without statistics are not counted above. If there are some, the check was not made as a
    # whole, which is a result too.
    async for not_made in _uncounted(facts, FindingCode.JOBS_EXPIRED):
        yield not_made


class _Cause(NamedTuple):
    """A cause for which jobs expired.

    Attributes:
        jobs: The number of these jobs.
        text: What the jobs did until they expired.
        culprit: The kind and the name of the object that caused it, as in ``Finding.objects``.
    """

    jobs: int
    text: str
    culprit: tuple[str, str]


def _cause_of(row: ExpiryCauseRow) -> _Cause:
    """Return the cause of a row, with a text, and with the object that the reader should look at."""
    # Jobs that waited for a limit or a share have an object such as ``limit:stripe``.
    if row.object is not None:
        kind, _, _ = row.object.partition(":")
        # The colon at the end stands for the empty key: name_and_key() expects kind:name:key.
        name, _ = name_and_key(f"{kind}:", f"{row.object}:")
        return _Cause(row.jobs, CAUSES[row.cause].format(f"{kind} {name!r}"), (kind, name))
    is_about_slots = row.cause in {ExpiryCause.NO_FREE_SLOT, ExpiryCause.NO_WORKER_YET}
    culprit = ("workers", "") if is_about_slots else ("task", row.job_name)
    return _Cause(row.jobs, CAUSES[row.cause], culprit)


@check(FindingCode.STUCK)
async def _check_running(facts: SharedFacts, thresholds: Thresholds) -> CheckResults:
    """Check whether leases of running jobs have expired, or attempts run for much longer than usual."""
    stuck_s = thresholds.stuck_s
    for row in await facts.store.doctor.running():
        explain = execute(command("jobs", "explain", arguments=[row.job_id]))
        if row.expired_s is not None and row.expired_s >= stuck_s:
            text = (
                f"the lease of {row.job_id!r} ({row.name!r}) on worker {row.worker_id} expired "
                f"{length(row.expired_s)} ago"
            )
            yield warning(FindingCode.STUCK, row.job_id, text, explain)
            continue
        # Without enough durations it is unknown which one is usual.
        if row.durations is None or row.durations.number < MIN_DURATIONS or row.running_s is None:
            continue
        usual_s = row.durations.quantile(0.99) or 0.0
        if row.running_s >= max(stuck_s, usual_s * STUCK_FACTOR):
            yield warning(
                FindingCode.STUCK,
                row.job_id,
                f"attempt {row.attempt} of {row.job_id!r} runs for {length(row.running_s)} on worker "
                f"{row.worker_id}; 99 % of the attempts of {row.name!r} take at most {estimated(usual_s)}",
                explain,
                "give such jobs a timeout=",
            )
    async for unmade in _uncounted(facts, FindingCode.STUCK):
        yield unmade


async def _uncounted(facts: SharedFacts, code: FindingCode) -> CheckResults:
    """Yield that a check was made only in part if live workers do not count their attempts.

    Such a check uses the statistics of attempts, which then lack those of these workers.
    """
    reason = why_uncounted(await facts.once(facts.store.workers.list_workers))
    if reason is not None:
        yield UnmadeCheck(code, reason)


@check(FindingCode.PAYLOAD)
async def _check_payloads(facts: SharedFacts, thresholds: Thresholds) -> CheckResults:
    """Check whether unfinished jobs have large arguments."""
    for row in await facts.store.doctor.payloads(SAMPLE, thresholds.payload_bytes):
        yield warning(
            FindingCode.PAYLOAD,
            row.name,
            f"{row.jobs} of the first {SAMPLE:,} unfinished jobs of each priority are of {row.name!r} and "
            f"have up to {row.most / 1000:,.0f} kB of arguments, such as {row.example!r}",
            "store the data elsewhere and pass its id",
        )


def _unknown_name_finding(
    row: BacklogRow,
    backlog: BacklogRows,
    names: Sequence[str],
    workers: Sequence[InspectedWorker],
    *,
    live_workers: str,
) -> Finding:
    """Return the finding about due jobs whose name no live worker claims.

    Args:
        row: The due jobs of the name.
        backlog: All due jobs, for whether counting them stopped.
        names: The names that live workers claim.
        workers: The live workers that run jobs.
        live_workers: The number of these workers as a text.
    """
    # A worker may have the function, but lack the executor on which the function is to run.
    executors = [worker.health.missing_executors.get(row.name) for worker in workers]
    missing_executor = next((executor for executor in executors if executor), None)
    evidence = (
        f"{counted(row.due, 'due job', is_capped=backlog.is_capped)} of {row.name!r} not started, the oldest "
        f"since {instant(row.oldest_due_at)}, and none of {live_workers} claims that name"
    )
    if missing_executor is not None:
        return error(
            FindingCode.NAME_UNKNOWN,
            row.name,
            Evidence(f"{evidence}: the executor {missing_executor!r} is missing"),
            f"pass executors={{{missing_executor!r}: ...}} to the Scheduler of a worker",
        )
    return error(
        FindingCode.NAME_UNKNOWN,
        row.name,
        Evidence(evidence),
        "import the module of the function in a worker",
        *hint_at_new_name(row.name, names),
    )


def _late_finding(
    row: BacklogRow,
    backlog: BacklogRows,
    late_s: float,
    workers: Sequence[InspectedWorker],
    *,
    are_workers_capped: bool,
) -> Finding:
    """Return the finding about jobs of a name that are late although ``workers`` claim them.

    ``late_s`` is how late the oldest of them is. ``are_workers_capped`` is whether there may be more workers.
    """
    slots = sum(worker.slots for worker in workers)
    free = sum(max(worker.slots - worker.busy_slots, 0) for worker in workers)
    free_text = count(free, is_capped=are_workers_capped)
    slots_text = count(slots, is_capped=are_workers_capped)
    # With free slots, something else keeps the jobs from starting, which an explanation of one job names.
    search = command("jobs", "list", "status:due", term("name", row.name), "--limit", "1")
    steps: tuple[str | RemedyStep, ...] = (execute(search), then(EXPLAIN))
    if not free:
        steps = ("add workers, or raise max_concurrent_jobs= if the jobs mostly wait for I/O",)
    return warning(
        FindingCode.LATE,
        row.name,
        Evidence(
            f"{counted(row.due, 'due job', is_capped=backlog.is_capped)} of {row.name!r} not started, the "
            f"oldest for {length(late_s)}; {free_text} of {slots_text} slots free",
            _describe_load(row, backlog),
        ),
        *steps,
    )


def _describe_load(row: BacklogRow, backlog: BacklogRows) -> str:
    """Describe which jobs run, and which jobs have been due for longer than the jobs of this row.

    The rows of the backlog are sorted by their oldest due time.
    """
    # If counting the jobs stopped, there may be more than these numbers.
    plus = "+" if backlog.is_capped else ""
    rows_with_running = sorted(
        (other for other in backlog.rows if other.running), key=lambda other: -other.running
    )
    place = backlog.rows.index(row)
    due_before = [other for other in backlog.rows[:place] if other.due]
    text = ""
    if rows_with_running:
        running_texts = [f"{other.running:,}{plus} of {other.name!r}" for other in rows_with_running]
        text += f"; running: {listed(running_texts)}"
    if due_before:
        due_texts = [f"{other.due:,}{plus} of {other.name!r}" for other in due_before]
        text += f"; due before: {listed(due_texts)}"
    return text


def judge_failures(rows: Sequence[FailingRow], failures: int, ratio: float) -> Iterator[Finding]:
    """Yield a finding for each name of which many attempts failed.

    At least ``failures`` of its attempts failed in the last 15 minutes, and these are a larger share than
    ``ratio``. This share is also at least twice that of the week before, or one half.
    """
    for row in rows:
        earlier_share = 0.0
        comparison = "none ended in up to a week before"
        if row.earlier_decided:
            earlier_share = row.earlier_failed / row.earlier_decided
            earlier_span = length(row.earlier_s or 0)
            comparison = (
                f"{100 * earlier_share:.1f} % of {row.earlier_decided:,} did in the {earlier_span} before"
            )
        share = row.failed / row.decided if row.decided else 0.0
        # Failures that are usual for a name are no finding, unless half of its attempts fail.
        unusual_share = min(2 * earlier_share, ALWAYS_FAILING)
        if row.failed < failures or share <= ratio or share < unusual_share:
            continue
        steps: tuple[RemedyStep, ...] = (execute(command("jobs", "errors", "--since", "15m")),)
        # The list of errors has only jobs that were not retried.
        if not row.failed_for_good:
            listing = execute(command("jobs", "list", term("name", row.job_name)))
            steps = (listing, then(execute("pg-scheduler jobs show ID", before=WITH_ITS_ID)))
        yield warning(
            FindingCode.FAILING,
            row.job_name,
            Evidence(
                f"{row.failed:,} of {row.decided:,} attempts of {row.job_name!r} failed in the last 15 "
                f"minutes; {comparison}"
            ),
            *steps,
        )
