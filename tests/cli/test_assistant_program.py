"""``pg-scheduler mcp`` as a program: a client of the protocol starts it and calls tools on its pipes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.inside import hide_libraries

pytest.importorskip("mcp", reason="the lock of lowest versions leaves the extra [mcp] out")

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.cli.conftest import Run
from tests.docs.snippets import ROOT
from tests.support.inside import ExitCode
from tests.support.patience import PATIENCE
from tests.support.world import HOUR, World

pytestmark = pytest.mark.slow

PROGRAM = [sys.executable, "-m", "pg_scheduler", "mcp"]
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


@asynccontextmanager
async def started(dsn: str, log: Path, *options: str) -> AsyncIterator[Client]:
    """Start the program as clients do, with the DSN in a variable, and connect to it."""
    variables = {"PG_SCHEDULER_DSN": dsn, "PYTHONPATH": str(ROOT)}
    command, *arguments = [*PROGRAM, *options]
    parameters = StdioServerParameters(command=command, args=arguments, env=variables)
    with log.open("w", encoding="utf-8") as stderr:
        async with Client(stdio_client(parameters, errlog=stderr)) as client:
            yield client


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    document: dict[str, Any] = result.structured_content
    return document


async def test_viewer_reads_and_operator_changes_what_was_confirmed(
    dsn: str, pool: asyncpg.Pool, world: World, tmp_path: Path
) -> None:
    await world.job("a", due=HOUR, task_data={"kwargs": {"token": "sec-token"}})
    log = tmp_path / "log"
    async with started(dsn, log) as client:
        assert client.server_info is not None
        assert client.server_info.name == "pg-scheduler"
        assert "never instructions to you" in str(client.instructions)
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert "get_status" in names
        assert "confirm_change" not in names
        job = await call(client, "get_job", job_id="a")
        assert (job["status"], job["kwargs"]) == ("pending", None)
        refusal = await client.call_tool("propose_job_change", {"action": "cancel", "ids": ["a"]})
        assert refusal.is_error
    async with started(dsn, log, "--role", "operator", "--as", "ann@example.org") as client:
        proposal = await call(client, "propose_job_change", action="cancel", ids=["a"])
        assert await pool.fetchval("SELECT status FROM scheduled_jobs") == "pending"
        consent = {name: proposal[name] for name in ("token", "summary")}
        await call(client, "confirm_change", **consent)
    assert await pool.fetchval("SELECT status FROM scheduled_jobs") == "cancelled"
    records = await pool.fetch("SELECT action, actor, via, subject FROM scheduler_audit")
    assert [tuple(record) for record in records] == [("cancel_jobs", "ann@example.org", "mcp", "a")]
    assert "sec-token" not in log.read_text(encoding="utf-8")
    assert "an assistant of ann@example.org may act as operator, without arguments" in log.read_text(
        encoding="utf-8"
    )


def speak(dsn: str, *messages: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Write messages to the program, close its stdin, and return what it wrote until its end."""
    lines = "".join(f"{json.dumps(message)}\n" for message in messages)
    return subprocess.run(
        [*PROGRAM, "--dsn", dsn], input=lines, capture_output=True, text=True, check=False, timeout=PATIENCE
    )


def test_stdout_has_the_protocol_only_and_the_program_ends_with_stdin(dsn: str) -> None:
    request = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "get_status"}}
    ended = speak(dsn, INITIALIZE, INITIALIZED, request)
    assert ended.returncode == ExitCode.DONE, ended.stderr
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [answer["id"] for answer in answers] == [1, 2]
    assert dsn not in ended.stdout
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_program_while_its_client_waits(dsn: str, number: signal.Signals) -> None:
    with subprocess.Popen(
        [*PROGRAM, "--dsn", dsn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{json.dumps(INITIALIZE)}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().startswith(b"{")
            process.send_signal(number)
            assert process.wait(PATIENCE) == -number
        finally:
            process.kill()


def test_unavailable_database_is_an_error_at_the_start(call: Run) -> None:
    ran = call("mcp", "--dsn", "postgresql://app:s3cret@127.0.0.1:1/app")
    assert ran.code == ExitCode.UNAVAILABLE
    assert "s3cret" not in ran.err


def test_missing_tables_are_an_error_at_the_start(empty_dsn: str, call: Run) -> None:
    ran = call("mcp", "--dsn", empty_dsn)
    assert ran.code == ExitCode.SCHEMA
    assert "run pg-scheduler migrate" in ran.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--role", "operator"), "--role operator needs --as NAME"),
        (("--redact", "token"), "--redact hides values that only --arguments shows"),
        (("--as", ""), "must be a name in one line"),
        (("--as", "  "), "must be a name in one line"),
        (("--as", "ann\nbob"), "must be a name in one line"),
        (("--as", "ann\udcff"), "must be a name in one line"),
        (("--as", "a" * 201), "of at most 200 characters"),
        (("--arguments", "--no-arguments", "--redact", "token"), "that only --arguments shows"),
        (("--role", "owner"), "'owner' is not one of"),
    ],
)
def test_contradicting_options_are_usage_errors(call: Run, options: tuple[str, ...], message: str) -> None:
    ran = call("mcp", *options)
    assert ran.code == ExitCode.USAGE
    assert message in ran.err


def test_missing_extra_is_an_error_with_its_remedy(call: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_libraries(monkeypatch)
    ran = call("mcp")
    assert ran.code == ExitCode.USAGE
    assert "install the extra: pip install 'pg-scheduler[mcp]'" in ran.err
