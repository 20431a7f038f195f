"""The group ``workers``."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from pg_scheduler import Worker
from pg_scheduler.inspect import Inspector

from .commands import Command, add_command
from .complete import complete_workers
from .errors import CommandError, ExitCode
from .output import SHAPE_VERSION, Column, Shape
from .times import read_duration

WORKER: Final = Shape(
    "worker",
    "worker_id",
    (
        Column("worker_id", "ID", is_id=True),
        Column("is_alive", "ALIVE"),
        Column("state", "STATE"),
        Column("running_jobs", "RUNNING", is_number=True),
        Column("max_concurrent_jobs", "SLOTS", is_number=True),
        Column("hostname", "HOST"),
        Column("pid", "PID", is_number=True),
        Column("version", "RELEASE"),
        Column("loop_lag_s", "LAG (S)", is_number=True),
        Column("identity", "IDENTITY", is_wide=True),
        Column("role", "ROLE", is_wide=True),
        Column("started_at", "STARTED", is_wide=True),
        Column("lease_until", "LEASE UNTIL", is_wide=True),
    ),
)
REQUEST: Final = Shape(
    "request",
    "worker_id",
    (
        Column("worker_id", "ID", is_id=True),
        Column("result", "RESULT"),
        Column("running_jobs", "RUNNING", is_number=True),
    ),
)
_DETAILS: Final = (
    "worker_id", "is_alive", "state", "wanted", "running_jobs", "max_concurrent_jobs", "hostname", "pid",
    "version", "identity", "role", "metadata", "started_at", "last_beat", "lease_until", "is_stopping",
    "names", "health", "settings",
)  # fmt: skip

POLL_INTERVAL_S: Final = 1.0

WorkerIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID]...", help="The ids of workers.", autocompletion=complete_workers),
]
All = Annotated[bool, typer.Option("--all", help="Every worker.")]


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Inspect and drain workers.")
    app.add_typer(group, name="workers")
    add_command(group, "list", is_watched=True)(list_workers)
    add_command(group, "show")(show)
    add_command(group, "drain")(drain)
    add_command(group, "resume")(resume)


async def list_workers(command: Command) -> None:
    """Print every worker that has a row, oldest first."""
    async with command.scheduler() as scheduler:
        workers = await scheduler.workers()
    command.output.write_list(WORKER, [_row(worker) for worker in workers])


async def show(
    command: Command,
    worker_id: Annotated[
        str, typer.Argument(metavar="ID", help="The id of a worker.", autocompletion=complete_workers)
    ],
) -> None:
    """Print a worker: its lease, the names that it claims, its health and its settings."""
    async with command.scheduler() as scheduler:
        found = [each for each in await scheduler.workers() if each.worker_id == worker_id]
    if not found:
        raise CommandError(ExitCode.NOT_FOUND, f"worker {worker_id!r} does not exist")
    columns = [Column(key, key) for key in _DETAILS]
    command.output.write_one(Shape("worker", "worker_id", columns), _row(found[0]))


async def drain(
    command: Command,
    worker_ids: WorkerIds = None,
    every: All = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until none of them runs a job.")] = False,
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="Exit with 7 after 90s, 15m ... of waiting.")
    ] = None,
) -> ExitCode:
    """Request of workers to claim no more jobs. Running ones continue."""
    timeout_s = None if timeout is None else read_duration("--timeout", timeout)
    async with command.scheduler() as scheduler:
        inspector = Inspector(scheduler)
        asked = await _asked(inspector, worker_ids, every=every)
        found = await inspector.drain_workers(asked)
        if wait:
            try:
                async with asyncio.timeout(timeout_s):
                    await _wait_until_idle(inspector, found)
            except TimeoutError:
                _write(command, asked, dict.fromkeys(found, "draining"), await inspector.workers())
                raise CommandError(
                    ExitCode.TIMEOUT, f"jobs still run after {timeout}; the workers still drain"
                ) from None
        results = dict.fromkeys(found, "drained" if wait else "draining")
        return _write(command, asked, results, await inspector.workers())


async def resume(command: Command, worker_ids: WorkerIds = None, every: All = False) -> ExitCode:
    """Request of draining workers to claim jobs again."""
    async with command.scheduler() as scheduler:
        inspector = Inspector(scheduler)
        draining = {
            each.worker_id
            for each in await inspector.workers()
            if each.wanted == "drain" or each.state == "draining"
        }
        asked = await _asked(inspector, worker_ids, every=every)
        found = await inspector.resume_workers(asked)
        results = {each: "resumed" if each in draining else "not draining" for each in found}
        code = _write(command, asked, results, await inspector.workers())
    is_refused = code is ExitCode.DONE and not every and "not draining" in results.values()
    return ExitCode.REFUSED if is_refused else code


async def _asked(inspector: Inspector, worker_ids: list[str] | None, *, every: bool) -> list[str]:
    if every == bool(worker_ids):
        raise CommandError(ExitCode.USAGE, "pass the ids of workers, or --all")
    return list(dict.fromkeys(worker_ids or [worker.worker_id for worker in await inspector.workers()]))


async def _wait_until_idle(inspector: Inspector, worker_ids: Collection[str]) -> None:
    """Wait until no live worker of these runs jobs. Each request makes them report at once."""
    while True:
        if not any(
            worker.is_alive and (worker.running_jobs or worker.state == "running")
            for worker in await inspector.workers()
            if worker.worker_id in worker_ids
        ):
            return
        await asyncio.sleep(POLL_INTERVAL_S)
        await inspector.drain_workers(worker_ids)


def _write(
    command: Command, asked: Sequence[str], results: Mapping[str, str], workers: Sequence[Worker]
) -> ExitCode:
    """Write what became of the requests; the results are those of the workers that exist."""
    running = {worker.worker_id: worker.running_jobs for worker in workers}
    command.output.write_list(
        REQUEST,
        [
            {
                "v": SHAPE_VERSION,
                "worker_id": each,
                "result": results.get(each, "not found"),
                "running_jobs": running.get(each, 0),
            }
            for each in asked
        ],
    )
    return ExitCode.DONE if results.keys() >= set(asked) else ExitCode.NOT_FOUND


def _row(worker: Worker) -> dict[str, Any]:
    lag_s = worker.health.get("loop_lag_s")
    return {
        "v": SHAPE_VERSION,
        **asdict(worker),
        "loop_lag_s": lag_s if isinstance(lag_s, int | float) else None,  # reports can be written by hand
    }
