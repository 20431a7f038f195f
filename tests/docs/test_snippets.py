"""Every snippet of README and documentation runs."""

from __future__ import annotations

import builtins
import gc
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobStatus, Scheduler, current_job, errors, job
from pg_scheduler.testing import TestScheduler
from tests.docs.snippets import PAGES, RUN, Snippet, page_id, run_python, snippets_of
from tests.support.libraries import is_left_out


def runnable(page: Path) -> list[Snippet]:
    return [each for each in snippets_of(page) if each.kind in RUN and each.file is None]


@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=page_id)
async def test_snippets_of_a_page_run(
    page: Path,
    dsn: str,
    pool: asyncpg.Pool[asyncpg.Record],
    scheduler: Scheduler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType(f"snippets.{page.stem.replace('-', '_')}")
    module.__dict__.update(dsn=dsn, pool=pool, scheduler=scheduler)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for snippet in runnable(page):
        if snippet.kind == "sql":
            await pool.execute(snippet.code)
        elif snippet.raises is not None:
            kind = getattr(builtins, snippet.raises, None) or getattr(errors, snippet.raises)
            with pytest.raises(kind):
                await run_python(snippet, module)
        else:
            try:
                await run_python(snippet, module)
            except ModuleNotFoundError as error:
                if not is_left_out(error):
                    raise
                pytest.skip(f"the lock of lowest versions leaves out {error.name}")


async def test_crawl_that_ends_before_its_signal_logs_no_error(
    pool: asyncpg.Pool[asyncpg.Record], caplog: pytest.LogCaptureFixture
) -> None:
    (page,) = [page for page in PAGES if page.parts[-2:] == ("guides", "steps.md")]
    (code,) = [snippet.code for snippet in snippets_of(page) if "async def crawl" in snippet.code]
    names: dict[str, Any] = {"job": job, "current_job": current_job}
    exec(code[: code.index("job_id = ")], names)
    async with TestScheduler(pool) as t:
        job_id = await t.scheduler.enqueue(names["crawl"], args=(0,))
        await t.drain()
        ended = await t.scheduler.get_job(job_id)
        assert ended is not None
        assert ended.status is JobStatus.COMPLETED
        gc.collect()
    assert "never retrieved" not in caplog.text
