"""The main task of an event loop ends by itself, by a Ctrl-C or by code that cancels all tasks."""

from __future__ import annotations

import asyncio
import signal

import pytest

from pg_scheduler.base.main_task import run_main_task

LOG: list[str] = []


async def cancel_all() -> None:
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def serve() -> None:
    """Wait until the end, and clean up in several steps."""
    LOG.clear()
    other = asyncio.create_task(cancel_all())
    try:
        await asyncio.Event().wait()
    finally:
        for step in ("first", "second"):
            await asyncio.sleep(0.01)
            LOG.append(step)
        await other


def test_code_that_cancels_all_tasks_does_not_cancel_the_cleanup_of_the_main_task() -> None:
    with pytest.raises(asyncio.CancelledError):
        run_main_task(serve(), LOG.append)  # type: ignore[arg-type] # nothing is reported
    assert LOG == ["first", "second"]


def test_ctrl_c_cancels_the_main_task_once_and_is_raised() -> None:
    async def wait() -> None:
        LOG.clear()
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            LOG.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        run_main_task(wait(), LOG.append)  # type: ignore[arg-type] # nothing is reported
    assert LOG == ["cleaned up"]


def test_main_task_that_exits_ends_the_program_with_its_code() -> None:
    async def leave() -> None:
        raise SystemExit(7)

    with pytest.raises(SystemExit) as raised:
        run_main_task(leave(), LOG.append)  # type: ignore[arg-type] # nothing is reported
    assert raised.value.code == 7


def test_loop_that_code_stops_runs_on_until_the_main_task_has_ended() -> None:
    errors: list[BaseException] = []

    async def stop_twice() -> str:
        for _ in range(2):
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0.01)
        return "ended"

    assert run_main_task(stop_twice(), errors.append) == "ended"
    assert [type(error) for error in errors] == [RuntimeError, RuntimeError]


def test_loop_that_code_stops_and_closes_ends_the_program() -> None:
    async def stop() -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(60)

    loop = asyncio.new_event_loop()
    reports: list[BaseException] = []

    def close(error: BaseException) -> None:
        reports.append(error)
        loop.close()

    with (
        pytest.warns(RuntimeWarning, match="was never awaited"),
        pytest.raises(RuntimeError, match="closed"),
    ):
        run_main_task(stop(), close, loop_factory=lambda: loop)
    assert len(reports) == 1


def test_runtime_error_of_the_main_task_is_raised_and_not_reported() -> None:
    async def fail() -> None:
        raise RuntimeError("of the main task")

    LOG.clear()
    with pytest.raises(RuntimeError, match="of the main task"):
        run_main_task(fail(), LOG.append)  # type: ignore[arg-type] # nothing is reported
    assert LOG == []
