"""Jobs in child processes: outcomes, cancellation by signals, and processes that die."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobCall, JobExecutor, ProcessExecutor
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.events import JobCancelled, JobCompleted, JobEvent, JobFailed, JobReleased, JobRetried
from pg_scheduler.jobs.metadata import with_metadata
from pg_scheduler.jobs.payload import encode
from pg_scheduler.worker.executor import Executor
from pg_scheduler.worker.runners import child as child_module
from pg_scheduler.worker.runners import process as process_module
from pg_scheduler.worker.runners.executors import LazyExecutor
from pg_scheduler.worker.runners.protocol import pack
from tests.support.inside import AttemptRunner, Completer, Revocation, TaskOptions
from tests.support.parts import Parts
from tests.support.worker import PATIENCE, Recorder, claim, new_job, statuses
from tests.worker import processes

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("debugged_loop")]


class Bench:
    """Runs jobs in processes, and writes their results with a completer."""

    def __init__(
        self,
        parts: Parts,
        seen: Recorder,
        processes: int = 2,
        jobs_per_process: int | None = None,
        **settings: Any,
    ) -> None:
        self.parts = parts
        self.seen = seen
        self.completer: Completer = parts.completer()
        self.processes = ProcessExecutor(processes, jobs_per_process)
        self.executor: Executor = parts.executor(
            self.completer, executors={"process": self.processes}, **settings
        )

    async def submit(
        self, func: Callable[..., Any], *args: Any, job_id: str = "a", kwargs: Any = None, **values: Any
    ) -> asyncio.Task[None]:
        name = f"test.{func.__name__}"
        self.parts.tasks.register(func, name=name, options=TaskOptions(executor="process"))
        job = new_job(job_id, name, **{"task_data": encode(args, kwargs or {})} | values)
        (held,) = await claim(self.parts.store, job)
        return self.executor.submit(held)

    async def run(self, func: Callable[..., Any], *args: Any, **values: Any) -> JobEvent:
        await asyncio.wait_for(await self.submit(func, *args, **values), PATIENCE)
        return await self.written()

    async def written(self) -> JobEvent:
        await self.completer.run_once()
        event = self.seen.events[-1]
        assert isinstance(event, JobEvent)
        assert not self.parts.faults
        return event


@pytest.fixture
async def bench(parts: Parts, seen: Recorder) -> AsyncIterator[Bench]:
    bench = Bench(parts, seen, max_crashes=3, stop_grace=5.0)
    yield bench
    await bench.executor.stop()


async def text_of(path: Path) -> str:
    """Wait until the file has a text, and return it."""
    async with asyncio.timeout(PATIENCE):
        while not path.exists() or not (text := path.read_text(encoding="utf-8")):  # noqa: ASYNC110, ASYNC240 - of a process
            await asyncio.sleep(0.01)
    return text


async def wait_gone(pid: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while is_alive(pid):  # noqa: ASYNC110 - nothing reports it
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def test_process_runs_a_function_with_its_arguments_and_current_job(
    bench: Bench, tmp_path: Path
) -> None:
    path = tmp_path / "note"
    event = await bench.run(processes.note, str(path), 1, None, kwargs={"key": [2.5]}, timeout_seconds=60.0)
    assert event == JobCompleted("a", "test.note", 1)
    pid, *rest = ast.literal_eval(path.read_text(encoding="utf-8"))
    assert pid != os.getpid()
    assert rest == ["a", 1, True, (1, None), {"key": [2.5]}]


async def test_process_receives_the_metadata_with_its_trace_headers(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "metadata"
    metadata = {
        "tenant": 7,
        "trace": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    }
    task_data = with_metadata(encode((str(path),), {}), {}, metadata, allows_trace=True)
    assert isinstance(await bench.run(processes.note_metadata, task_data=task_data), JobCompleted)
    assert ast.literal_eval(path.read_text(encoding="utf-8")) == metadata


async def test_process_is_used_again_until_it_has_run_its_jobs(
    parts: Parts, seen: Recorder, tmp_path: Path
) -> None:
    bench = Bench(parts, seen, jobs_per_process=2)
    pids = []
    for number in range(3):
        path = tmp_path / str(number)
        assert isinstance(await bench.run(processes.note, str(path), job_id=str(number)), JobCompleted)
        pids.append(ast.literal_eval(path.read_text(encoding="utf-8"))[0])
    assert pids[0] == pids[1] != pids[2]
    await wait_gone(pids[0])
    await bench.executor.stop()
    assert not is_alive(pids[2])


async def test_stop_waits_for_the_end_of_a_process_that_has_run_its_jobs(
    parts: Parts, seen: Recorder, tmp_path: Path
) -> None:
    bench = Bench(parts, seen, jobs_per_process=1)
    assert isinstance(await bench.run(processes.note, str(tmp_path / "note")), JobCompleted)
    await bench.executor.stop()
    assert not is_alive(ast.literal_eval((tmp_path / "note").read_text(encoding="utf-8"))[0])


async def test_typed_function_in_a_process_receives_objects(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "note"
    bench.parts.tasks.register(processes.note_typed, options=TaskOptions(typed=True))
    event = await bench.run(processes.note_typed, str(path), "2030-01-01T00:00:00Z")
    assert isinstance(event, JobCompleted)
    assert (await text_of(path)).endswith("Path 2030")
    event = await bench.run(processes.note_typed, str(path), "soon", job_id="b")
    assert isinstance(event, JobFailed)
    assert event.error.startswith("PayloadError: 1 validation error for")


async def test_async_function_runs_in_a_process(bench: Bench, tmp_path: Path) -> None:
    assert isinstance(await bench.run(processes.note_async, str(tmp_path / "note")), JobCompleted)
    assert (tmp_path / "note").read_text(encoding="utf-8") == "async"


@pytest.mark.parametrize(
    ("kind", "text", "base"),
    [
        ("ValueError", "ValueError: no", ValueError),
        ("OSError", "FileNotFoundError: [Errno 2] no such file", OSError),
        ("OwnError", "OwnError: mine", processes.OwnError),
        ("SystemExit", "SystemExit: 3", SystemExit),
    ],
)
async def test_exception_in_a_process_keeps_its_name_text_class_and_traceback(
    bench: Bench, kind: str, text: str, base: type[BaseException]
) -> None:
    event = await bench.run(processes.fail, kind)
    assert isinstance(event, JobFailed)
    assert event.error == text
    assert isinstance(event.exception, base)
    assert "in fail\n" in str(event.exception.__cause__)


async def test_scheduler_of_the_job_is_not_available_in_a_process(bench: Bench) -> None:
    event = await bench.run(processes.use_scheduler)
    assert isinstance(event, JobFailed)
    assert "current_job().scheduler and .pool are not available in a process" in event.error


async def test_log_records_of_a_process_reach_the_handlers_of_the_worker(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tests.processes"):
        assert isinstance(await bench.run(processes.log), JobCompleted)
    first, second = [record for record in caplog.records if record.name == "tests.processes"]
    assert (first.levelname, first.getMessage(), first.funcName) == ("WARNING", "hello from the child", "log")
    assert first.process != os.getpid()
    assert first.order == 7  # type: ignore[attr-defined]
    assert second.exc_info is not None
    assert isinstance(second.exc_info[1], ValueError)
    assert second.exc_text is not None
    assert second.exc_text.endswith("ValueError: no")


async def test_death_of_a_process_is_a_crash_of_its_own_job_only(bench: Bench, tmp_path: Path) -> None:
    began, done = tmp_path / "began", tmp_path / "done"
    neighbour = await bench.submit(processes.wait_for_file, str(began), str(done), job_id="neighbour")
    await text_of(began)
    event = await bench.run(processes.die)
    assert isinstance(event, JobRetried)
    assert event.error == "the process of the job ended: killed by SIGKILL"
    job = await bench.parts.store.jobs.get_job("a")
    assert job is not None
    assert (job.status, job.crash_count, job.retry_count) == ("pending", 1, 0)
    assert job.error_message == event.error
    done.touch()
    await asyncio.wait_for(neighbour, PATIENCE)
    assert isinstance(await bench.written(), JobCompleted)


async def test_job_fails_after_too_many_deaths_of_its_process(parts: Parts, seen: Recorder) -> None:
    bench = Bench(parts, seen, max_crashes=1)
    event = await bench.run(processes.die, max_retries=5)
    assert isinstance(event, JobFailed)
    assert event.error.startswith("quarantined: 1 worker died while it ran")
    await bench.executor.stop()


async def test_death_is_found_when_a_child_of_the_process_keeps_its_connection(bench: Bench) -> None:
    event = await bench.run(processes.die_after_a_fork)
    assert isinstance(event, JobRetried)
    assert event.error == "the process of the job ended: exit status 7"


async def test_message_of_an_unknown_kind_is_ignored(bench: Bench) -> None:
    assert isinstance(await bench.run(processes.send_unknown_message), JobCompleted)


async def test_job_runs_on_when_a_log_record_cannot_be_formatted(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tests.processes"):
        assert isinstance(await bench.run(processes.log_wrong_arguments), JobCompleted)
    assert [record.getMessage() for record in caplog.records if record.name == "tests.processes"] == ["after"]


async def test_process_ends_when_its_parent_ends_during_a_job(parts: Parts, tmp_path: Path) -> None:
    began = tmp_path / "began"
    (held,) = await claim(parts.store, new_job("a", task_data=encode((str(began),), {})))
    child = await process_module._Child.start()
    call = JobCall(held, processes.wait, (str(began),), {})
    running = asyncio.create_task(child.execute(call, process_module._request(call)))
    await text_of(began)
    child._writer.close()  # as at the end of the parent
    assert await asyncio.wait_for(child.end(), PATIENCE) == "exit status 1"
    with pytest.raises(EOFError):
        await running


async def test_idle_process_ends_when_its_parent_ends_while_it_sends_a_message() -> None:
    child = await process_module._Child.start()
    child._writer.write(pack({"claim": "x" * 1000})[:-500])
    child._writer.close()
    assert await asyncio.wait_for(child.end(), PATIENCE) == "exit status 0"


def test_idle_process_ends_with_its_parent_although_a_job_has_left_a_thread() -> None:
    """Its standard output is that of the parent, and ends with the last of them."""
    parent = """
        import asyncio, os
        from pg_scheduler.testing.bench import claim_of
        from pg_scheduler.jobs.call import JobCall
        from pg_scheduler.worker.runners.process import _Child, _request
        from tests.support.worker import new_job
        from tests.worker.processes import leave_a_thread

        async def main():
            child = await _Child.start()
            call = JobCall(claim_of(new_job("a")), leave_a_thread, (), {})
            await child.execute(call, _request(call))
            os._exit(7)

        asyncio.run(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(parent)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, timeout=PATIENCE, cwd=ROOT, check=False)
    assert ended.returncode == 7


SCRIPT = """
import asyncio, os
import asyncpg
from pg_scheduler import Scheduler, job
from pg_scheduler.sync import SyncScheduler

DSN = os.environ["DATABASE_URL"]

@job(executor="process")
def compute():
    with SyncScheduler(DSN) as scheduler:
        scheduler.enqueue("elsewhere")

async def connect():
    async with Scheduler.connect(DSN) as scheduler:
        await scheduler.enqueue(compute)
        await scheduler.wait()

async def enqueue():
    async with Scheduler.connect(DSN, start=False) as scheduler:
        await scheduler.enqueue("elsewhere")

async def start():
    async with asyncpg.create_pool(DSN, min_size=1) as pool:
        scheduler = Scheduler(pool)
        await scheduler.start()
        await scheduler.enqueue(compute)
        await scheduler.wait()

def block():
    with SyncScheduler(DSN) as scheduler:
        scheduler.enqueue("elsewhere")

"""

ENDED = "SELECT count(*) FROM scheduled_jobs WHERE job_name = 'script.compute' AND finished_at IS NOT NULL"
REJECTED = (
    "module 'script' starts a Scheduler when the child process of a job imports it; "
    'start it below if __name__ == "__main__":'
)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("asyncio.run(connect())", REJECTED),
        ("asyncio.run(start())", REJECTED),
        ('asyncio.run(connect()) if __name__ == "__main__" else block()', REJECTED),
        ('asyncio.run(connect() if __name__ == "__main__" else enqueue())', REJECTED),
        ('if __name__ == "__main__": asyncio.run(connect())', None),
    ],
)
async def test_import_for_a_job_does_not_start_its_script_once_more(
    dsn: str, pool: asyncpg.Pool, tmp_path: Path, code: str, error: str | None
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT + code, encoding="utf-8")
    environment = os.environ | {"DATABASE_URL": dsn, "PYTHONPATH": str(ROOT)}
    script = await asyncio.create_subprocess_exec(sys.executable, "script.py", cwd=tmp_path, env=environment)
    try:
        async with asyncio.timeout(PATIENCE):
            while not await pool.fetchval(ENDED):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.05)
    finally:
        script.kill()
        await script.wait()
    rows = await pool.fetch("SELECT * FROM scheduled_jobs ORDER BY job_name DESC")
    computed, *others = rows
    assert [row["job_name"] for row in others] == ([] if error else ["elsewhere"])
    assert computed["status"] == ("failed" if error else "completed")
    assert (error or "") in (computed["error_message"] or "")


UVLOOP_SCRIPT = """
import os
import uvloop
from pg_scheduler import Scheduler, job

@job(executor="process")
def compute():
    return 7

async def main():
    async with Scheduler.connect(os.environ["DATABASE_URL"]) as scheduler:
        print(await scheduler.run_job(compute))

if __name__ == "__main__":
    uvloop.run(main())
"""


def test_jobs_run_in_processes_of_a_program_with_uvloop(dsn: str, tmp_path: Path) -> None:
    """It forks with the hooks of Python, which close what children must not inherit."""
    pytest.importorskip("uvloop")
    (tmp_path / "script.py").write_text(UVLOOP_SCRIPT, encoding="utf-8")
    script = subprocess.run(
        [sys.executable, "script.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"DATABASE_URL": dsn, "PYTHONPATH": str(ROOT)},
        timeout=PATIENCE * 4,
    )
    assert (script.returncode, script.stdout) == (0, "7\n"), script.stderr


async def test_executor_that_needs_all_of_the_grace_has_stopped(caplog: pytest.LogCaptureFixture) -> None:
    class KillsAfterTheGrace(JobExecutor):
        async def run(self, call: JobCall) -> None: ...

        async def stop(self, grace: float) -> None:
            await asyncio.sleep(grace)

    place = LazyExecutor("slow", KillsAfterTheGrace())
    await place.start()
    await place.stop(0.01)
    assert caplog.messages == []


def test_reset_connection_is_the_end_of_the_messages() -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(b"what the parent did not read")
    theirs.close()
    with ours, ours.makefile("rb") as file:
        assert child_module._read(file) is None


def open_files() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


async def test_start_of_a_process_that_fails_leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "_command", lambda fd: [f"/no/such/program/{fd}"])
    before = open_files()
    with pytest.raises(FileNotFoundError):
        await process_module._Child.start()
    assert open_files() <= before


async def test_broken_message_of_a_process_counts_as_its_death(bench: Bench) -> None:
    event = await bench.run(processes.answer_nonsense)
    assert isinstance(event, JobRetried)
    assert event.error.startswith("the process of the job ended")


@pytest.mark.parametrize("ignore", [False, True])
async def test_timeout_ends_the_process_and_fails_the_attempt(
    parts: Parts, seen: Recorder, tmp_path: Path, ignore: bool
) -> None:
    bench = Bench(parts, seen, stop_grace=0.1 if ignore else 5.0)
    began = tmp_path / "began"
    task = await bench.submit(processes.wait, str(began), kwargs={"ignore": ignore}, timeout_seconds=60.0)
    pid = int(await text_of(began))
    AttemptRunner.time_out(parts.in_flight.attempts["a"])  # real time: a process may start slowly
    await asyncio.wait_for(task, PATIENCE)
    event = await bench.written()
    assert isinstance(event, JobFailed)
    assert event.error == "TimeoutError: the job ran longer than its timeout of 60 seconds"
    await wait_gone(pid)
    assert began.read_text(encoding="utf-8") == (str(pid) if ignore else "cancelled True")
    await bench.executor.stop()


async def test_cancelled_job_ends_its_process_and_writes_nothing(bench: Bench, tmp_path: Path) -> None:
    began = tmp_path / "began"
    task = await bench.submit(processes.wait, str(began))
    pid = int(await text_of(began))
    bench.parts.in_flight.revoke("a", 1, Revocation.CANCELLED)
    await asyncio.wait_for(task, PATIENCE)
    assert isinstance(bench.seen.events[-1], JobCancelled)
    assert not bench.parts.result_buffer.has_results
    await wait_gone(pid)


async def test_shutdown_kills_the_process_and_releases_its_job(
    parts: Parts, seen: Recorder, tmp_path: Path
) -> None:
    bench = Bench(parts, seen, shutdown_timeout=0.0, stop_grace=0.1)
    began = tmp_path / "began"
    await bench.submit(processes.wait, str(began), kwargs={"ignore": True})
    pid = int(await text_of(began))
    await bench.executor.stop()
    await wait_gone(pid)
    assert isinstance(await bench.written(), JobReleased)
    assert await statuses(parts.store, "a") == ["pending"]


async def test_process_is_killed_when_its_task_is_cancelled_at_the_end_of_the_event_loop(
    bench: Bench, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    task = await bench.submit(processes.wait, str(began), kwargs={"ignore": True})
    pid = int(await text_of(began))
    task.cancel()
    await asyncio.wait_for(task, PATIENCE)
    await wait_gone(pid)


async def test_process_that_died_while_it_was_idle_is_not_used(bench: Bench, tmp_path: Path) -> None:
    assert isinstance(await bench.run(processes.note, str(tmp_path / "1")), JobCompleted)
    pid = ast.literal_eval((tmp_path / "1").read_text(encoding="utf-8"))[0]
    os.kill(pid, 9)
    await wait_gone(pid)
    assert isinstance(await bench.run(processes.note, str(tmp_path / "2"), job_id="b"), JobCompleted)


async def test_idle_process_outlives_the_stop_of_its_executor_in_another_event_loop(
    bench: Bench, tmp_path: Path
) -> None:
    """Schedulers in several threads may share an executor, and one of them stops."""
    assert isinstance(await bench.run(processes.note, str(tmp_path / "1")), JobCompleted)
    await asyncio.to_thread(lambda: asyncio.run(bench.processes.stop(PATIENCE)))
    assert isinstance(await bench.run(processes.note, str(tmp_path / "2"), job_id="b"), JobCompleted)
    pids = [ast.literal_eval((tmp_path / name).read_text(encoding="utf-8"))[0] for name in ("1", "2")]
    assert pids[0] == pids[1]
    await bench.processes.stop(PATIENCE)
    assert not is_alive(pids[0])


@pytest.mark.parametrize("limit", [0, 1.5, True])
def test_process_executor_rejects_numbers_that_are_not_positive(limit: Any) -> None:
    with pytest.raises(ConfigurationError, match="processes must be an int of 1 or more"):
        ProcessExecutor(limit)
    with pytest.raises(ConfigurationError, match="jobs_per_process must be an int of 1 or more"):
        ProcessExecutor(1, limit)
