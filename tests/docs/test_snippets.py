"""Every snippet of README and documentation runs."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from types import ModuleType

import asyncpg
import pytest

from pg_scheduler import Scheduler, errors
from tests.docs.snippets import PAGES, RUN, Snippet, page_id, run_python, snippets_of


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
            await run_python(snippet, module)
