"""Explain pending jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.inspect.job_facts import JobFacts, LimitUse, LimitWait
from pg_scheduler.inspect.reasons import (
    Explanation,
    KeyReason,
    Reason,
    ReasonCode,
    StatementReason,
    Verdict,
    loop_blocked,
)
from pg_scheduler.inspect.store.inspections import MAX_PARENTS, WaitRow
from pg_scheduler.inspect.store.workers import InspectedWorker, SlotsRow
from pg_scheduler.inspect.tasks import claimed_names
from pg_scheduler.inspect.texts import (
    command,
    count,
    counted,
    estimated,
    holder,
    hosts,
    instant,
    later,
    length,
    listed,
    short,
)
from pg_scheduler.jobs.keys import readable
from pg_scheduler.jobs.limits import BLOCKED_BY_LIMIT, limit_of
from pg_scheduler.jobs.naming import likely_new_name
from pg_scheduler.jobs.pause import Pause
from pg_scheduler.jobs.sequences import BLOCKED_BY_SEQUENCE, sequence_of
from pg_scheduler.jobs.shares import BLOCKED_BY_SHARE, share_of
from pg_scheduler.jobs.step_retries import failures_from
from pg_scheduler.jobs.step_values import (
    CHILD,
    NO_TIMEOUT,
    RETRY,
    SIGNAL,
    SLEEP,
    mailbox_of,
    shown_name,
)

START_DELAY: Final = timedelta(seconds=10)
"""How long after its due time a job without an obstacle may still be pending: two polls, and a margin."""

SHORT_GRACE: Final = timedelta(seconds=30)
"""A job has nearly expired if the time left is at most this, or at most a tenth of its misfire grace time."""

HELD_GRACE: Final = timedelta(hours=1)
"""Used instead of ``SHORT_GRACE`` for a job that is held, because it does not start without intervention."""

LASTING: Final = frozenset(
    {
        ReasonCode.NO_WORKER,
        ReasonCode.NAME_UNKNOWN,
        ReasonCode.TASK_PAUSED,
        ReasonCode.DRAINING,
        ReasonCode.ROW_LOCKED,
        ReasonCode.CLAIM_REFUSED,
        ReasonCode.LOOP_BLOCKED,
    }
)
"""Reasons that do not end by themselves. A pause with an end is no such reason."""


def explain_pending(facts: JobFacts) -> Explanation:
    """Explain a pending job: what blocks it, when it is due, what prevents its start or goes before it."""
    blocking = list(_blocking(facts))
    timing = list(_timing(facts))
    holding = list(_holding(facts))
    # The jobs ahead matter only if nothing else keeps this one from starting.
    queueing = [] if blocking or timing or holding else list(_queueing(facts))
    decisive = [*blocking, *timing, *holding, *queueing]
    has_lasting_reason = any(reason.code in LASTING for reason in holding)
    is_stuck = has_lasting_reason and not _ends_by_itself(facts, holding)
    is_stuck = is_stuck or ReasonCode.SEQUENCE_STOPPED in _codes(blocking)
    if not decisive:
        decisive = [_should_run_now(facts)]
    # The end of a wait for a signal or for jobs cannot be estimated.
    has_no_end = bool(timing) and _codes(timing) <= {ReasonCode.SIGNAL, ReasonCode.AFTER}
    eta = None if blocking or is_stuck or has_no_end else _start(facts, queueing)
    # Before its due time, a job waits in any case, whatever would prevent its start then.
    is_held = is_stuck and not timing
    expiry = _near_expiry(facts, eta, is_held=is_held)
    return Explanation(Verdict.HELD if is_held else Verdict.WAITING, (*decisive, *expiry), eta)


def _blocking(facts: JobFacts) -> Iterator[Reason]:
    """Yield why the job is blocked: by a limit, by other jobs, by the turn of its tenant or by its sequence.

    ``blocked_on`` of a job is ``limit:<name>:<key>``, ``share:<name>:<key>``, ``zsequence:<name>:<key>``, or
    another text if it waits for jobs. Tenants that share the slots of the workers take turns.
    """
    blocked_on = facts.job.blocked_on
    if blocked_on is None:
        return
    if blocked_on.startswith(BLOCKED_BY_SHARE):
        # Before its due time, a job of a tenant waits for this time, which _timing() states.
        if facts.job.execution_time <= facts.now:
            yield _waits_for_its_turn(facts)
        return
    if blocked_on.startswith(BLOCKED_BY_SEQUENCE):
        # Before its due time, a job without a job before it waits for this time only.
        if facts.job.execution_time <= facts.now or facts.sequence_head is not None:
            yield _waits_for_its_place(facts)
        return
    if not blocked_on.startswith(BLOCKED_BY_LIMIT):
        yield _waits_for_jobs(facts, facts.job.created_at)
        return
    limit = facts.limit
    name, key = map(readable, limit_of(blocked_on))
    of_key = f" for the key {key!r}" if key else ""
    # Each count has a number, its maximum (None for none), and what is counted.
    counts: list[tuple[int, int | None, str]] = []
    if limit is not None:
        counts.append((limit.running, limit.max_running, "running"))
        counts.append((limit.starts, limit.max_starts, "started"))
    use_texts = []
    for number, maximum, what in counts:
        if maximum is not None:
            use_texts.append(f"{number} {what} of at most {maximum}")
        elif number:
            use_texts.append(f"{number} {what}")
    # Only the starts are limited, and all of them are used, so it is known when the next one is free.
    if limit is not None and limit.max_running is None and limit.next_start_at is not None:
        use_texts = list(_used_starts(facts, limit, limit.next_start_at))
    use = f": {', '.join(use_texts)}" if use_texts else ""
    is_spread = limit is not None and limit.is_spread
    spread = "; its starts are spread, so each waits for its turn" if is_spread else ""
    # A limit without a key has a text that everybody may read.
    reason_type = KeyReason if key else Reason
    text = f"waits for the limit {name!r}{of_key}{use}{spread}"
    yield reason_type(ReasonCode.LIMIT, text, "wait, or raise the limit in the code")
    if facts.limit_wait is not None:
        yield _held_by(facts, facts.limit_wait)


def _used_starts(facts: JobFacts, limit: LimitUse, next_start_at: datetime) -> Iterator[str]:
    """Yield how many starts are used, when the next one is free, and when this job starts, if known."""
    # A limit whose next start is known has both numbers, so each 0 only satisfies the type.
    span = timedelta(seconds=limit.per_s or 0)
    wait = next_start_at - facts.now
    yield f"{limit.starts} of {counted(limit.max_starts or 0, 'start')} in {length(span)} used"
    next_start = f"in {length(wait)}" if wait > timedelta(0) else "now"
    yield f"the next one is free {next_start}"
    queue = None if facts.limit_wait is None else facts.limit_wait.ahead
    # The start of this job can be estimated only if the number of jobs before it is known, and if the starts
    # of a span come at once.
    if queue is not None and not queue.is_capped and not limit.is_spread and limit.max_starts:
        # In each time span, ``max_starts`` of the jobs before this one start.
        spans_before = queue.ahead // limit.max_starts
        start = wait + spans_before * span
        yield f"this job starts in about {length(start)}"


def _held_by(facts: JobFacts, wait: LimitWait) -> Reason:
    """State which attempts hold the limit, the place of the job in the queue, and when it expires."""
    holders = []
    for limit_holder in wait.holders:
        usual = "" if limit_holder.usual_s is None else f" (usually {estimated(limit_holder.usual_s)})"
        held_for = length(facts.now - limit_holder.since)
        holders.append(f"{limit_holder.job_name} {limit_holder.job_id!r} for {held_for}{usual}")
    clauses = [f"held by {listed(holders)}"] if holders else []
    job_count = counted(wait.ahead.ahead, "job", is_capped=wait.ahead.is_capped)
    clauses.append(f"{job_count} before it in the queue")
    # While its task is paused, the job may be kept from expiring.
    expires_at = None if _suspends_expiry(facts) else facts.job.expires_at
    if expires_at is not None:
        clauses.append(f"expires at {instant(expires_at)} unless it starts before")
    remedy = None if expires_at is None else f"let it wait without expiry: {_keep(facts)}"
    return Reason(ReasonCode.LIMIT_HELD, "; ".join(clauses), remedy, facts.job.execution_time)


def _keep(facts: JobFacts) -> str:
    """Return the call that keeps the job from expiring."""
    return f"await inspector.keep_job({facts.job.job_id!r})"


def _waits_for_jobs(facts: JobFacts, since: datetime) -> Reason:
    """State for which unfinished jobs the job waits. ``since`` is when it began to wait."""
    parents = [f"{job_id!r} ({status or 'does not exist'})" for job_id, status in facts.parents]
    is_capped = len(parents) >= MAX_PARENTS
    jobs = counted(len(parents), "job", is_capped=is_capped)
    parents_text = f"{jobs}: {listed(parents, is_capped=is_capped)}" if parents else "other jobs"
    return Reason(
        ReasonCode.AFTER, f"waits for {parents_text}", "let these jobs end, or cancel this one", since
    )


def _waits_for_its_turn(facts: JobFacts) -> Reason:
    """State that the job waits for the turn of its tenant, and how many jobs of the tenant precede it.

    Tenants, one for each key of a share, take turns in using the slots of the workers.
    """
    name, key = map(readable, share_of(facts.job.blocked_on))
    queue = facts.tenant_queue
    place = ""
    if queue is not None:
        place = f"; {counted(queue.ahead, 'job', is_capped=queue.is_capped)} of it ahead of this one"
    return KeyReason(
        ReasonCode.SHARE,
        f"waits for the turn of the tenant {key!r} of the share {name!r}{place}",
        "add workers, or raise max_concurrent_jobs=",
        facts.job.execution_time,
    )


def _waits_for_its_place(facts: JobFacts) -> Reason:
    """State that the job waits for its place in a sequence, and which and how many jobs precede it."""
    name, key = map(readable, sequence_of(facts.job.blocked_on))
    head, queue = facts.sequence_head, facts.sequence_queue
    place = ""
    if queue is not None:
        place = f"; {counted(queue.ahead, 'waiting job', is_capped=queue.is_capped)} ahead of this one"
    subject = f"the sequence {name!r} of the key {key!r}"
    if head is not None and head.stopped_at is not None:
        retry = command("jobs", "retry", arguments=[head.job_id])
        skip = command("sequences", "skip", arguments=[name, key])
        return KeyReason(
            ReasonCode.SEQUENCE_STOPPED,
            f"{subject} stands still at the failed job {head.job_id!r}{place}",
            f"retry that job: {retry}; or continue behind it: {skip}",
            head.stopped_at,
        )
    first = "" if head is None else f": the job {head.job_id!r} is first ({head.status or 'deleted'})"
    return KeyReason(
        ReasonCode.SEQUENCE,
        f"waits for its place in {subject}{first}{place}",
        "let the jobs before it end, or move it to the front: "
        + command("sequences", "front", arguments=[facts.job.job_id]),
        facts.job.execution_time,
    )


def _timing(facts: JobFacts) -> Iterator[Reason]:
    """Yield why the job is not due yet; nothing if it is due."""
    job = facts.job
    wait = job.execution_time - facts.now
    if wait <= timedelta(0):
        return
    newest = job.errors[-1] if job.errors else None
    # A suspended attempt adds no entry to the history. If the newest entry is that of the last attempt, this
    # attempt was not suspended, and the entry has the reason why the job waits.
    may_be_suspended = newest is None or newest.attempt != job.attempt
    waits = list(_suspended(facts)) if may_be_suspended else []
    if waits:
        yield from waits
        return
    when = f"at {instant(job.execution_time)}, in {length(wait)}"
    since = newest.ended_at if newest else None
    if newest is not None and newest.outcome == "snoozed":
        reason = newest.message or "postponed itself"
        yield Reason(ReasonCode.BACKOFF, f"{reason}; the next attempt is due {when}", None, since)
    elif job.retry_count:
        retry = f"retry {job.retry_count} of {job.max_retries}"
        error = f": {short(job.error_message)}" if job.error_message else ""
        text = f"{retry} is due {when}; the attempt before failed{error}"
        yield Reason(ReasonCode.BACKOFF, text, None, since)
    else:
        yield Reason(ReasonCode.NOT_DUE, f"due {when}", None, job.created_at)
        if facts.is_debounced:
            latest = facts.due_at_latest
            limit = "" if latest is None else f", at the latest until {instant(latest)}"
            text = f"it is debounced: each call with its unique key postpones it{limit}"
            yield Reason(ReasonCode.DEBOUNCED, text)


def _suspended(facts: JobFacts) -> Iterator[Reason]:
    """Yield what the job waits for, if its last attempt was suspended by steps.

    An attempt may wait for several things at once: signals, the end of a sleep, the next attempt of a step,
    and child jobs.
    """
    open_waits = [wait for wait in facts.waits if wait.is_open]
    signals = [wait for wait in open_waits if wait.kind == SIGNAL]
    sleeps = [wait for wait in open_waits if wait.kind == SLEEP]
    retries = [wait for wait in open_waits if wait.kind == RETRY]
    children = [wait for wait in open_waits if wait.kind == CHILD]
    if signals:
        # A signal that came before the job waits for it is no open wait. Messages that have come are no
        # remark: the job has received those before the one that it waits for.
        early_names = [repr(wait.name) for wait in facts.waits if not (wait.is_open or mailbox_of(wait.name))]
        early = f"; other signals, sent before a wait: {listed(early_names)}" if early_names else ""
        mailbox = mailbox_of(signals[0].name)
        noun, verb = ("signal", "signal") if mailbox is None else ("message", "send")
        send = f"{command('jobs', verb, arguments=[facts.job.job_id, mailbox or signals[0].name])} JSON"
        names = [_described(signal, facts.now) for signal in signals]
        yield Reason(
            ReasonCode.SIGNAL,
            f"waits for the {noun} {listed(names)}{early}",
            f"send the {noun}: {send}",
            signals[0].since,
            send,
        )
    if sleeps:
        yield Reason(
            ReasonCode.SLEEPING,
            f"sleeps in the step {listed([_described(sleep, facts.now) for sleep in sleeps])}",
            f"wait, or end the sleep now: await scheduler.end_sleep({facts.job.job_id!r})",
            sleeps[0].since,
        )
    for wait in retries:
        failures = failures_from(wait.failures)
        error = f": {short(failures.errors[-1].error)}" if failures.errors else ""
        due_at = wait.until or facts.job.execution_time
        yield Reason(
            ReasonCode.BACKOFF,
            f"attempt {failures.count + 1} of the step {wait.name!r} is due at {instant(due_at)}, in "
            f"{length(due_at - facts.now)}; the attempt before failed{error}",
            None,
            wait.since,
        )
    if children:
        yield _waits_for_jobs(facts, children[0].since)


def _described(wait: WaitRow, now: datetime) -> str:
    """Return the name of a wait, and when it ends."""
    if wait.until is None or wait.until >= NO_TIMEOUT:
        return f"{shown_name(wait.name)!r} without a timeout"
    return f"{shown_name(wait.name)!r} until {instant(wait.until)} (in {length(wait.until - now)})"


def _holding(facts: JobFacts) -> Iterator[Reason]:
    """Yield what prevents a start of the job when it is due.

    There is at most one reason about the workers. There may also be a pause of its task, a lock of its row, a
    trigger or a constraint that prevents its claim, and an advisory lock that another attempt holds.
    """
    alive = [worker for worker in facts.workers if worker.is_alive and worker.claims_jobs]
    # A worker that does not report its names may claim any.
    with_name = [worker for worker in alive if worker.names is None or facts.task in worker.names]
    claiming = _claiming(facts)
    # Each case has fewer obstacles than the one before: workers, workers with the name, those of them that
    # still claim jobs, and those whose event loop is not blocked.
    if not alive:
        others = f"; workers with a row: {len(facts.workers)}" if facts.workers else ""
        yield Reason(
            ReasonCode.NO_WORKER,
            f"no live worker runs jobs{others}",
            "start a worker",
        )
    elif not with_name:
        yield _name_unknown(facts, alive)
    elif not claiming:
        yield Reason(
            ReasonCode.DRAINING,
            f"every worker that claims {facts.task!r} is draining: {hosts(with_name)}",
            "start a worker, or wait until the deployment has started one",
        )
    elif all(worker.health.block is not None for worker in claiming):
        yield loop_blocked(claiming)
    if facts.pause is not None and not facts.pause.is_over:
        yield _paused(facts.pause)
    if facts.row_lock is not None:
        yield StatementReason(
            ReasonCode.ROW_LOCKED,
            f"a transaction has locked its row: {holder(facts.row_lock)}",
            f"end that transaction, or call pg_terminate_backend({facts.row_lock.pid})",
            facts.row_lock.since,
        )
    refusals = list(_refusals(facts, claiming))
    if refusals:
        yield Reason(
            ReasonCode.CLAIM_REFUSED,
            listed(refusals),
            "correct the trigger or the constraint, or the row; the log of the worker has the message",
        )
    if facts.advisory_lock is not None:
        yield StatementReason(
            ReasonCode.LOCK_HELD,
            f"another attempt holds its advisory lock, so it would be skipped: {holder(facts.advisory_lock)}",
            "wait for the end of that attempt",
            facts.advisory_lock.since,
        )


def _refusals(facts: JobFacts, claiming: Sequence[InspectedWorker]) -> Iterator[str]:
    """Yield how a trigger or a constraint of the application prevents claims, as the workers report it.

    It prevents either the claim of this job, or the claims of many other jobs of its task. In the second case
    the workers rarely claim jobs of the task, which delays this job too.
    """
    job_id = facts.job.job_id
    refused_workers = [worker for worker in claiming if job_id in worker.health.refused_claims]
    if refused_workers:
        reason = refused_workers[0].health.refused_claims[job_id]
        yield (
            f"a trigger or a constraint of the application prevents its claim by {hosts(refused_workers)}: "
            f"{reason}"
        )
        return
    slowed_workers = [worker for worker in claiming if facts.task in worker.health.refused_names]
    if slowed_workers:
        yield (
            "a trigger or a constraint of the application prevents the claims of many jobs of "
            f"{facts.task!r}, so {hosts(slowed_workers)} claims jobs of this task only now and then"
        )


def _name_unknown(facts: JobFacts, alive: Sequence[InspectedWorker]) -> Reason:
    """State that no live worker claims the name of the job's task, and the probable cause.

    A worker may have the function but lack the executor on which the function is to run. Or the function may
    have got another name, which is probable if a worker claims a very similar one.
    """
    lacking = [worker for worker in alive if facts.task in worker.health.missing_executors]
    if lacking:
        executor = lacking[0].health.missing_executors[facts.task]
        return Reason(
            ReasonCode.NAME_UNKNOWN,
            f"no live worker claims {facts.task!r}: the executor {executor!r} is missing on {hosts(lacking)}",
            f"pass executors={{{executor!r}: ...}} to the Scheduler of a worker",
        )
    names = sorted(claimed_names(alive))
    other_tasks = counted(len(names), "other task", is_capped=facts.are_workers_capped)
    similar = likely_new_name(facts.task, names)
    meant = (
        f"; or is {similar!r} its new name? then write aliases=[{facts.task!r}] in its @job"
        if similar is not None
        else ""
    )
    return Reason(
        ReasonCode.NAME_UNKNOWN,
        f"no live worker claims {facts.task!r}; {other_tasks} claimed",
        f"import the module that defines it in a worker, or check only= and skip={meant}",
    )


def _paused(pause: Pause) -> Reason:
    """State who paused the task, until when, whether its jobs can expire, and how to resume it."""
    until = "" if pause.paused_until is None else f" until {instant(pause.paused_until)}"
    note = "" if pause.note is None else f": {short(pause.note)}"
    expiry = "; its jobs do not expire meanwhile" if pause.suspends_expiry else ""
    return Reason(
        ReasonCode.TASK_PAUSED,
        f"the task {pause.name!r} was paused{until} by {pause.actor}{expiry}{note}",
        f"await scheduler.tasks.resume({pause.name!r})",
        pause.paused_at,
        command("tasks", "resume", arguments=[pause.name]),
    )


def _suspends_expiry(facts: JobFacts) -> bool:
    """Return whether the job cannot expire before its task is resumed."""
    return facts.pause is not None and not facts.pause.is_over and facts.pause.suspends_expiry


def _codes(reasons: Iterable[Reason]) -> set[ReasonCode]:
    """Return the codes of reasons."""
    return {reason.code for reason in reasons}


def _ends_by_itself(facts: JobFacts, holding: Iterable[Reason]) -> bool:
    """Return whether the only lasting obstacle that prevents a start is a pause with an end."""
    lasting_codes = _codes(holding) & LASTING
    paused_until = facts.pause.paused_until if facts.pause else None
    return lasting_codes == {ReasonCode.TASK_PAUSED} and paused_until is not None


def _queueing(facts: JobFacts) -> Iterator[Reason]:
    """Yield which jobs precede a due job, if the slots do not suffice for them and for it."""
    queue = facts.queue
    due_at = facts.job.execution_time
    claiming = _claiming(facts)
    slots = sum(worker.slots for worker in claiming)
    rows_by_worker = {row.worker_id: row for row in facts.slots}
    slots_in_use = []
    used = 0
    for worker in claiming:
        # A worker that runs no job has no row.
        row = rows_by_worker.get(worker.worker_id, SlotsRow(worker.worker_id, 0))
        slots_in_use.append(row)
        # The number of a heartbeat may be old, and not all rows of running jobs may have been read. So the
        # greater number counts, but not more than the worker has slots.
        running_now = row.running - worker.health.replaced_threads
        used += min(max(worker.busy_slots, running_now), worker.slots)
    ahead_count = 0 if queue is None else queue.ahead
    if used + ahead_count < slots:
        return
    if queue is not None and queue.outranked_by:
        jobs = counted(queue.outranked_by, "due job", is_capped=queue.is_capped)
        yield Reason(
            ReasonCode.OUTRANKED,
            f"{jobs} of a higher priority ahead of it",
            "add workers or slots, or schedule it with a higher priority",
            due_at,
        )
    # If a slot is free, and all jobs ahead have a higher priority, the reason above is enough.
    if used == slots or (queue is not None and queue.ahead > queue.outranked_by):
        ahead = ""
        if queue is not None:
            ahead = f"; about {counted(queue.ahead, 'job', is_capped=queue.is_capped)} ahead of it"
        wait_s = _wait_s(facts)
        estimate = ""
        if wait_s is not None:
            estimate = f"; at the rate of the last minutes it starts in about {length(wait_s)}"
        is_capped = facts.are_workers_capped
        used_text = count(used, is_capped=is_capped)
        slots_text = count(slots, is_capped=is_capped)
        workers = counted(len(claiming), "worker", is_capped=is_capped)
        full = f"{used_text} of {slots_text} slots of {workers} in use"
        remedy = "add workers, or raise max_concurrent_jobs="
        # A job that waits for its children while its attempt stays in memory keeps its slot. If all slots
        # have such jobs, the children have none.
        waiting = sum(row.waiting for row in slots_in_use)
        if waiting:
            full += f", {min(waiting, used)} of them by jobs that wait for children in memory"
            if any(row.has_parent for row in slots_in_use):
                full += ", among them the one that waits for this job"
            remedy = f"let jobs wait for children by steps alone, so that they leave their slots; or {remedy}"
        yield Reason(ReasonCode.SLOTS_FULL, f"{full}{ahead}{estimate}", remedy, due_at)


def _should_run_now(facts: JobFacts) -> Reason:
    """State that nothing prevents the start of the due job; if it waits for long, that this may be a bug."""
    late = facts.now - facts.job.execution_time
    if late < START_DELAY:
        return Reason(
            ReasonCode.SHOULD_RUN_NOW,
            f"due for {length(late)}; nothing prevents its start",
            None,
            facts.job.execution_time,
        )
    return Reason(
        ReasonCode.SHOULD_RUN_NOW,
        f"due for {length(late)}, and nothing prevents its start: this may be a bug",
        "report it with this explanation, and the log of the workers",
        facts.job.execution_time,
    )


def _near_expiry(facts: JobFacts, eta: datetime | None, *, is_held: bool) -> Iterator[Reason]:
    """Yield a reason if the job will probably expire: little time is left, or it starts too late.

    ``eta`` is when it probably starts; None if that is unknown. ``is_held`` is whether it does not start
    without intervention.
    """
    job = facts.job
    # For a job that waits for a limit, _held_by() states when it expires. The grace time of one that waits
    # for other jobs begins only when these have ended.
    if job.expires_at is None or job.blocked_on is not None or _suspends_expiry(facts):
        return
    time_left = job.expires_at - facts.now
    minimum = HELD_GRACE if is_held else SHORT_GRACE
    tenth_of_grace_time = timedelta(seconds=(job.misfire_grace_time or 0) / 10)
    little_time = max(minimum, tenth_of_grace_time)
    expires_soon = job.execution_time <= facts.now and time_left <= little_time
    starts_too_late = eta is not None and eta > job.expires_at
    if expires_soon or starts_too_late:
        if time_left > timedelta(0):
            text = f"expires at {instant(job.expires_at)}, in {length(time_left)}, unless it starts before"
        else:
            text = f"expires now: its misfire grace time ended at {instant(job.expires_at)}"
        remedy = f"let it wait without expiry: {_keep(facts)}"
        if is_held:
            remedy = f"remove what holds it, or {remedy}"
        remedy += "; schedule such jobs with a longer misfire_grace_time="
        yield Reason(ReasonCode.NEARLY_EXPIRED, text, remedy, job.execution_time)


def _start(facts: JobFacts, queueing: Sequence[Reason]) -> datetime | None:
    """Return when the job will probably start; None if that cannot be estimated.

    ``queueing`` are the reasons about the jobs ahead of it; none if it needs not wait for them.
    """
    earliest = max(facts.now, facts.job.execution_time)
    if facts.pause is not None and facts.pause.paused_until is not None:
        earliest = max(earliest, facts.pause.paused_until)
    if not queueing:
        return earliest
    wait_s = _wait_s(facts)
    return None if wait_s is None else later(earliest, wait_s)


def _wait_s(facts: JobFacts) -> float | None:
    """Return after how many seconds the job starts at the present throughput; None if that is unknown."""
    rate = facts.starts_per_s
    if facts.queue is None or facts.queue.is_capped or not rate:
        return None
    # The jobs ahead start first, and then this one.
    return (facts.queue.ahead + 1) / rate


def _claiming(facts: JobFacts) -> list[InspectedWorker]:
    """Return the live workers that would claim the job. One that does not report its names may claim any."""
    return [
        worker
        for worker in facts.workers
        if worker.is_alive
        and worker.claims_jobs
        and not worker.is_draining
        and (worker.names is None or facts.task in worker.names)
    ]
