"""The group ``workers``."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias

import typer

from pg_scheduler import Worker
from pg_scheduler.base.text.values import copy_fields
from pg_scheduler.facts.worker_state import is_draining
from pg_scheduler.inspect import Inspector
from pg_scheduler.jobs.worker_report import ReportedHealth

from .commands import Command, Group, watched
from .completion import complete_workers
from .errors import CommandError, ExitCode, NotFoundError, UsageError
from .output import Column, Shape, columns
from .values import read_duration

RequestResult: TypeAlias = Literal["draining", "drained", "resumed", "not draining", "not found"]


@dataclass(frozen=True, slots=True)
class ListedWorker(Worker):
    """A worker."""

    loop_lag_s: float | None = None
    """Seconds for which its event loop kept a callback waiting at the last heartbeat."""


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """The result of a request to drain or resume a worker."""

    worker_id: str
    result: RequestResult
    running_jobs: int


WORKER: Final = Shape(
    "worker",
    ListedWorker,
    (
        Column("worker_id", "ID", is_id=True),
        Column("is_alive", "ALIVE"),
        Column("state"),
        Column("running_jobs", "RUNNING"),
        Column("max_concurrent_jobs", "SLOTS"),
        Column("hostname", "HOST"),
        Column("pid"),
        Column("version", "RELEASE"),
        Column("loop_lag_s", "LAG (S)"),
        *columns("identity", "role", "started_at", "lease_until", is_wide=True),
    ),
)
REQUEST: Final = Shape(
    "request",
    WorkerRequest,
    (Column("worker_id", "ID", is_id=True), Column("result"), Column("running_jobs", "RUNNING")),
)
_DETAILS: Final = (
    "worker_id", "is_alive", "state", "wanted", "running_jobs", "max_concurrent_jobs", "hostname", "pid",
    "version", "identity", "role", "metadata", "started_at", "last_beat", "lease_until", "is_stopping",
    "names", "health", "settings",
)  # fmt: skip

POLL_INTERVAL_S: Final = 1.0

WorkerIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="The ids of workers.", autocompletion=complete_workers),
]
All = Annotated[bool, typer.Option("--all", help="Every worker.")]


async def list_workers(command: Command) -> None:
    """Print every worker that has a row, oldest first."""
    async with command.inspector() as inspector:
        workers = await inspector.workers()
    command.output.write_list(WORKER, [_row(worker) for worker in workers])


async def show(
    command: Command,
    worker_id: Annotated[
        str, typer.Argument(metavar="ID", help="The id of a worker.", autocompletion=complete_workers)
    ],
) -> None:
    """Print a worker: its lease, the names that it claims, its health and its settings."""
    async with command.inspector() as inspector:
        workers = [worker for worker in await inspector.workers() if worker.worker_id == worker_id]
    if not workers:
        raise NotFoundError(f"worker {worker_id!r} does not exist")
    command.output.write_one(WORKER, _row(workers[0]), keys=_DETAILS)


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
    if timeout is not None and not wait:
        raise UsageError("--timeout needs --wait; add --wait to wait for the end of their jobs")
    timeout_s = None if timeout is None else read_duration("--timeout", timeout)
    async with command.inspector() as inspector:
        requested_ids = await _requested_ids(inspector, worker_ids, every=every)
        existing_ids = await inspector.drain_workers(requested_ids)
        if wait:
            try:
                async with asyncio.timeout(timeout_s):
                    await _wait_until_idle(inspector, existing_ids)
            except TimeoutError:
                still_draining: dict[str, RequestResult] = dict.fromkeys(existing_ids, "draining")
                _write(command, requested_ids, still_draining, await inspector.workers())
                raise CommandError(
                    ExitCode.TIMEOUT, f"jobs still run after {timeout}; the workers still drain"
                ) from None
        results: dict[str, RequestResult] = dict.fromkeys(existing_ids, "drained" if wait else "draining")
        # The workers are read again, since the output has the jobs that they run now.
        return _write(command, requested_ids, results, await inspector.workers())


async def resume(command: Command, worker_ids: WorkerIds = None, every: All = False) -> ExitCode:
    """Request of draining workers to claim jobs again."""
    async with command.inspector() as inspector:
        # This is read before the request, which changes it.
        draining_ids = {worker.worker_id for worker in await inspector.workers() if is_draining(worker)}
        requested_ids = await _requested_ids(inspector, worker_ids, every=every)
        existing_ids = await inspector.resume_workers(requested_ids)
        results: dict[str, RequestResult] = {
            worker_id: "resumed" if worker_id in draining_ids else "not draining"
            for worker_id in existing_ids
        }
        code = _write(command, requested_ids, results, await inspector.workers())
    # With --all, there may be workers that do not drain. An id names a worker that was to be resumed.
    is_refused = code is ExitCode.DONE and not every and "not draining" in results.values()
    return ExitCode.REFUSED if is_refused else code


async def _requested_ids(inspector: Inspector, worker_ids: list[str] | None, *, every: bool) -> list[str]:
    """Return the ids of the arguments, or with ``every`` those of all workers.

    Raises:
        UsageError: Both are asked for, or none of them.
    """
    if every == bool(worker_ids):
        raise UsageError("pass the ids of workers, or --all")
    ids = worker_ids or [worker.worker_id for worker in await inspector.workers()]
    # An id that occurs twice counts once.
    return list(dict.fromkeys(ids))


async def _wait_until_idle(inspector: Inspector, worker_ids: Collection[str]) -> None:
    """Wait until none of these workers runs jobs. Dead workers do not count.

    The request to drain is repeated, because it makes the workers report how many jobs they run.
    """
    while True:
        live_workers = [
            worker
            for worker in await inspector.workers()
            if worker.worker_id in worker_ids and worker.is_alive
        ]
        # A worker in the state running has not noticed the request yet, so it may still claim jobs.
        if not any(worker.running_jobs or worker.state == "running" for worker in live_workers):
            return
        await asyncio.sleep(POLL_INTERVAL_S)
        await inspector.drain_workers(worker_ids)


def _write(
    command: Command,
    requested_ids: Sequence[str],
    results: Mapping[str, RequestResult],
    workers: Sequence[Worker],
) -> ExitCode:
    """Write the result of each request, and return the exit code.

    ``results`` has the results by the ids of workers. A worker without a result does not exist.
    """
    running = {worker.worker_id: worker.running_jobs for worker in workers}
    requests = [
        WorkerRequest(worker_id, results.get(worker_id, "not found"), running.get(worker_id, 0))
        for worker_id in requested_ids
    ]
    command.output.write_list(REQUEST, requests)
    all_exist = results.keys() >= set(requested_ids)
    return ExitCode.DONE if all_exist else ExitCode.NOT_FOUND


def _row(worker: Worker) -> ListedWorker:
    """Return the row of a worker, with the lag of its event loop from its report of health."""
    return copy_fields(ListedWorker, worker, loop_lag_s=ReportedHealth.of(worker.health).loop_lag_s)


COMMANDS: Final = Group(
    "Inspect and drain workers.",
    {"list": watched(list_workers), "show": show, "drain": drain, "resume": resume},
)
