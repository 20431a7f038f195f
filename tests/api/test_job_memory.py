"""What ended jobs leave in memory."""

from __future__ import annotations

import gc
import logging
import weakref
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, NoReturn

import pytest

from tests.api.conftest import Make


async def succeed() -> None: ...


class Kept(Exception):
    """An exception to which a weak reference is possible."""


@pytest.mark.parametrize("executor", ["async", "thread"])
async def test_ended_job_with_a_timeout_leaves_nothing_in_memory(
    make: Make, executor: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "pg_scheduler")  # records would keep the exceptions
    references: list[weakref.ref[Kept]] = []
    variable: ContextVar[object] = ContextVar("variable")

    def raise_kept() -> NoReturn:
        error = Kept("no")
        variable.set(error)
        references.append(weakref.ref(error))
        raise error

    async def work() -> None:
        raise_kept()

    scheduler = make()
    func: Any = work if executor == "async" else raise_kept
    scheduler.register(func, name="foreign.work", executor=executor, max_retries=0)
    await scheduler.start()
    for seconds in (1000, 1001):
        job_id = await scheduler.enqueue(func, timeout=timedelta(seconds=seconds))
        await scheduler.get_job_result(job_id)
    await scheduler.run_job(succeed)  # the worker has done something else since
    gc.collect()
    assert [each() for each in references] == [None, None]
