"""Run commands in this process, away from every setting of the machine."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import jsonschema
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.cli.main import run
from pg_scheduler.cli.settings import VARIABLES
from pg_scheduler.cli.shapes import SHAPES, shape_schema
from tests.cli import (  # noqa: F401 - what a test imports first is registered for that test only
    checked_jobs,
    forking_jobs,
    unfit_jobs,
    worker_jobs,
)
from tests.support.world import world  # noqa: F401 - a fixture of this folder


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command wrote, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    def checked(self, shape: str) -> list[dict[str, Any]]:
        """Return the objects of jsonl, each valid by the schema of its shape."""
        for line in self.lines:
            jsonschema.validate(line, schema(shape))
        return self.lines


_VARIABLES = {name for names in VARIABLES.values() for name in names}

Run = Callable[..., Ran]
Read = Callable[[Callable[[Scheduler], Coroutine[Any, Any, Any]]], Any]


def schema(name: str) -> Any:
    return shape_schema(SHAPES[name])


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the variables that the command line reads, and leave the checkout."""
    for name in os.environ:
        if name.startswith("PGSERVICE") or name in _VARIABLES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def set_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return a function that sets the zone of this process."""

    def set_variable(value: str) -> None:
        monkeypatch.setenv("TZ", value)
        time.tzset()

    yield set_variable
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command and return what it wrote."""

    def run_command(*arguments: str) -> Ran:
        capsys.readouterr()
        code = run(arguments)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run_command


@pytest.fixture
def read(dsn: str) -> Read:
    """Run a coroutine function with a Scheduler that is not started."""

    def run_coroutine(action: Callable[[Scheduler], Coroutine[Any, Any, Any]]) -> Any:
        async def inside() -> Any:
            async with asyncpg.create_pool(dsn, min_size=1) as pool:
                return await action(Scheduler(pool))

        return asyncio.run(inside())

    return run_coroutine
