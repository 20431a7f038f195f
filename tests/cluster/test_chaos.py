"""A short run of the chaos harness, and the checker on tampered evidence."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import asyncpg
import pytest

from tests.cluster.fleet import ROOT, TIMEOUT_S
from tests.support.stories import NIGHTLY
from tools.chaos.checker import judge
from tools.chaos.durable_jobs import (
    APPROVAL,
    CALLED,
    CHILDREN,
    CHOICE,
    CHOICE_STEP,
    CHOSEN,
    COMPLETED,
    COMPLETING,
    COUPON,
    DRAWN,
    LINES,
    ORDER,
    PARCEL,
    PASSED,
    RECEIVED,
    SUMMARY,
    expected_effects,
)
from tools.chaos.evidence import Admission, Effect, Evidence, KeptResult, Row
from tools.chaos.features import CHILD_KEEP_S
from tools.chaos.jobs import (
    ALERT,
    ALERTED,
    ALERTING,
    ALLOWED,
    IN_TURN,
    KEYED,
    LIMITED,
    MAX_RUNNING,
    MAX_STARTS,
    PER,
    RATED,
    THREAD_IN_TURN,
    UNIQUE,
)
from tools.chaos.ledger import CANCELLED as STOPPED
from tools.chaos.ledger import DIED, DONE, RAISED, Attempt, Ledger, Ledgers, ParentLedger, Record, read
from tools.chaos.load import BROKEN, CALLBACK, CANCELLED, IN_VAIN, PLAIN, REPLACED, ROLLED_BACK, Request, Sent
from tools.chaos.nemesis import (
    FAULTS,
    JOBS_LOCKED,
    MACHINE_STALLED,
    SERVER,
    SERVER_CLOCK,
    SERVER_CLOCK_YEARS,
    WORKER_CLOCK,
    YEAR_S,
    Fault,
    plan,
)
from tools.chaos.report import table
from tools.chaos.stalls import StallRecorder, recorded_stalls
from tools.chaos.unhandled import report_unhandled_errors

SEED = "3036"
MINUTES = 0.25
SMALL = ("--workers", "3", "--rate", "120", "--lease", "2", "--calm", "1", "--memory", "--untimed")


@NIGHTLY
@pytest.mark.chaos
@pytest.mark.timeout(60 * MINUTES + 170)
def test_chaos_run_keeps_every_guarantee_under_faults() -> None:
    # Real time: fifteen seconds of faults, and the recovery. The seed is fixed; the state that the faults
    # meet is not. Other tests share the machine, so lateness is not judged. Within fifteen seconds the
    # server's clock is set forward, a worker's clock back, and a worker is deployed.
    options = ["--seed", SEED, "--minutes", f"{MINUTES:g}", *SMALL]
    command = [sys.executable, "-m", "tools.chaos", *options]
    timeout = 60 * MINUTES + 160
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"python3 dev.py chaos {' '.join(options)}\n"), (
        "the command to replay the run"
    )
    assert done.stdout.endswith("all guarantees kept\n")


def test_reliability_page_has_the_rows_of_the_chaos_report() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    shown = page[page.index("| dev.py chaos --workers") :].partition("\n\n")[0].splitlines()[2:]
    rows = table(judge(sound()), "sound").splitlines()[2:]

    def names(lines: list[str]) -> list[str]:
        return [line.split("|")[1].strip() for line in lines if not line.startswith("| - ")]

    assert names(shown) == names(rows)


def test_fault_plan_is_the_same_for_the_same_seed() -> None:
    def faults(seed: int) -> list[object]:
        return [each for target in FAULTS for each in islice(plan(seed, seats=4, lease=5, of=target), 50)]

    assert faults(1) == faults(1)
    assert faults(1) != faults(2)


def test_attempt_ledger_reads_complete_lines_and_drops_an_incomplete_one(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "worker-1", "abc")
    ledger.start("job", 2, 7)
    ledger.write("JobLost", "job", 2)
    ledger.end("job", 2, DONE)
    ledger.start("cut off", 1, 0)
    [file] = tmp_path.iterdir()
    with file.open("a", encoding="utf-8") as lines:
        lines.write('["end", 12.3, "cut o')
    ledgers = read(tmp_path)
    [one] = ledgers.attempts["job"]
    assert (one.seat, one.worker_id, one.attempt, one.version, one.outcome) == ("worker-1", "abc", 2, 7, DONE)
    assert one.ended is not None
    assert one.started <= one.ended
    assert ledgers.attempts["cut off"][0].ended is None
    assert [record.details for record in ledgers.events["JobLost"]] == [("job", 2)]


def test_ledger_of_a_child_process_appends_to_that_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = Ledger(tmp_path, "worker-1", "abc")
    for name, value in parent.environment.items():
        monkeypatch.setenv(name, value)
    child = ParentLedger()
    child.start("job", 1, 0)
    child.end("job", 1, DIED)
    [one] = read(tmp_path).attempts["job"]
    assert (one.seat, one.worker_id, one.pid, one.outcome) == ("worker-1", "abc", os.getpid(), DIED)
    assert child.worker_id == "abc"


def test_stall_recorder_records_only_stalls_without_processor_time(tmp_path: Path) -> None:
    recorder = StallRecorder(Ledger(tmp_path, "worker-1", "abc"), "worker-1", now=10.0, cpu_s=3.0)
    recorder.observe(10.9, 3.0)  # late, but a suspect worker would still send its heartbeat
    recorder.observe(13.9, 3.1)
    recorder.observe(16.9, 4.1)  # the process computed, or its threads blocked one another
    recorder.observe(18.4, 4.1)
    ledgers = read(tmp_path)
    assert list(recorded_stalls(ledgers, [])) == [
        Fault(MACHINE_STALLED, "worker-1", 10.9, 13.9),
        Fault(MACHINE_STALLED, "worker-1", 16.9, 18.4),
    ]
    stopped = Fault("worker stopped, longer than its lease", "worker-1", 11.0, 13.8)
    other_seat = Fault("worker stopped, longer than its lease", "worker-2", 17.0, 18.0)
    other_fault = Fault("connections stalled", "worker-1", 17.0, 18.0)
    [stall] = recorded_stalls(ledgers, [stopped, other_seat, other_fault])
    assert stall.began == 16.9


STALLED_PROCESS = """
import sys, threading
from pathlib import Path
from tools.chaos import stalls
from tools.chaos.ledger import Ledger
stalls.MIN_STALL_S = 0.2
stalls.StallRecorder.start(Ledger(Path(sys.argv[1]), "worker-1", "abc"), "worker-1")
print("started", flush=True)
threading.Event().wait()
"""


def test_stall_recorder_detects_that_its_process_did_not_run(tmp_path: Path) -> None:
    # Real time: the subject is the time in which a process is stopped.
    command = [sys.executable, "-c", STALLED_PROCESS, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while not (stalls := list(recorded_stalls(read(tmp_path), []))) and time.monotonic() < deadline:
                process.send_signal(signal.SIGSTOP)
                time.sleep(0.5)
                process.send_signal(signal.SIGCONT)
                time.sleep(0.1)
        finally:
            process.kill()
    assert stalls
    assert stalls[0].ended - stalls[0].began > 0.2


def row(
    job_id: str, status: str = "completed", worker_id: str | None = "a", attempt: int = 1, **other: object
) -> Row:
    values: dict[str, object] = {
        "job_name": "chaos.quick",
        "retry_count": 0,
        "max_retries": 0,
        "priority": 5,
        "due": 10.0,
        "created": 10.0,
        "started": 10.1,
    }
    return Row(job_id=job_id, status=status, worker_id=worker_id, attempt=attempt, **(values | other))  # type: ignore[arg-type]


def sound() -> Evidence:
    """Return evidence in which worker a was stopped from 20 to 30 during "reclaimed", which b ran then."""
    fire_times = {
        f"{name} {at}": row(
            f"{name} {at}", job_name=name, due=10.0 + at, created=10.0 + at, started=10.1 + at
        )
        for name in ("chaos.tick", "chaos.tock", ALLOWED)
        for at in range(3)
    }
    rows = fire_times | {
        "plain": row("plain"),
        "broken": row("broken", "failed", attempt=2, retry_count=1, max_retries=1),
        "cancelled": row("cancelled", "cancelled"),
        "replaced": row("replaced", attempt=2),
        "reclaimed": row("reclaimed", worker_id="b", attempt=2, started=27.0),
        "first": row("first"),
        "second": row("second", "failed", attempt=2, retry_count=1, max_retries=1),
        "kept": row("kept"),
        "kept error": row("kept error", "failed", attempt=2, retry_count=1, max_retries=1),
        "callback": row("callback", due=10.0, started=30.5),
        "in vain": row("in vain", "cancelled", worker_id=None, attempt=0, started=None),
    }
    for at in range(MAX_RUNNING + 1):
        rows[f"limited {at}"] = row(f"limited {at}", job_name=LIMITED)
    for at in range(2):
        rows[f"unique {at}"] = row(f"unique {at}", job_name=UNIQUE, attempt=2 - at, unique_key="key")
    rows["other key"] = row("other key", job_name=UNIQUE, unique_key="other")
    for at in range(3):
        job_id = f"schedule:queue-all:{at}"
        rows[job_id] = row(job_id, job_name=IN_TURN, due=10.0, created=10.0, started=10.1)
    for at in range(MAX_STARTS + 1):
        rows[f"rated {at}"] = row(f"rated {at}", job_name=RATED)
    for key, at in ((0, 0), (0, 1), (1, 0)):
        rows[f"keyed {key} {at}"] = row(f"keyed {key} {at}", job_name=KEYED)
    for at, status in enumerate(("cancelled", "completed")):
        job_id = f"schedule:cancel-thread:{at}"
        rows[job_id] = row(job_id, status, job_name=THREAD_IN_TURN)
    rows["order"] = row("order", job_name=ORDER, attempt=2)
    rows["cancelled order"] = row("cancelled order", "cancelled", job_name=ORDER, attempt=2)
    rows["completing"] = row("completing", job_name=COMPLETING)
    for step in CHILDREN:
        rows[f"order:{step}"] = row(f"order:{step}", attempt=2)
    rows["summary"] = row("summary", job_name=SUMMARY, started=11.0)
    rows["choice"] = row("choice", job_name=CHOICE)
    rows[f"choice:{DRAWN}"] = row(f"choice:{DRAWN}")
    rows["alerting"] = row("alerting", "failed", job_name=ALERTING, attempt=2, retry_count=1, max_retries=1)
    rows["alerting:failed"] = row("alerting:failed", job_name=ALERT)
    ledgers = Ledgers()
    for one in rows.values():
        if one.status == "completed":
            ledgers.attempts[one.job_id] = [
                Attempt(one.job_id, 1, "worker-1", "a", 1, 1, started=10.1, ended=10.2, outcome=DONE)
            ]
    ledgers.attempts["unique 0"].append(  # it was retried, or ran once more
        Attempt("unique 0", 2, "worker-1", "a", 1, 0, started=11.0, ended=11.5, outcome=DONE)
    )
    [second] = ledgers.attempts["unique 1"]
    second.started, second.ended = 11.6, 11.7
    ledgers.attempts["replaced"].append(
        Attempt("replaced", 2, "worker-1", "a", 1, 2, started=11, ended=11.5, outcome=DONE)
    )
    for at in range(3):
        [turn] = ledgers.attempts[f"schedule:queue-all:{at}"]
        turn.started, turn.ended = 10.1 + at, 11.0 + at
    ledgers.attempts["schedule:cancel-thread:0"] = [
        Attempt("schedule:cancel-thread:0", 1, "worker-1", "a", 1, 0, 10.1, 12.4, STOPPED)
    ]
    [turn] = ledgers.attempts["schedule:cancel-thread:1"]
    turn.started, turn.ended = 12.5, 12.6
    [second_of_key] = ledgers.attempts["keyed 0 1"]
    second_of_key.started, second_of_key.ended = 10.25, 10.3
    [last] = ledgers.attempts[f"limited {MAX_RUNNING}"]
    last.started, last.ended = 10.25, 10.3
    [callback] = ledgers.attempts["callback"]  # the fenced attempt of "reclaimed" still runs
    callback.started, callback.ended = 27.2, 27.3
    ledgers.attempts["second"] = [
        Attempt("second", 2, "worker-1", "a", 1, 0, started=11, ended=11.1, outcome=RAISED)
    ]
    ledgers.attempts["reclaimed"] = [
        Attempt("reclaimed", 1, "worker-1", "a", 1, 0, started=19.0, ended=30.1, outcome=DONE),
        Attempt("reclaimed", 2, "worker-2", "b", 2, 0, started=27.0, ended=27.1, outcome=DONE),
    ]
    suspended, _ = ledgers.attempts["order"] = [
        Attempt("order", number, "worker-1", "a", 1, 0, 10.0 + number, 10.5 + number, DONE)
        for number in (1, 2)
    ]
    suspended.outcome = STOPPED
    ledgers.attempts["completing"][0].outcome = None  # its worker was killed after the commit
    ledgers.events[CALLED] = [Record(11.0, CALLED, "a", ["order", 1, each]) for each in ("quote", *LINES)]
    ledgers.events[RECEIVED] = [
        Record(11.0, RECEIVED, "a", ["order", attempt, step, value])
        for attempt, step, value in (
            (1, "quote", "order 1 a quote"),
            (2, "quote", "order 1 a quote"),
            (2, "reserve", "order 1 a reserve"),
            (2, APPROVAL, "yes"),
            (2, COUPON, None),
        )
    ]
    ledgers.events[RECEIVED] += [
        Record(11.0, RECEIVED, "a", ["order", 2, step, f"order:{step} 2 a"]) for step in CHILDREN
    ]
    ledgers.events[RECEIVED].append(Record(11.0, RECEIVED, "a", ["choice", 1, CHOICE_STEP, f"{CHOSEN}=yes"]))
    ledgers.events[ALERTED] = [Record(11.0, ALERTED, "a", ["alerting:failed", "alerting"])]
    for step in CHILDREN:
        [last] = ledgers.attempts[f"order:{step}"]
        last.attempt = 2
    [last] = ledgers.attempts["summary"]
    last.started, last.ended = 11.2, 11.3
    results_passed = [["kept", "completed", "kept 1 a"], ["second", "failed", None]]
    ledgers.events[PASSED] = [Record(11.0, PASSED, "a", ["summary", 1, results_passed])]
    ledgers.events["heartbeat"] = [
        Record(18.1, "heartbeat", "a", [18.0]),
        Record(30.5, "heartbeat", "a", [30.4]),
    ]
    ledgers.events["JobLost"] = [Record(30.2, "JobLost", "a", ["reclaimed", 1])]
    ledgers.events["JobCompleted"] = [
        Record(10.3, "JobCompleted", "a", ["plain", 1]),
        Record(27.2, "JobCompleted", "b", ["reclaimed", 2]),
    ]
    requests = {
        "plain": Request(PLAIN, confirmed=True),
        "never confirmed": Request(PLAIN),
        "broken": Request(BROKEN, confirmed=True),
        "cancelled": Request(CANCELLED, confirmed=True, cancelled=True),
        "replaced": Request(REPLACED, confirmed=True, versions=frozenset({2})),
        "reclaimed": Request(PLAIN, confirmed=True),
        "first": Request(PLAIN, confirmed=True),
        "second": Request(BROKEN, confirmed=True),
        "kept": Request(PLAIN, confirmed=True, keeps=True),
        "kept error": Request(BROKEN, confirmed=True, keeps=True),
        "callback": Request(CALLBACK, confirmed=True, after=("first", "second", "reclaimed")),
        "in vain": Request(IN_VAIN, confirmed=True, after=("first", "second")),
    } | {
        job_id: Request(PLAIN, confirmed=True, key=int(job_id[6])) for job_id in rows if job_id[:5] == "keyed"
    }
    requests["order"] = Request(
        PLAIN,
        confirmed=True,
        effects=expected_effects(exact=False, completes=False),
        signals=(Sent(APPROVAL, "yes", True), Sent(APPROVAL, "no", False), Sent(COUPON, "late", False)),
    )
    requests["choice"] = Request(PLAIN, confirmed=True, signals=(Sent(CHOSEN, "yes", True),))
    requests["alerting"] = Request(BROKEN, confirmed=True)
    requests["cancelled order"] = Request(CANCELLED, confirmed=True, effects=(COMPLETED,))
    requests["summary"] = Request(CALLBACK, confirmed=True, after=("kept", "second"))
    requests["rolled back"] = Request(ROLLED_BACK)
    requests["completing"] = Request(PLAIN, confirmed=True, effects=(COMPLETED,))
    admissions = [Admission(f"rated {at}", 1, 10.05) for at in range(MAX_STARTS)]
    admissions.append(Admission(f"rated {MAX_STARTS}", 1, 10.05 + PER.total_seconds()))
    results = {
        "kept": KeptResult("completed", "kept 1 a", has_error=False, attempts=1),
        "kept error": KeptResult("failed", None, has_error=True, attempts=2),
    } | {
        f"order:{step}": KeptResult("completed", f"order:{step} 2 a", has_error=False, attempts=2)
        for step in CHILDREN
    }
    results[f"choice:{DRAWN}"] = KeptResult("completed", f"choice:{DRAWN} 1 a", has_error=False, attempts=1)
    faults = [Fault("worker stopped, longer than its lease", "worker-1", 20.0, 30.0)]
    evidence = Evidence(
        *(requests, rows, results, admissions, ledgers, faults), deaths={}, lease=5.0, quiet=30.0
    )
    evidence.effects = [
        Effect("order", "reserve", 1, "a"),
        Effect("order", "book", 2, "a"),
        Effect("cancelled order", "reserve", 1, "a"),
        Effect("completing", COMPLETED, 1, "a"),
    ]
    return evidence


def broken(evidence: Evidence) -> list[str]:
    return [name for name, problems in judge(evidence).problems.items() if problems]


@pytest.mark.parametrize("moved", [False, True])
def test_checker_accepts_a_missing_fire_time_near_a_clock_step(moved: bool) -> None:
    evidence = sound()
    for at in (130.0, 131.0, 133.0):
        add(evidence, row(f"at {at}", job_name="chaos.tick", due=at, created=at, started=at))
    if moved:
        evidence.faults = [*evidence.faults, Fault(SERVER_CLOCK, SERVER, 35.0, 45.0, 90.0)]
    assert broken(evidence) == ([] if moved else ["fire times duplicated or missed"])


@pytest.mark.parametrize("moved", [False, True])
def test_checker_ignores_the_order_of_claims_dated_by_a_stepped_clock(moved: bool) -> None:
    evidence = sound()
    evidence.timed = False
    add(
        evidence,
        row("critical", priority=1, due=100.0, created=100.0, started=109.0),
        row("low", priority=8, due=107.0, created=107.0, started=107.9),
    )
    if moved:  # by its first attempt it was claimed ninety seconds later
        evidence.ledgers.attempts["low"][0].started = 198.0
    assert broken(evidence) == ([] if moved else ["claimed out of order"])


def test_checker_accepts_the_order_of_two_claims_at_once() -> None:
    evidence = sound()
    evidence.timed = False
    add(
        evidence,
        row("critical", priority=1, due=100.0, created=100.0, started=109.0),
        row("low", priority=8, due=107.0, created=107.0, started=108.9),
    )
    assert broken(evidence) == []


def test_checker_accepts_an_overlap_when_the_machine_stalled_the_worker() -> None:
    evidence = sound()
    stall(evidence, "worker-1", 20.0, 30.0)
    verdict = judge(evidence)
    assert verdict.holds, verdict.problems
    assert verdict.figures["fenced"] == 1
    assert verdict.faults == {MACHINE_STALLED: 1}


def test_checker_passes_when_every_guarantee_held() -> None:
    verdict = judge(sound())
    assert verdict.holds, verdict.problems
    assert verdict.figures["fenced"] == 1
    assert verdict.figures["finished twice"] == 1


@pytest.mark.parametrize("expired", [False, True])
def test_checker_requires_the_result_of_a_child_until_it_expires(expired: bool) -> None:
    evidence = sound()
    without_result(evidence, f"order:{PARCEL}")
    evidence.quiet += CHILD_KEEP_S if expired else 0
    assert broken(evidence) == ([] if expired else ["results lost or wrong"])


@pytest.mark.parametrize("polled", [False, True])
def test_checker_judges_no_lateness_of_a_job_that_waits_for_a_poll(polled: bool) -> None:
    evidence = sound()
    evidence.requests = {**evidence.requests, "polled": Request(PLAIN, confirmed=True, polled=polled)}
    add(evidence, row("polled", due=50.0, created=50.0, started=51.9))
    assert broken(evidence) == ([] if polled else ["late after the faults"])


async def test_report_of_unhandled_errors_leaves_out_only_the_reset_that_asyncpg_shields(dsn: str) -> None:
    reported: list[object] = []
    report_unhandled_errors(reported.append)
    resetting, fails = asyncio.Event(), asyncio.Event()

    async def reset(_: object) -> None:
        resetting.set()
        await fails.wait()
        raise TimeoutError

    async def fail() -> None:
        raise KeyError(1)

    async with asyncpg.create_pool(dsn, min_size=0, max_size=1, reset=reset) as pool:
        releasing = asyncio.create_task(pool.release(await pool.acquire()))
        await resetting.wait()
        releasing.cancel()
        await asyncio.wait([releasing])
        fails.set()
        other: asyncio.Task[None] | None = asyncio.create_task(fail())
        connection = await pool.acquire()  # the failed reset has freed its place
        with pytest.raises(TimeoutError):
            await pool.release(connection)
    del other
    gc.collect()
    [found] = reported
    assert str(found).startswith("Task exception was never retrieved: KeyError(1)")


@pytest.mark.parametrize("stalled", [False, True])
def test_checker_judges_no_lateness_while_the_machine_stalls_a_worker(stalled: bool) -> None:
    evidence = sound()
    add(evidence, row("late", due=40.0, created=40.0, started=42.0))
    if stalled:
        evidence.faults = [*evidence.faults, Fault(MACHINE_STALLED, "worker-2", 40.2, 41.8)]
    assert broken(evidence) == ([] if stalled else ["late after the faults"])


def test_checker_treats_a_merged_fire_time_as_lateness() -> None:
    evidence = sound()
    without(evidence, "chaos.tock 1")
    assert not judge(evidence).holds
    evidence.timed = False
    assert judge(evidence).holds


@pytest.mark.parametrize("moved", [False, True])
def test_checker_accepts_a_start_that_a_stepped_clock_dated_within_the_span_of_the_rate_limit(
    moved: bool,
) -> None:
    evidence = sound()
    admit_early(evidence)
    if moved:  # the admissions are dated by the stepped clock
        evidence.faults = [*evidence.faults, Fault(SERVER_CLOCK, SERVER, 80.0, 90.0, -70.0)]
    assert broken(evidence) == ([] if moved else ["limits exceeded"])


@pytest.mark.parametrize("fenced", [False, True])
def test_checker_accepts_a_cancelled_attempt_that_runs_on_only_if_it_was_fenced(fenced: bool) -> None:
    evidence = sound()
    [cancelled] = evidence.ledgers.attempts["schedule:cancel-thread:0"]
    [following] = evidence.ledgers.attempts["schedule:cancel-thread:1"]
    cancelled.started, cancelled.ended = 19.0, 30.1
    following.started, following.ended = (27.0 if fenced else 18.5) + 1, 29.5
    cancelled.seat = "worker-1" if fenced else "worker-2"
    assert broken(evidence) == ([] if fenced else ["schedules overlapping or stopped"])


def test_checker_accepts_a_callback_before_the_end_of_a_function_that_had_completed_its_job() -> None:
    evidence = sound()
    [waited_for] = evidence.ledgers.attempts["first"]
    waited_for.ended = 28.0
    assert broken(evidence) == ["callbacks early or repeated"]
    write_effect(evidence, "first", COMPLETED, 1, "a")
    assert broken(evidence) == []


def test_checker_accepts_a_cancelled_attempt_that_ended_with_its_process() -> None:
    evidence = sound()
    [cancelled] = evidence.ledgers.attempts["schedule:cancel-thread:0"]
    cancelled.pid, cancelled.ended, cancelled.outcome = 7, None, None
    assert broken(evidence) == ["schedules overlapping or stopped"]
    evidence.deaths = {7: 12.4}
    assert broken(evidence) == []
    evidence.deaths = {7: 12.55}
    assert broken(evidence) == ["schedules overlapping or stopped"]


def test_checker_accepts_a_job_of_a_schedule_that_was_cancelled_before_it_ran_again() -> None:
    evidence = sound()
    put(evidence, "schedule:cancel-thread:0", worker_id=None)
    evidence.ledgers.attempts["schedule:cancel-thread:0"][0].ended = None
    assert broken(evidence) == []


@pytest.mark.parametrize("value", ["perhaps", None])
def test_checker_accepts_a_signal_whose_call_raised_as_stored_or_not(value: str | None) -> None:
    evidence = sound()
    send(evidence, COUPON, "perhaps", None)
    receive(evidence, COUPON, value)
    assert broken(evidence) == []


def admit_early(evidence: Evidence) -> None:
    *before, last = evidence.admissions
    evidence.admissions = [*before, replace(last, at=last.at - 0.01)]


def put(evidence: Evidence, job_id: str, **other: object) -> None:
    rows = dict(evidence.rows)
    rows[job_id] = replace(rows[job_id], **other)  # type: ignore[arg-type]
    evidence.rows = rows


def put_result(evidence: Evidence, job_id: str, **other: object) -> None:
    results = dict(evidence.results)
    results[job_id] = replace(results[job_id], **other)  # type: ignore[arg-type]
    evidence.results = results


def without_result(evidence: Evidence, job_id: str) -> None:
    evidence.results = {name: each for name, each in evidence.results.items() if name != job_id}


def without(evidence: Evidence, job_id: str) -> None:
    evidence.rows = {name: each for name, each in evidence.rows.items() if name != job_id}


def add(evidence: Evidence, *rows: Row) -> None:
    evidence.rows = {**evidence.rows, **{each.job_id: each for each in rows}}
    for each in rows:
        assert each.started is not None
        evidence.ledgers.attempts[each.job_id] = [
            Attempt(each.job_id, 1, "worker-1", "a", 1, 0, each.started, each.started + 0.1, DONE)
        ]


def publish(evidence: Evidence, event: str, worker_id: str, *details: object) -> Record:
    record = Record(26.0, event, worker_id, list(details))
    evidence.ledgers.events[event].append(record)
    return record


def stall(evidence: Evidence, seat: str, began: float, ended: float) -> None:
    evidence.faults = [Fault(MACHINE_STALLED, seat, began, ended)]


def stall_during_a_valid_lease(evidence: Evidence) -> None:
    stall(evidence, "worker-1", 20.0, 25.0)
    publish(evidence, "heartbeat", "a", 25.9)


def call_step(evidence: Evidence, attempt: int, step: str) -> None:
    evidence.ledgers.events[CALLED].append(Record(11.0, CALLED, "a", ["order", attempt, step]))


def receive(evidence: Evidence, step: str, value: str | None) -> None:
    """Let an attempt receive a value instead of what it received from a step, or beside it."""
    evidence.ledgers.events[RECEIVED] = [
        *(each for each in evidence.ledgers.events[RECEIVED] if each.details[:3] != ["order", 2, step]),
        Record(11.0, RECEIVED, "a", ["order", 2, step, value]),
    ]


def without_effect(evidence: Evidence, step: str) -> None:
    evidence.effects = [each for each in evidence.effects if each.step != step]


def write_effect(evidence: Evidence, *effect: object) -> None:
    evidence.effects = [*evidence.effects, Effect(*effect)]  # type: ignore[arg-type]


def send(evidence: Evidence, *sent: object) -> None:
    evidence.requests["order"].signals += (Sent(*sent),)  # type: ignore[arg-type]


def not_received(evidence: Evidence, step: str) -> None:
    evidence.ledgers.events[RECEIVED] = [
        each for each in evidence.ledgers.events[RECEIVED] if each.details[2] != step
    ]


def without_child(evidence: Evidence, job_id: str) -> None:
    without(evidence, job_id)
    without_result(evidence, job_id)


def fail_child(evidence: Evidence) -> None:
    put(evidence, f"order:{PARCEL}", status="failed")
    put_result(evidence, f"order:{PARCEL}", status="failed", value=None, has_error=True)


def add_orphan(evidence: Evidence) -> None:
    """Add the child of an order that was not inserted."""
    add(evidence, row(f"never confirmed:{PARCEL}"))
    result = KeptResult("completed", f"never confirmed:{PARCEL} 1 a", has_error=False, attempts=1)
    evidence.results = {**evidence.results, f"never confirmed:{PARCEL}": result}


def complete_in_a_later_attempt(evidence: Evidence) -> None:
    put(evidence, "completing", attempt=2)
    later = Attempt("completing", 2, "worker-1", "a", 1, 0, 11.0, 11.1, DONE)
    evidence.ledgers.attempts["completing"].append(later)


def complete_without_an_effect(evidence: Evidence) -> None:
    without_effect(evidence, COMPLETED)
    evidence.requests["completing"].effects = ()


def start_callback_early(evidence: Evidence) -> None:
    put(evidence, "callback", attempt=2)
    [last] = evidence.ledgers.attempts["callback"]
    last.attempt = 2
    first = Attempt("callback", 1, "worker-2", "b", 2, 0, started=27.0, ended=27.05, outcome=RAISED)
    evidence.ledgers.attempts["callback"].insert(0, first)


TAMPERED: dict[str, tuple[str, Callable[[Evidence], object]]] = {
    "a row is missing": ("lost", lambda it: without(it, "broken")),
    "a job never ends": ("lost", lambda it: put(it, "replaced", status="running")),
    "a job failed unexpectedly": ("lost", lambda it: put(it, "replaced", status="failed")),
    "a retry is missing": ("lost", lambda it: put(it, "broken", retry_count=0)),
    "a cancelled job failed": ("lost", lambda it: put(it, "cancelled", status="failed")),
    "an old definition ran last": ("lost", lambda it: put(it, "replaced", attempt=1)),
    "no attempt completed": ("finished without having run", lambda it: it.ledgers.attempts["plain"].clear()),
    "no fault explains the takeover": ("overlaps", lambda it: setattr(it, "faults", [])),
    "the stale worker was not notified": ("overlaps", lambda it: it.ledgers.events["JobLost"].clear()),
    "the lease was valid": ("overlaps", lambda it: publish(it, "heartbeat", "a", 25.9)),
    "two attempts have one token": (
        "overlaps",
        lambda it: it.ledgers.attempts["plain"].append(
            replace(it.ledgers.attempts["plain"][0], worker_id="b")
        ),
    ),
    "a stale worker completed it": (
        "stale writes",
        lambda it: publish(it, "JobCompleted", "a", "reclaimed", 1),
    ),
    "it ran again after its completion": (
        "stale writes",
        lambda it: it.ledgers.attempts["plain"].append(
            Attempt("plain", 2, "worker-2", "b", 2, 0, 12.0, 12.1, DONE)
        ),
    ),
    "a fire time enqueued twice": (
        "fire times duplicated or missed",
        lambda it: add(it, row("again", job_name="chaos.tick", due=11.0, created=11.0, started=11.1)),
    ),
    "planned twice": (
        "fire times duplicated or missed",
        lambda it: [publish(it, "PeriodicJobPlanned", name, "tick 1") for name in ("a", "b")],
    ),
    "a fire time missing": ("fire times duplicated or missed", lambda it: without(it, "chaos.tock 1")),
    "a callback is missing": ("lost", lambda it: without(it, "callback")),
    "a callback never ends": ("lost", lambda it: put(it, "callback", status="cancelled")),
    "a callback in vain is still pending": ("lost", lambda it: put(it, "in vain", status="pending")),
    "a callback started early": (
        "callbacks early or repeated",
        lambda it: setattr(it.ledgers.attempts["callback"][0], "started", 27.05),
    ),
    "a callback started before another job failed": (
        "callbacks early or repeated",
        lambda it: setattr(it.ledgers.attempts["second"][0], "ended", 27.25),
    ),
    "a callback started although another job runs": (
        "callbacks early or repeated",
        lambda it: setattr(it.ledgers.attempts["second"][0], "ended", None),
    ),
    "an earlier attempt of a callback started early": (
        "callbacks early or repeated",
        start_callback_early,
    ),
    "a callback started in vain": (
        "callbacks early or repeated",
        lambda it: it.ledgers.attempts["in vain"].append(
            Attempt("in vain", 1, "worker-1", "a", 1, 0, 12.0, 12.1, DONE)
        ),
    ),
    "a callback completed twice": (
        "callbacks early or repeated",
        lambda it: [publish(it, "JobCompleted", "a", "callback", 1) for _ in range(2)],
    ),
    "two jobs of a schedule overlap": (
        "schedules overlapping or stopped",
        lambda it: setattr(it.ledgers.attempts["schedule:queue-all:1"][0], "started", 10.9),
    ),
    "a job of a schedule started while another one runs": (
        "schedules overlapping or stopped",
        lambda it: setattr(it.ledgers.attempts["schedule:queue-all:1"][0], "ended", 12.2),
    ),
    "a schedule stopped": (
        "schedules overlapping or stopped",
        lambda it: setattr(it, "stopped_schedules", ["delay enqueued no job"]),
    ),
    "one job too many of a limited task": (
        "limits exceeded",
        lambda it: setattr(it.ledgers.attempts[f"limited {MAX_RUNNING}"][0], "started", 10.15),
    ),
    "a job of a schedule started before a cancelled thread ended": (
        "schedules overlapping or stopped",
        lambda it: setattr(it.ledgers.attempts["schedule:cancel-thread:0"][0], "ended", 12.55),
    ),
    "a cancelled job of a schedule never ends": (
        "schedules overlapping or stopped",
        lambda it: setattr(it.ledgers.attempts["schedule:cancel-thread:0"][0], "ended", None),
    ),
    "a fire time of a schedule whose jobs may overlap is missing": (
        "fire times duplicated or missed",
        lambda it: without(it, f"{ALLOWED} 1"),
    ),
    "a fire time of a schedule whose jobs may overlap was enqueued twice": (
        "fire times duplicated or missed",
        lambda it: add(it, row("again", job_name=ALLOWED, due=11.0, created=11.0, started=11.1)),
    ),
    "one start too many within the time span of a rate limit": ("limits exceeded", admit_early),
    "an attempt started without a start in the log of its limit": (
        "limits exceeded",
        lambda it: setattr(it, "admissions", it.admissions[1:]),
    ),
    "a second attempt started without a start in the log of its limit": (
        "limits exceeded",
        lambda it: it.ledgers.attempts["rated 0"].insert(
            0, Attempt("rated 0", 0, "worker-1", "a", 1, 0, 10.0, 10.05, RAISED)
        ),
    ),
    "two jobs of one key of a limit run at once": (
        "limits exceeded",
        lambda it: setattr(it.ledgers.attempts["keyed 0 1"][0], "started", 10.15),
    ),
    "a second job of a unique key runs while the first one waits for its retry": (
        "unique keys held twice",
        lambda it: setattr(it.ledgers.attempts["unique 1"][0], "started", 10.5),
    ),
    "a second job of a unique key started before the first one ended": (
        "unique keys held twice",
        lambda it: setattr(it.ledgers.attempts["unique 0"][1], "ended", 11.65),
    ),
    "two jobs have the same unique key": (
        "unique keys held twice",
        lambda it: put(it, "other key", unique_key="key"),
    ),
    "a result is missing": ("results lost or wrong", lambda it: without_result(it, "kept")),
    "an error is missing": ("results lost or wrong", lambda it: without_result(it, "kept error")),
    "the value of a fenced attempt": (
        "results lost or wrong",
        lambda it: put_result(it, "kept", value="kept 1 b"),
    ),
    "no value": ("results lost or wrong", lambda it: put_result(it, "kept", value=None)),
    "the status of a result differs": (
        "results lost or wrong",
        lambda it: put_result(it, "kept", status="failed"),
    ),
    "the attempt of a result differs": (
        "results lost or wrong",
        lambda it: put_result(it, "kept error", attempts=1),
    ),
    "a result of a failed job without an error": (
        "results lost or wrong",
        lambda it: put_result(it, "kept error", has_error=False),
    ),
    "a result of a job that keeps none": (
        "results lost or wrong",
        lambda it: it.requests["kept"].__setattr__("keeps", False),
    ),
    "a step was called twice in an attempt": (
        "steps repeated or lost",
        lambda it: call_step(it, 1, "quote"),
    ),
    "a step was called after its value was stored": (
        "steps repeated or lost",
        lambda it: call_step(it, 2, "quote"),
    ),
    "a later attempt received another value": (
        "steps repeated or lost",
        lambda it: receive(it, "quote", "order 2 a quote"),
    ),
    "a value that no call returned": (
        "steps repeated or lost",
        lambda it: receive(it, "reserve", "order 2 a reserve"),
    ),
    "a cursor passed over a line": (
        "steps repeated or lost",
        lambda it: it.ledgers.events[CALLED].pop(),
    ),
    "an effect was written twice": (
        "effects repeated or lost",
        lambda it: write_effect(it, "order", "book", 1, "a"),
    ),
    "an effect of a cancelled job was written twice": (
        "effects repeated or lost",
        lambda it: write_effect(it, "cancelled order", "reserve", 2, "a"),
    ),
    "an effect is missing": ("effects repeated or lost", lambda it: without_effect(it, "book")),
    "a cancelled job wrote the effect of its completion": (
        "effects repeated or lost",
        lambda it: write_effect(it, "cancelled order", COMPLETED, 2, "a"),
    ),
    "a fenced attempt wrote the effect of its completion": (
        "effects repeated or lost",
        complete_in_a_later_attempt,
    ),
    "a completion in a transaction without its effect": (
        "finished without having run",
        complete_without_an_effect,
    ),
    "another signal than the stored one": (
        "signals lost or replaced",
        lambda it: receive(it, APPROVAL, "no"),
    ),
    "two signals of one name were stored": (
        "signals lost or replaced",
        lambda it: send(it, APPROVAL, "again", True),
    ),
    "a stored signal is lost": (
        "signals lost or replaced",
        lambda it: send(it, COUPON, "in time", True),
    ),
    "a job completed without its signal": (
        "signals lost or replaced",
        lambda it: not_received(it, COUPON),
    ),
    "a rejected signal was received": (
        "signals lost or replaced",
        lambda it: receive(it, COUPON, "late"),
    ),
    "an order waits for its child for ever": ("lost", lambda it: put(it, "order", status="pending")),
    "a child is missing": ("children lost or repeated", lambda it: without_child(it, "order:documents:1")),
    "a child failed, and its order completed": ("children lost or repeated", fail_child),
    "a child was completed twice": (
        "children lost or repeated",
        lambda it: [publish(it, "JobCompleted", "a", f"order:{PARCEL}", 2) for _ in range(2)],
    ),
    "an order got the value of an earlier completion of its child": (
        "children lost or repeated",
        lambda it: receive(it, PARCEL, f"order:{PARCEL} 1 a"),
    ),
    "an order completed without its child": (
        "children lost or repeated",
        lambda it: not_received(it, PARCEL),
    ),
    "a child exists without its order": (
        "children lost or repeated",
        add_orphan,
    ),
    "a passed result is missing": (
        "passed results missing or wrong",
        lambda it: it.ledgers.events[PASSED][0].details[2].pop(),
    ),
    "a passed result is that of an earlier attempt": (
        "passed results missing or wrong",
        lambda it: it.ledgers.events[PASSED][0].details[2][0].__setitem__(2, "kept 0 a"),
    ),
    "a passed status is wrong": (
        "passed results missing or wrong",
        lambda it: it.ledgers.events[PASSED][0].details[2][1].__setitem__(1, "cancelled"),
    ),
    "a job was passed no results": (
        "passed results missing or wrong",
        lambda it: it.ledgers.events[PASSED].clear(),
    ),
    "a job of a transaction that was rolled back exists": (
        "lost",
        lambda it: add(it, row("rolled back")),
    ),
    "claimed before its execution time": (
        "claimed early",
        lambda it: put(it, "plain", due=10.5),
    ),
    "only the server clock stepped by years": (
        "overlaps",
        lambda it: setattr(it, "faults", [Fault(SERVER_CLOCK_YEARS, SERVER, 20.0, 30.0, 9 * YEAR_S)]),
    ),
    "only rows of jobs locked": (
        "overlaps",
        lambda it: setattr(it, "faults", [Fault(JOBS_LOCKED, SERVER, 20.0, 30.0)]),
    ),
    "a choice of a value that nobody sent": (
        "choices lost or changed",
        lambda it: setattr(it.requests["choice"], "signals", (Sent(CHOSEN, "no", True),)),
    ),
    "a choice of a signal that was not stored": (
        "choices lost or changed",
        lambda it: setattr(it.requests["choice"], "signals", (Sent(CHOSEN, "yes", False),)),
    ),
    "a choice without a winner": (
        "choices lost or changed",
        lambda it: it.ledgers.events[RECEIVED].pop(),
    ),
    "a failure without an alert": (
        "alerts lost or repeated",
        lambda it: it.ledgers.events[ALERTED].clear(),
    ),
    "a failure with two alerts": (
        "alerts lost or repeated",
        lambda it: it.ledgers.events[ALERTED].append(Record(11.0, ALERTED, "a", ["another", "alerting"])),
    ),
    "an alert of a job that did not fail": (
        "alerts lost or repeated",
        lambda it: it.ledgers.events[ALERTED].append(Record(11.0, ALERTED, "a", ["another", "plain"])),
    ),
    "an alert that did not complete": (
        "alerts lost or repeated",
        lambda it: put(it, "alerting:failed", status="expired"),
    ),
    "changes that the publication did not deliver": (
        "changes not read from the publication",
        lambda it: setattr(it, "unread", ["42 bytes"]),
    ),
    "only the server clock stepped": (
        "overlaps",
        lambda it: setattr(it, "faults", [Fault(SERVER_CLOCK, SERVER, 20.0, 30.0, 90.0)]),
    ),
    "only a worker clock stepped": (
        "overlaps",
        lambda it: setattr(it, "faults", [Fault(WORKER_CLOCK, "worker-1", 20.0, 30.0, 90.0)]),
    ),
    "the machine stalled another worker": (
        "overlaps",
        lambda it: stall(it, "worker-2", 20.0, 30.0),
    ),
    "the machine stalled the worker long before": (
        "overlaps",
        lambda it: stall(it, "worker-1", 15.0, 20.0),
    ),
    "the lease was valid although the machine stalled": (
        "overlaps",
        stall_during_a_valid_lease,
    ),
    "low priority before critical": (
        "claimed out of order",
        lambda it: add(
            it,
            row("critical", priority=1, due=2.0, created=2.0, started=9.0),
            row("low", priority=8, due=2.0, created=2.0, started=7.9),
        ),
    ),
    "late": ("late after the faults", lambda it: add(it, row("late", due=40.0, created=40.0, started=42.0))),
    "an unhandled exception in a task": (
        "unhandled errors",
        lambda it: publish(it, "Unhandled", "a", "Task exception was never retrieved"),
    ),
    "a worker stopped by itself": (
        "workers that stopped by themselves",
        lambda it: setattr(it, "unexpected_exits", ["worker-1 stopped"]),
    ),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_checker_reports_each_broken_guarantee(case: str) -> None:
    guarantee, tamper = TAMPERED[case]
    evidence = sound()
    tamper(evidence)
    assert broken(evidence) == [guarantee]
