"""Processes of pg-scheduler 0.2.3, by the program ``tests/migrations/legacy.py``."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import asyncpg

from tools.environment import ROOT

PROGRAM: Final = ROOT / "tests" / "migrations" / "legacy.py"
RUN_S: Final = 120.0
FILL_S: Final = 40.0
ATTEMPTS: Final = 3
"""On a busy machine, 0.2.3 sometimes leaves one of its jobs where it is, and never ends."""


class LegacyError(Exception):
    """0.2.3 has not done what it was to do."""


async def fill(dsn: str, environment: Mapping[str, str]) -> Sequence[Any]:
    """Let 0.2.3 create and fill its tables, and kill it; return the calls of its jobs.

    Raises:
        LegacyError: It has not filled them in several attempts.
    """
    for _ in range(ATTEMPTS):
        with suppress(TimeoutError):
            return await _fill_once(dsn, environment)
        connection = await asyncpg.connect(dsn)
        await connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        await connection.close()
    raise LegacyError(f"0.2.3 has not filled its tables in {ATTEMPTS} attempts of {FILL_S:g} s")


async def _fill_once(dsn: str, environment: Mapping[str, str]) -> Sequence[Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(PROGRAM), "fill", dsn), env=environment, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout
    try:
        async with asyncio.timeout(FILL_S):
            return [json.loads(line) async for line in _until_ready(process.stdout)]
    finally:
        process.kill()
        await process.wait()


async def _until_ready(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while (line := await stream.readline()).strip() != b"ready":
        if not line:
            raise LegacyError("0.2.3 ended before its tables were filled")
        yield line


async def run(dsn: str, environment: Mapping[str, str], *job_ids: str) -> Sequence[Any]:
    """Let 0.2.3 run these jobs, and return its calls.

    Raises:
        LegacyError: It ended with an error.
        TimeoutError: It has not run them.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(PROGRAM), "run", dsn, *job_ids),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(RUN_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise LegacyError(f"0.2.3 has ended with exit code {process.returncode}")
    return [json.loads(line) for line in output.splitlines()]
