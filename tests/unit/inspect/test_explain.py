"""explain() finds each reason from facts, the most decisive first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pg_scheduler import AttemptError, Job, JobPriority, JobStatus
from pg_scheduler.inspect import Explanation, ReasonCode, Verdict
from pg_scheduler.inspect.explain import explain
from pg_scheduler.inspect.job_facts import JobFacts, LimitHolder, LimitUse, LimitWait
from pg_scheduler.inspect.reasons import KINDS, ReasonScope
from pg_scheduler.inspect.store.inspections import LockRow, QueueRow, WaitRow
from pg_scheduler.inspect.store.limits import HeadRow
from pg_scheduler.inspect.store.workers import InspectedWorker, SlotsRow
from pg_scheduler.jobs.keys import name_and_key
from pg_scheduler.jobs.limits import BLOCKED_BY_LIMIT
from pg_scheduler.jobs.pause import Pause
from pg_scheduler.jobs.sequences import BLOCKED_BY_SEQUENCE
from pg_scheduler.jobs.shares import BLOCKED_BY_SHARE
from pg_scheduler.jobs.step_retries import StepError, StepFailures
from pg_scheduler.jobs.worker_report import AbandonedAttempt, LoopBlock, ReportedHealth
from pg_scheduler.schedules.row import ScheduleRow
from tests.support.cases import each_case
from tests.support.inside import quarantine_error

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
PENDING = Job(
    job_id="job",
    job_name="mail.send",
    execution_time=NOW - MINUTE,
    status=JobStatus.PENDING,
    args=(),
    kwargs={},
    priority=JobPriority.NORMAL,
    attempt=0,
    retry_count=0,
    crash_count=0,
    max_retries=3,
    misfire_grace_time=None,
    timeout=None,
    created_at=NOW - HOUR,
    started_at=None,
    finished_at=None,
    expires_at=None,
    last_heartbeat=None,
    lease_until=None,
    worker_id=None,
    error_message=None,
    replacement=False,
)
WORKER = InspectedWorker(
    worker_id="w1",
    hostname="host",
    slots=25,
    running_jobs=3,
    is_alive=True,
    claims_jobs=True,
    is_draining=False,
    names=frozenset({"mail.send", "report"}),
    aliases={},
    health=ReportedHealth(),
    lease_until=NOW + MINUTE,
    reclaim_at=None,
)
SCHEDULE = ScheduleRow(
    schedule_id="daily", owner="api", task="mail.send", trigger="{}", described="", overlap="skip",
    catch_up="skip", anchor=NOW, created_at=NOW, updated_at=NOW,
)  # fmt: skip
FACTS = JobFacts(job=PENDING, task="mail.send", now=NOW, workers=(WORKER,))


def facts(**changes: Any) -> JobFacts:
    return replace(FACTS, **changes)


def job(**changes: Any) -> JobFacts:
    return replace(FACTS, job=replace(PENDING, **changes))


def running(**changes: Any) -> JobFacts:
    values = {"attempt": 2, "worker_id": "w1", "started_at": NOW - MINUTE, "lease_until": NOW + MINUTE}
    return job(**{"status": JobStatus.RUNNING, **values, **changes})


def ended(status: JobStatus, error: str | None = None, **changes: Any) -> JobFacts:
    values = {"attempt": 1, "started_at": NOW - MINUTE, **changes}
    return job(status=status, finished_at=NOW, error_message=error, **values)


def error(outcome: str) -> AttemptError:
    return AttemptError(1, NOW - HOUR, NOW - MINUTE, "w1", outcome, None, None, None)


def worker(**changes: Any) -> InspectedWorker:
    return replace(WORKER, **changes)


def blocked(seconds: float, by: str | None = None) -> ReportedHealth:
    return ReportedHealth(block=LoopBlock(seconds, by, None, names_culprit=True))


def pause(**changes: Any) -> Pause:
    values = {"paused_until": None, "note": "outage of the mail server", "actor": "ada", "ends_in": None}
    return Pause(**{"name": "mail.send", "paused_at": NOW - HOUR, **values, **changes})


FULL = worker(running_jobs=25)
STUCK = ReportedHealth(
    abandoned=(AbandonedAttempt("a", "report", 1, "timeout", NOW, in_thread=True, has_slot=False),)
)
HOLDER = LockRow("row", pid=42, application="psql", since=NOW - HOUR, statement="UPDATE scheduled_jobs")
BEHIND = QueueRow(ahead=30, outranked_by=0)
SLEEP = WaitRow("delivery", "sleep", NOW + HOUR, NOW - HOUR, is_open=True)
SIGNAL = WaitRow("approval", "signal", NOW + 2 * HOUR, NOW - HOUR, is_open=True)
FAILURES = StepFailures(2, (StepError(NOW - HOUR, 1, "ConnectionError: no\nroute"),))
RETRY = WaitRow("charge", "retry", NOW + HOUR, NOW - HOUR, is_open=True, failures=FAILURES.to_json())
EARLY = WaitRow("aproval", "signal", None, NOW - HOUR, is_open=False)
CASES: list[tuple[JobFacts, Verdict, list[ReasonCode], str]] = [
    (ended(JobStatus.COMPLETED), Verdict.COMPLETED, [], ""),
    (job(execution_time=NOW + HOUR), Verdict.WAITING, [ReasonCode.NOT_DUE], "due at 2026-11-21 13:00:00 UTC"),
    (
        replace(job(execution_time=NOW + HOUR), is_debounced=True, due_at_latest=NOW + 2 * HOUR),
        Verdict.WAITING,
        [ReasonCode.NOT_DUE, ReasonCode.DEBOUNCED],
        "due at 2026-11-21 13:00:00 UTC",
    ),
    (
        job(execution_time=NOW + MINUTE, attempt=1, retry_count=1, error_message="no\n route"),
        Verdict.WAITING,
        [ReasonCode.BACKOFF],
        "retry 1 of 3 is due at 2026-11-21 12:01:00 UTC, in 60 s; the attempt before failed: no route",
    ),
    (
        job(execution_time=NOW + HOUR, errors=(error("snoozed"),)),
        Verdict.WAITING,
        [ReasonCode.BACKOFF],
        "postponed itself",
    ),
    (
        replace(job(execution_time=NOW + HOUR, attempt=1), waits=(SLEEP,)),
        Verdict.WAITING,
        [ReasonCode.SLEEPING],
        "sleeps in the step 'delivery' until 2026-11-21 13:00:00 UTC (in 60 min)",
    ),
    (
        replace(job(execution_time=NOW + HOUR, attempt=1), waits=(SLEEP, SIGNAL, EARLY)),
        Verdict.WAITING,
        [ReasonCode.SIGNAL, ReasonCode.SLEEPING],
        "'approval' until 2026-11-21 14:00:00 UTC (in 2 h); other signals, sent before a wait: 'aproval'",
    ),
    (
        replace(job(execution_time=NOW + HOUR, attempt=1, errors=(error("error"),)), waits=(SLEEP,)),
        Verdict.WAITING,
        [ReasonCode.NOT_DUE],
        "due at",
    ),
    (
        replace(job(execution_time=NOW + HOUR, attempt=1), waits=(RETRY,)),
        Verdict.WAITING,
        [ReasonCode.BACKOFF],
        "attempt 3 of the step 'charge' is due at 2026-11-21 13:00:00 UTC, in 60 min; the attempt before",
    ),
    (replace(FACTS, waits=(SLEEP, SIGNAL)), Verdict.WAITING, [ReasonCode.SHOULD_RUN_NOW], "due for"),
    (facts(workers=()), Verdict.HELD, [ReasonCode.NO_WORKER], "no live worker runs jobs"),
    (facts(workers=(worker(is_alive=False),)), Verdict.HELD, [ReasonCode.NO_WORKER], "workers with a row: 1"),
    (facts(workers=(worker(claims_jobs=False),)), Verdict.HELD, [ReasonCode.NO_WORKER], "runs jobs"),
    (
        facts(workers=(worker(names=frozenset({"mails.send"})),)),
        Verdict.HELD,
        [ReasonCode.NAME_UNKNOWN],
        "no live worker claims 'mail.send'; 1 other task claimed",
    ),
    (facts(pause=pause()), Verdict.HELD, [ReasonCode.TASK_PAUSED], "by ada: outage of the mail server"),
    (
        facts(pause=pause(paused_until=NOW + HOUR, ends_in=3600.0, note=None)),
        Verdict.WAITING,
        [ReasonCode.TASK_PAUSED],
        "paused until 2026-11-21 13:00:00 UTC by ada",
    ),
    (
        facts(workers=(FULL, worker(worker_id="w2", running_jobs=30, names=None))),
        Verdict.WAITING,
        [ReasonCode.SLOTS_FULL],
        "50 of 50 slots of 2 workers in use",
    ),
    (
        facts(workers=(FULL,), queue=BEHIND._replace(is_capped=True)),
        Verdict.WAITING,
        [ReasonCode.SLOTS_FULL],
        "about 30+ jobs ahead of it",
    ),
    (
        facts(workers=(worker(running_jobs=25, health=STUCK),), slots=(SlotsRow("w1", 25),)),
        Verdict.WAITING,
        [ReasonCode.SHOULD_RUN_NOW],
        "due for",
    ),
    (facts(queue=BEHIND), Verdict.WAITING, [ReasonCode.SLOTS_FULL], "3 of 25 slots of 1 worker "),
    (
        facts(queue=QueueRow(ahead=22, outranked_by=22)),
        Verdict.WAITING,
        [ReasonCode.OUTRANKED],
        "22 due jobs of a higher priority",
    ),
    (
        facts(queue=QueueRow(ahead=21, outranked_by=2)),
        Verdict.WAITING,
        [ReasonCode.SHOULD_RUN_NOW],
        "nothing prevents its start",
    ),
    (
        facts(workers=(FULL,), queue=BEHIND, starts_per_s=0.1),
        Verdict.WAITING,
        [ReasonCode.SLOTS_FULL],
        "about 30 jobs ahead of it; at the rate of the last minutes it starts in about 5 min",
    ),
    (
        facts(workers=(FULL,), queue=QueueRow(ahead=1200, outranked_by=1200)),
        Verdict.WAITING,
        [ReasonCode.OUTRANKED, ReasonCode.SLOTS_FULL],
        "1,200 due jobs of a higher priority",
    ),
    (
        replace(
            job(blocked_on="limit:stripe:42"),
            limit=LimitUse(running=2, max_running=2, starts=0),
        ),
        Verdict.WAITING,
        [ReasonCode.LIMIT],
        "waits for the limit 'stripe' for the key '42': 2 running of at most 2",
    ),
    (
        replace(job(blocked_on="limit:account:ACME & S\\xf6hne"), limit=None),
        Verdict.WAITING,
        [ReasonCode.LIMIT],
        "waits for the limit 'account' for the key 'ACME & Söhne'",
    ),
    (
        replace(
            job(blocked_on="limit:partner:"),
            limit=LimitUse(running=0, starts=3, max_starts=3, per_s=30.0, next_start_at=NOW + 4 * SECOND),
            limit_wait=LimitWait([], QueueRow(ahead=9, outranked_by=0)),
        ),
        Verdict.WAITING,
        [ReasonCode.LIMIT, ReasonCode.LIMIT_HELD],
        (
            "waits for the limit 'partner': 3 of 3 starts in 30 s used, the next one is free in 4 s, "
            "this job starts in about 94 s"
        ),
    ),
    (
        replace(
            job(blocked_on="limit:stripe:"),
            limit_wait=LimitWait(
                [LimitHolder("crm:1", "crm.sync", NOW - HOUR, 0.5)], QueueRow(ahead=1, outranked_by=0)
            ),
        ),
        Verdict.WAITING,
        [ReasonCode.LIMIT, ReasonCode.LIMIT_HELD],
        "waits for the limit 'stripe'",
    ),
    (job(blocked_on="limit:stripe:"), Verdict.WAITING, [ReasonCode.LIMIT], "waits for the limit 'stripe'"),
    (
        replace(job(blocked_on="share:exports:acme"), tenant_queue=QueueRow(ahead=2, outranked_by=0)),
        Verdict.WAITING,
        [ReasonCode.SHARE],
        "waits for the turn of the tenant 'acme' of the share 'exports'; 2 jobs of it ahead of this one",
    ),
    (
        replace(
            job(blocked_on="zsequence:a:k"),
            sequence_head=HeadRow("zsequence:a:k", "x", "book", "running", None),
            sequence_queue=QueueRow(ahead=2, outranked_by=0),
        ),
        Verdict.WAITING,
        [ReasonCode.SEQUENCE],
        "waits for its place in the sequence 'a' of the key 'k': the job 'x' is first (running); 2 waiting",
    ),
    (
        replace(
            job(blocked_on="zsequence:a:k"),
            sequence_head=HeadRow("zsequence:a:k", "x", None, None, NOW),
            sequence_queue=QueueRow(ahead=0, outranked_by=0),
        ),
        Verdict.HELD,
        [ReasonCode.SEQUENCE_STOPPED],
        "the sequence 'a' of the key 'k' stands still at the failed job 'x'; 0 waiting jobs ahead of this",
    ),
    (
        replace(
            job(blocked_on="after"),
            parents=[("a", JobStatus.RUNNING), ("b", None)],
        ),
        Verdict.WAITING,
        [ReasonCode.AFTER],
        "waits for 2 jobs: 'a' (running), 'b' (does not exist)",
    ),
    (job(blocked_on="after"), Verdict.WAITING, [ReasonCode.AFTER], "waits for other jobs"),
    (
        facts(row_lock=HOLDER),
        Verdict.HELD,
        [ReasonCode.ROW_LOCKED],
        "a transaction has locked its row: process 42 (psql), UPDATE scheduled_jobs",
    ),
    (
        facts(workers=(worker(is_draining=True),)),
        Verdict.HELD,
        [ReasonCode.DRAINING],
        "every worker that claims 'mail.send' is draining: w1 on host",
    ),
    (
        facts(workers=(worker(health=blocked(200.0, by="x")),)),
        Verdict.HELD,
        [ReasonCode.LOOP_BLOCKED],
        "the event loop of w1 on host has been blocked for 3 min by job 'x'",
    ),
    (
        facts(workers=(worker(health=ReportedHealth(refused_claims={"job": "P0001, guard()"})),)),
        Verdict.HELD,
        [ReasonCode.CLAIM_REFUSED],
        "a trigger or a constraint of the application prevents its claim by w1 on host: P0001, guard()",
    ),
    (
        facts(workers=(worker(health=ReportedHealth(refused_names=["mail.send"])),)),
        Verdict.HELD,
        [ReasonCode.CLAIM_REFUSED],
        "prevents the claims of many jobs of 'mail.send', so w1 on host claims jobs of this task only now",
    ),
    (facts(advisory_lock=HOLDER), Verdict.WAITING, [ReasonCode.LOCK_HELD], "another attempt holds"),
    (
        facts(standby_lag_s=5.0),
        Verdict.WAITING,
        [ReasonCode.SHOULD_RUN_NOW, ReasonCode.STANDBY_LAG],
        "this may be a bug",
    ),
    (
        job(execution_time=NOW - SECOND),
        Verdict.WAITING,
        [ReasonCode.SHOULD_RUN_NOW],
        "due for 1 s; nothing prevents its start",
    ),
    (
        replace(job(expires_at=NOW + 20 * SECOND, misfire_grace_time=80), workers=(FULL,), queue=BEHIND),
        Verdict.WAITING,
        [ReasonCode.SLOTS_FULL, ReasonCode.NEARLY_EXPIRED],
        "25 of 25 slots",
    ),
    (
        replace(
            job(expires_at=NOW + HOUR, misfire_grace_time=3660),
            workers=(FULL,),
            queue=BEHIND,
            starts_per_s=0.001,
        ),
        Verdict.WAITING,
        [ReasonCode.SLOTS_FULL, ReasonCode.NEARLY_EXPIRED],
        "25 of 25 slots",
    ),
    (
        replace(job(expires_at=NOW - SECOND, misfire_grace_time=59), pause=pause()),
        Verdict.HELD,
        [ReasonCode.TASK_PAUSED, ReasonCode.NEARLY_EXPIRED],
        "paused by ada",
    ),
    (
        replace(job(expires_at=NOW + 47 * SECOND, misfire_grace_time=107), pause=pause()),
        Verdict.HELD,
        [ReasonCode.TASK_PAUSED, ReasonCode.NEARLY_EXPIRED],
        "paused by ada",
    ),
    (
        replace(job(expires_at=NOW + 2 * HOUR, misfire_grace_time=7260), pause=pause()),
        Verdict.HELD,
        [ReasonCode.TASK_PAUSED],
        "paused by ada",
    ),
    (
        replace(job(execution_time=NOW + HOUR), workers=(), pause=pause()),
        Verdict.WAITING,
        [ReasonCode.NOT_DUE, ReasonCode.NO_WORKER, ReasonCode.TASK_PAUSED],
        "due at",
    ),
    (
        replace(running(), run_p95_s=90.0),
        Verdict.RUNNING,
        [ReasonCode.RUNNING],
        "runs on worker w1 on host for 60 s; 95 % of the attempts take at most ~90 s",
    ),
    (
        replace(running(), workers=(worker(health=blocked(9.0)),)),
        Verdict.RUNNING,
        [ReasonCode.LOOP_BLOCKED, ReasonCode.RUNNING],
        "has been blocked for 9 s",
    ),
    (
        running(lease_until=NOW - SECOND),
        Verdict.RUNNING,
        [ReasonCode.LEASE_EXPIRED, ReasonCode.RUNNING],
        "its worker is alive and keeps it",
    ),
    (
        replace(
            running(lease_until=NOW - SECOND), workers=(worker(is_alive=False, reclaim_at=NOW + MINUTE),)
        ),
        Verdict.RUNNING,
        [ReasonCode.LEASE_EXPIRED, ReasonCode.RUNNING],
        "it is reclaimed within 60 s",
    ),
    (
        replace(running(lease_until=NOW - SECOND), workers=(worker(is_alive=False),)),
        Verdict.RUNNING,
        [ReasonCode.LEASE_EXPIRED, ReasonCode.RUNNING],
        "it is reclaimed within seconds",
    ),
    (
        replace(running(lease_until=None, started_at=None), workers=()),
        Verdict.RUNNING,
        [ReasonCode.LEASE_EXPIRED, ReasonCode.RUNNING],
        "its lease expired; its worker has no row",
    ),
    (
        running(replacement=True),
        Verdict.RUNNING,
        [ReasonCode.RUNNING, ReasonCode.REPLACED],
        "runs on worker w1",
    ),
    (
        ended(JobStatus.FAILED, "ValueError: no"),
        Verdict.ENDED,
        [ReasonCode.FAILED],
        "failed, 0 of 3 retries used: ValueError: no",
    ),
    (ended(JobStatus.FAILED), Verdict.ENDED, [ReasonCode.FAILED], "failed, 0 of 3 retries used"),
    (
        ended(JobStatus.FAILED, "no", attempt=4, max_retries=0),  # retried by hand thrice
        Verdict.ENDED,
        [ReasonCode.FAILED],
        "failed: no",
    ),
    (
        ended(JobStatus.FAILED, "no", attempt=4, retry_count=2, max_retries=2),  # a limit sent back a claim
        Verdict.ENDED,
        [ReasonCode.FAILED],
        "failed, 2 of 2 retries used: no",
    ),
    (
        job(execution_time=NOW + MINUTE, attempt=5, retry_count=1, max_retries=2),
        Verdict.WAITING,
        [ReasonCode.BACKOFF],
        "retry 1 of 2 is due at",
    ),
    (
        ended(JobStatus.FAILED, "no", attempt=0),
        Verdict.ENDED,
        [ReasonCode.FAILED],
        "failed, 0 of 3 retries used: no",
    ),
    (
        ended(JobStatus.FAILED, quarantine_error(3)),
        Verdict.ENDED,
        [ReasonCode.QUARANTINED],
        "3 workers died",
    ),
    (
        ended(JobStatus.FAILED, "quarantined: 1 workers died while they ran this job."),  # of former releases
        Verdict.ENDED,
        [ReasonCode.QUARANTINED],
        "1 workers died",
    ),
    (
        ended(JobStatus.FAILED, quarantine_error(1)),
        Verdict.ENDED,
        [ReasonCode.QUARANTINED],
        "1 worker died while it ran this job",
    ),
    (ended(JobStatus.EXPIRED, "not started between"), Verdict.ENDED, [ReasonCode.EXPIRED], "not started"),
    (
        replace(ended(JobStatus.EXPIRED, "not started"), slot_use=[("report", 2400.0), ("mail", 9.0)]),
        Verdict.ENDED,
        [ReasonCode.EXPIRED],
        "not started; attempts that ended around then took slots: 'report' for 40 min, 'mail' for 9 s",
    ),
    (
        ended(JobStatus.EXPIRED, expires_at=NOW),
        Verdict.ENDED,
        [ReasonCode.EXPIRED],
        "did not start before 2026-11-21 12:00:00 UTC",
    ),
    (ended(JobStatus.EXPIRED), Verdict.ENDED, [ReasonCode.EXPIRED], "did not start before its time"),
    (ended(JobStatus.CANCELLED, "cancelled by ada"), Verdict.ENDED, [ReasonCode.CANCELLED], "by ada"),
    (ended(JobStatus.CANCELLED), Verdict.ENDED, [ReasonCode.CANCELLED], "cancelled by a caller"),
    (
        replace(
            ended(JobStatus.FAILED, schedule_id="daily"),
            schedule=replace(SCHEDULE, paused_at=NOW - HOUR, note="holidays"),
        ),
        Verdict.ENDED,
        [ReasonCode.FAILED, ReasonCode.SCHEDULE_PAUSED],
        "failed, 0 of 3 retries used",
    ),
    (
        running(schedule_id="daily"),
        Verdict.RUNNING,
        [ReasonCode.RUNNING, ReasonCode.SCHEDULE_UNKNOWN],
        "runs on worker w1",
    ),
    (
        replace(running(schedule_id="daily"), schedule=SCHEDULE),
        Verdict.RUNNING,
        [ReasonCode.RUNNING],
        "runs on worker w1",
    ),
]


@each_case(("given_facts", "verdict", "codes", "text"), CASES)
def test_explain_finds_the_reasons(
    given_facts: JobFacts, verdict: Verdict, codes: list[ReasonCode], text: str
) -> None:
    explanation = explain(given_facts)
    assert (explanation.verdict, [reason.code for reason in explanation.reasons]) == (verdict, codes)
    if codes:
        assert text in explanation.reasons[0].text


ABOUT_THE_JOB: Final = {"job", "schedule", "waits"}
ABOUT_THE_TASK: Final = {"task", "pause"}
NOT_SECRET: Final = {"w1", "host", "row"}
"""The worker, whose page everybody sees, and the kind of a lock."""


def with_secrets(fact: Any, public: set[str]) -> Any:
    """Return a fact in which each text but the public ones, such as the name of another job, is a secret."""

    def convert(fact: Any) -> Any:
        if isinstance(fact, str) and not isinstance(fact, JobStatus):
            return fact if fact in public else f"secret {fact}"
        if isinstance(fact, Mapping):
            return {convert(key): convert(value) for key, value in fact.items()}
        if isinstance(fact, tuple) and hasattr(fact, "_fields"):
            return type(fact)(*map(convert, fact))
        if isinstance(fact, tuple | list | frozenset):
            return type(fact)(map(convert, fact))
        if is_dataclass(fact) and not isinstance(fact, type):
            return replace(fact, **{part.name: convert(getattr(fact, part.name)) for part in fields(fact)})
        return fact

    return convert(fact)


def revealing_codes(kept: set[str], public: set[str]) -> set[ReasonCode]:
    """Return the codes of reasons that contain a text of the facts; those that are kept have no secrets."""
    codes = set()
    for given_facts, *_ in CASES:
        secrets = {
            part.name: with_secrets(getattr(given_facts, part.name), public)
            for part in fields(given_facts)
            if part.name not in kept
        }
        for reason in explain(replace(given_facts, **secrets)).reasons:
            if "secret" in f"{reason.text} {reason.remedy} {reason.command}":
                codes.add(reason.code)
    return codes


def test_each_code_has_a_heading_and_a_scope() -> None:
    assert list(KINDS) == list(ReasonCode)


def test_scope_of_a_reason_is_what_its_texts_reveal() -> None:
    about_others = revealing_codes(ABOUT_THE_JOB | ABOUT_THE_TASK, {"mail.send"} | NOT_SECRET)
    assert {KINDS[code].scope for code in about_others} == {ReasonScope.OTHERS}
    about_task = revealing_codes(ABOUT_THE_JOB, NOT_SECRET) - about_others
    assert {KINDS[code].scope for code in about_task} == {ReasonScope.TASK}


KEY_KINDS: Final = (BLOCKED_BY_LIMIT, BLOCKED_BY_SEQUENCE, BLOCKED_BY_SHARE)


def with_secret_key(blocked_on: str | None) -> str | None:
    """Return what blocks a job with a secret in place of the key of a limit, a sequence or a share."""
    kind = next((kind for kind in KEY_KINDS if (blocked_on or "").startswith(kind)), None)
    return blocked_on if kind is None else f"{kind}{name_and_key(kind, blocked_on)[0]}:sec-key"


def with_secret_statement(lock: LockRow | None) -> LockRow | None:
    return None if lock is None else lock._replace(statement="SELECT 'sec-statement'")


def test_reason_states_itself_whether_its_texts_have_a_key_or_a_statement() -> None:
    with_key, with_statement = set(), set()
    for given_facts, *_ in CASES:
        secret_facts = replace(
            given_facts,
            job=replace(given_facts.job, blocked_on=with_secret_key(given_facts.job.blocked_on)),
            row_lock=with_secret_statement(given_facts.row_lock),
            advisory_lock=with_secret_statement(given_facts.advisory_lock),
        )
        for reason in explain(secret_facts).reasons:
            texts = f"{reason.text} {reason.remedy} {reason.command}"
            assert reason.has_key is ("sec-key" in texts)
            assert reason.has_statement is ("sec-statement" in texts)
            if reason.has_key:
                with_key.add(reason.code)
            if reason.has_statement:
                with_statement.add(reason.code)
    # test_cases_cover_every_code_and_verdict() has the other codes, whose texts have neither.
    assert with_key == {
        ReasonCode.LIMIT,
        ReasonCode.SHARE,
        ReasonCode.SEQUENCE,
        ReasonCode.SEQUENCE_STOPPED,
    }
    assert with_statement == {ReasonCode.ROW_LOCKED, ReasonCode.LOCK_HELD}


def test_reason_of_a_limit_without_a_key_is_for_all() -> None:
    (reason,) = explain(job(blocked_on="limit:mails:")).reasons
    assert (reason.code, reason.has_key) == (ReasonCode.LIMIT, False)


def test_cases_cover_every_code_and_verdict() -> None:
    assert {code for _, _, codes, _ in CASES for code in codes} == set(ReasonCode)
    assert {verdict for _, verdict, _, _ in CASES} == set(Verdict)


def eta(of: JobFacts) -> datetime | None:
    return explain(of).eta


def test_explain_estimates_when_a_job_starts_or_ends() -> None:
    assert eta(job(execution_time=NOW + HOUR)) == NOW + HOUR
    assert eta(FACTS) == NOW
    suspended = job(execution_time=NOW + HOUR, attempt=1)
    assert eta(replace(suspended, waits=(SLEEP, SIGNAL))) == NOW + HOUR
    assert eta(replace(suspended, waits=(SIGNAL,))) is None
    assert eta(facts(pause=pause(paused_until=NOW + HOUR, ends_in=3600.0))) == NOW + HOUR
    assert eta(facts(workers=(FULL,), queue=BEHIND, starts_per_s=0.5)) == NOW + 62 * SECOND
    assert eta(replace(running(), run_p95_s=90.0)) == NOW + 30 * SECOND
    assert eta(ended(JobStatus.FAILED)) is None


@each_case(
    "without",
    [
        facts(workers=()),
        facts(pause=pause()),
        job(blocked_on="after"),
        facts(workers=(FULL,), queue=BEHIND),
        facts(workers=(FULL,), queue=BEHIND._replace(is_capped=True), starts_per_s=1),
        facts(workers=(FULL,), queue=BEHIND, starts_per_s=0.0),
        facts(workers=(FULL,), queue=BEHIND, starts_per_s=1e-300),
        running(),
        replace(running(), run_p95_s=1.0),
        replace(running(), run_p95_s=1e300),
    ],
)
def test_explain_estimates_nothing_that_is_unknown(without: JobFacts) -> None:
    assert eta(without) is None


def test_explain_omits_a_pause_that_has_ended_and_a_lag_that_is_small() -> None:
    found = explain(facts(pause=pause(ends_in=0.0), standby_lag_s=0.5))
    assert [reason.code for reason in found.reasons] == [ReasonCode.SHOULD_RUN_NOW]


def test_explanation_suggests_the_alias_of_a_renamed_task() -> None:
    (reason,) = explain(facts(workers=(worker(names=frozenset({"mails.send"})),))).reasons
    assert reason.remedy is not None
    assert reason.remedy.endswith(
        "skip=; or is 'mails.send' its new name? then write aliases=['mail.send'] in its @job"
    )
    (reason,) = explain(facts(workers=(worker(names=frozenset()),))).reasons
    assert reason.remedy is not None
    assert reason.remedy.endswith("skip=")


@pytest.mark.parametrize(
    ("given", "command"),
    [
        (ended(JobStatus.FAILED, job_id="a b"), "pg-scheduler jobs retry 'a b'"),
        (ended(JobStatus.FAILED, quarantine_error(3)), "pg-scheduler jobs retry job"),
        (ended(JobStatus.EXPIRED), "pg-scheduler jobs retry job"),
        (ended(JobStatus.CANCELLED), "pg-scheduler jobs retry job"),
        (facts(pause=pause()), "pg-scheduler tasks resume mail.send"),
        (facts(workers=()), None),
    ],
)
def test_reasons_have_the_shell_command_of_the_remedy(given: JobFacts, command: str | None) -> None:
    assert explain(given).reasons[0].command == command


def test_job_that_a_child_failed_is_retried_with_its_children() -> None:
    error = "JobFailedError: job 'order:7:pack' failed: ValueError: no box"
    (reason,) = explain(ended(JobStatus.FAILED, error, job_id="-7")).reasons
    assert reason.remedy == "correct the cause, then await scheduler.retry_job('-7', children=True)"
    assert reason.command == "pg-scheduler jobs retry --children -- -7"


LIMITED: Final = replace(
    job(blocked_on="limit:stripe:"), limit_wait=LimitWait([], QueueRow(ahead=1, outranked_by=0))
)
KEEP: Final = "let it wait without expiry: await inspector.keep_job('job')"
LONGER: Final = "schedule such jobs with a longer misfire_grace_time="


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (
            replace(job(expires_at=NOW + 20 * SECOND, misfire_grace_time=80), workers=(FULL,), queue=BEHIND),
            f"{KEEP}; {LONGER}",
        ),
        (
            replace(job(expires_at=NOW + 20 * SECOND, misfire_grace_time=80), pause=pause()),
            f"remove what holds it, or {KEEP}; {LONGER}",
        ),
        (replace(LIMITED, job=replace(LIMITED.job, expires_at=NOW + HOUR)), KEEP),
        (LIMITED, None),
    ],
)
def test_job_that_may_expire_can_be_kept(given: JobFacts, remedy: str | None) -> None:
    assert explain(given).reasons[-1].remedy == remedy


def test_reason_of_a_paused_schedule_has_the_shell_command_of_the_remedy() -> None:
    schedule = replace(SCHEDULE, paused_at=NOW - HOUR)
    reason = explain(replace(ended(JobStatus.FAILED, schedule_id="daily"), schedule=schedule)).reasons[-1]
    assert reason.command == "pg-scheduler schedules resume daily"


def test_reasons_state_since_when() -> None:
    assert [explain(each).reasons[0].since for each in (facts(pause=pause()), running(), FACTS)] == [
        NOW - HOUR,
        NOW - MINUTE,
        NOW - MINUTE,
    ]


def test_long_texts_are_shortened() -> None:
    names = [(str(number), JobStatus.PENDING) for number in range(9)]
    (reason,) = explain(replace(job(blocked_on="after"), parents=names)).reasons
    assert reason.text.endswith("'4' (pending) and 4 more")
    (reason,) = explain(ended(JobStatus.FAILED, "x" * 10_000)).reasons
    assert len(reason.text) < 300


INSTANTS = st.datetimes(timezones=st.just(UTC))
MAYBE = st.one_of(st.none(), INSTANTS)


@given(
    status=st.sampled_from(JobStatus),
    instants=st.tuples(INSTANTS, INSTANTS, MAYBE, MAYBE, MAYBE, MAYBE),
    blocked_on=st.sampled_from([None, "after", "limit:a:", "limit:", "limit:a:b:c", ""]),
    workers=st.lists(
        st.sampled_from([WORKER, FULL, worker(is_draining=True), worker(names=None)]), max_size=2
    ),
    rate=st.one_of(st.none(), st.floats(0, allow_nan=False)),
)
def test_explain_gives_a_verdict_for_any_facts(
    status: JobStatus,
    instants: tuple[Any, ...],
    blocked_on: str | None,
    workers: list[InspectedWorker],
    rate: float,
) -> None:
    now, due, started, finished, expires, lease = instants
    values = {"started_at": started, "finished_at": finished, "expires_at": expires, "lease_until": lease}
    given_job = replace(PENDING, status=status, execution_time=due, blocked_on=blocked_on, **values)
    found = explain(
        facts(job=given_job, now=now, workers=workers, starts_per_s=rate, run_p95_s=rate, queue=BEHIND)
    )
    assert isinstance(found, Explanation)
    assert bool(found.reasons) is (status is not JobStatus.COMPLETED)
    assert len({reason.code for reason in found.reasons}) == len(found.reasons)
