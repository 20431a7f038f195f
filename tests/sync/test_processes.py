"""SyncScheduler in programs that fork, exit and are interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from tests.sync.programs import TIMEOUT_S, command, environment, run, run_command

pytestmark = pytest.mark.slow


async def count(pool: asyncpg.Pool) -> int:
    found: int = await pool.fetchval("SELECT count(*) FROM scheduled_jobs")
    return found


LOOPS = {"uvloop": "", "asyncio": "portal.new_event_loop = asyncio.new_event_loop"}
"""Code that chooses the event loop: that of uvloop is the default where it is installed."""


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
async def test_forked_children_open_connections_of_their_own(pool: asyncpg.Pool, dsn: str, loop: str) -> None:
    code = f"""
    {loop}
    scheduler.schedule(work, execution_time=LATER)
    parent = sockets_of(scheduler)
    assert parent
    for number in range(3):
        pid = os.fork()
        if pid == 0:
            assert repr(scheduler) == "<SyncScheduler, not started>"
            assert not parent & open_files(), "a socket of the parent is open"
            scheduler.schedule(work, execution_time=LATER)
            assert not parent & sockets_of(scheduler)
            sys.exit(0)  # through the exit of the interpreter
        assert os.waitpid(pid, 0)[1] == 0
        scheduler.schedule(work, execution_time=LATER)  # the connections of the parent still work
    assert sockets_of(scheduler) == parent
    """
    run(code, dsn)
    assert await count(pool) == 7


async def test_child_that_uses_nothing_exits_and_leaves_the_parent_alone(
    pool: asyncpg.Pool, dsn: str
) -> None:
    code = """
    scheduler.schedule(work, execution_time=LATER)
    for leave in (scheduler.close, lambda: None):
        if (pid := os.fork()) == 0:
            leave()
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    scheduler.schedule(work, execution_time=LATER)
    """
    run(code, dsn)
    assert await count(pool) == 2


async def test_processes_of_multiprocessing_enqueue(pool: asyncpg.Pool, dsn: str) -> None:
    code = """
    def enqueue(number):
        scheduler.schedule(work, execution_time=LATER, job_id=str(number))

    scheduler.initialize_db()
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=enqueue, args=(number,)) for number in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(40)
    assert [child.exitcode for child in children] == [0, 0, 0, 0]
    """
    run(code, dsn)
    assert await count(pool) == 4


async def test_child_of_a_worker_has_its_functions_and_subscribers_and_no_running_scheduler(
    pool: asyncpg.Pool, dsn: str
) -> None:
    code = """
    def handle(event):
        print(event.job_name, os.getpid() == parent, flush=True)
        ended.set()

    @scheduler.register(name="late")
    async def late(): ...

    parent, ended = os.getpid(), threading.Event()
    scheduler.subscribe(handle, JobCompleted)
    scheduler.start()
    if (pid := os.fork()) == 0:
        ended = threading.Event()
        assert not scheduler.is_running
        scheduler.start()
        print(scheduler.worker_id, flush=True)
        sys.stdin.read()  # until the parent has stopped
        scheduler.schedule(late, execution_time=datetime.now(UTC))
        assert ended.wait(30)
        sys.exit(0)
    print(scheduler.worker_id, flush=True)
    scheduler.shutdown()
    os.close(0)
    writer.close()
    assert os.waitpid(pid, 0)[1] == 0
    """
    head = """
    reader, writer = os.pipe()
    os.dup2(reader, 0)
    writer = os.fdopen(writer, "w")
    os.set_inheritable(writer.fileno(), False)
    os.register_at_fork(after_in_child=writer.close)
    """
    lines = run(head + code, dsn)
    assert lines[-1] == "late False"
    assert len(set(lines)) == 3, "the child has a worker id of its own"


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
async def test_child_that_was_forked_without_the_hooks_of_python_opens_connections_of_its_own(
    pool: asyncpg.Pool, dsn: str, loop: str
) -> None:
    # uWSGI forks in C: the functions registered with os.register_at_fork() are not called.
    code = f"""
    {loop}
    import ctypes
    scheduler.schedule(work, execution_time=LATER)
    parent = sockets_of(scheduler)
    fork = ctypes.PyDLL(None).fork
    if (pid := fork()) == 0:
        scheduler.schedule(work, execution_time=LATER)
        assert not parent & open_files(), "a socket of the parent is open"
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    scheduler.schedule(work, execution_time=LATER)
    assert sockets_of(scheduler) == parent
    """
    run(code, dsn)
    assert await count(pool) == 3


async def test_child_that_is_forked_while_another_thread_starts_the_portal_can_call(
    pool: asyncpg.Pool, dsn: str
) -> None:
    code = """
    from pg_scheduler.sync.scheduler import shared
    held, fork = threading.Event(), threading.Event()

    def hold():
        with shared.starting:
            held.set()
            fork.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    if (pid := os.fork()) == 0:
        scheduler.schedule(work, execution_time=LATER)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    fork.set()
    thread.join()
    """
    run(code, dsn)
    assert await count(pool) == 1


# -- the end of the interpreter --------------------------------------------------------------------------


async def test_exit_keeps_every_returned_job_when_the_scheduler_was_not_closed(
    pool: asyncpg.Pool, dsn: str
) -> None:
    code = """
    def enqueue():
        for _ in range(25):
            job_ids.append(scheduler.schedule(work, execution_time=LATER))

    job_ids = []
    atexit.register(lambda: print(*job_ids, sep="\\n", flush=True))
    threads = [threading.Thread(target=enqueue) for _ in range(4)]  # the exit waits for them
    for thread in threads:
        thread.start()
    """
    job_ids = run(code, dsn)
    assert len(job_ids) == 100
    rows = await pool.fetch("SELECT job_id FROM scheduled_jobs")
    assert {row["job_id"] for row in rows} == set(job_ids)


async def test_exit_shuts_a_started_scheduler_down_and_keeps_results(pool: asyncpg.Pool, dsn: str) -> None:
    code = """
    began = threading.Event()

    @job(name="slow")
    async def slow():
        began.set()
        while not scheduler.is_shutting_down:
            await asyncio.sleep(0.01)
        print("ended", flush=True)

    scheduler.start()
    scheduler.schedule(slow, execution_time=datetime.now(UTC))
    assert began.wait(30)
    """
    assert run(code, dsn) == ["ended"]
    assert await pool.fetchval("SELECT status FROM scheduled_jobs") == "completed"
    assert await pool.fetchval("SELECT count(*) FROM scheduler_workers") == 0


async def test_exit_ends_while_daemon_threads_call(pool: asyncpg.Pool, dsn: str) -> None:
    code = """
    def enqueue():
        while True:
            try:
                scheduler.schedule(work, execution_time=LATER)
            except BaseException:  # the scheduler is closed, or the interpreter ends
                return
            first.set()

    first = threading.Event()
    for _ in range(4):
        threading.Thread(target=enqueue, daemon=True).start()
    assert first.wait(30)
    """
    run(code, dsn)
    assert await count(pool) >= 1


async def test_function_at_exit_that_was_registered_later_can_still_call(
    pool: asyncpg.Pool, dsn: str
) -> None:
    code = """
    scheduler.schedule(work, execution_time=LATER)
    atexit.register(lambda: scheduler.schedule(work, execution_time=LATER))
    """
    run(code, dsn)
    assert await count(pool) == 2


async def test_keyboard_interrupt_cancels_the_call_and_leaves_the_scheduler_usable(
    pool: asyncpg.Pool, dsn: str
) -> None:
    code = """

    def calls():
        coroutines = [task.get_coro() for task in asyncio.all_tasks()]
        return sum("_result_of" in repr(each) for each in coroutines) - 1  # without this one

    def interrupt():
        while not scheduler._portal().call(calls):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    scheduler.start()
    threading.Thread(target=interrupt).start()
    try:
        scheduler.wait()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    while scheduler._portal().call(calls):
        pass
    scheduler.schedule(work, execution_time=LATER)
    """
    assert run(code, dsn) == ["interrupted"]
    assert await count(pool) == 1


async def test_interrupted_script_releases_its_jobs(pool: asyncpg.Pool, dsn: str) -> None:
    code = """

    @job(name="endless")
    async def endless():
        print("runs", flush=True)
        await asyncio.Event().wait()

    scheduler = SyncScheduler(sys.argv[1], shutdown_timeout=0.1)
    with scheduler:
        scheduler.start()
        scheduler.schedule(endless, execution_time=datetime.now(UTC))
        scheduler.wait()
    """
    process = subprocess.Popen(  # noqa: ASYNC220 - this test only waits for it
        command(code, dsn), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "runs\n"
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert error.endswith("KeyboardInterrupt\n")
    assert process.returncode in {-signal.SIGINT, 1, 130}
    row = await pool.fetchrow("SELECT status, attempt, retry_count FROM scheduled_jobs")
    assert row
    assert (row["status"], row["retry_count"]) == ("pending", 0)


# -- uWSGI -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("{}", "ConfigurationError"),
        ("{'enable-threads': b'false'}", "ConfigurationError"),
        ("{'threads': b'1'}", "ConfigurationError"),
        ("{'enable-threads': True}", "0"),
        ("{'enable-threads': b'true'}", "0"),
        ("{'threads': b'2'}", "0"),
    ],
)
def test_call_under_uwsgi_requires_threads(dsn: str, options: str, expected: str) -> None:
    code = f"""
    import types
    sys.modules["uwsgi"] = uwsgi = types.ModuleType("uwsgi")
    uwsgi.opt = {options}
    try:
        print(scheduler.count_jobs().pending)
    except ValueError as error:
        assert "--enable-threads" in str(error)
        print(type(error).__name__)
    """
    assert run(code, dsn) == [expected]


SCRIPT = """
import atexit, sys, threading
from pg_scheduler import job
from pg_scheduler.sync import SyncScheduler

@job(name="mail.send")
async def send(): ...

@job()
def plain(): ...

async def undeclared(): ...

scheduler = SyncScheduler(sys.argv[1])

def enqueue():
    if threading.current_thread() is not threading.main_thread():
        threading.main_thread().join()
    for function in (send, plain, undeclared):
        scheduler.enqueue(function)

if sys.argv[2] == "thread":
    threading.Thread(target=enqueue).start()
else:
    scheduler.count_jobs()
    atexit.register(enqueue)
"""


@pytest.mark.parametrize("where", ["thread", "atexit"])
async def test_script_enqueues_under_its_names_when_its_main_thread_has_ended(
    pool: asyncpg.Pool, dsn: str, tmp_path: Path, where: str
) -> None:
    script = tmp_path / "shop.py"
    script.write_text(SCRIPT, encoding="utf-8")
    run_command([sys.executable, str(script), dsn, where])
    rows = await pool.fetch("SELECT job_name FROM scheduled_jobs ORDER BY 1")
    assert [row["job_name"] for row in rows] == ["mail.send", "shop.plain", "shop.undeclared"]
