"""Jobs in transactions of two phases, which a coordinator prepares and then commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pg_scheduler import job
from pg_scheduler.embedded import EmbeddedPostgres
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.triggers import Every
from tests.conftest import FAST


@job(name="two-phase")
async def plain() -> None: ...


@pytest.fixture(scope="module")
def two_phase_dsn(scratch: Path | None) -> Iterator[str]:
    """A server that keeps prepared transactions."""
    with EmbeddedPostgres(settings=FAST | {"max_prepared_transactions": "2"}, scratch=scratch) as server:
        yield server.dsn("postgres")


def commit_in_two_phases(dsn: str, call: Callable[[psycopg.Connection[Any]], object]) -> None:
    with psycopg.connect(dsn) as connection:
        connection.tpc_begin(connection.xid(1, "global", "branch"))
        call(connection)
        connection.tpc_prepare()
        connection.tpc_commit()


def test_job_is_added_in_two_phases_without_a_notification(two_phase_dsn: str) -> None:
    with SyncScheduler(two_phase_dsn) as scheduler:
        scheduler.initialize_db()
        commit_in_two_phases(
            two_phase_dsn, lambda it: scheduler.enqueue(plain, job_id="a", connection=it, notify="never")
        )
        assert scheduler.get_job("a") is not None
    with SyncScheduler(two_phase_dsn, notify="never") as silent:
        commit_in_two_phases(two_phase_dsn, lambda it: silent.enqueue(plain, job_id="b", connection=it))
        assert silent.get_job("b") is not None


@pytest.mark.parametrize("kind", ["hint", "schedule", "SQL function", "after a job that ends meanwhile"])
def test_call_that_notifies_cannot_be_part_of_a_prepared_transaction(two_phase_dsn: str, kind: str) -> None:
    """The page about transactions names these calls."""
    with SyncScheduler(two_phase_dsn) as scheduler:
        scheduler.initialize_db()

        def after_a_job_that_ends(connection: psycopg.Connection[Any]) -> None:
            job_id = scheduler.enqueue(plain, delay=timedelta(hours=1))
            scheduler.enqueue(plain, after=[job_id], connection=connection, notify="never")
            assert scheduler.cancel_job(job_id)

        calls: dict[str, Callable[[psycopg.Connection[Any]], object]] = {
            "hint": lambda it: scheduler.enqueue(plain, connection=it),
            "schedule": lambda it: scheduler.schedules.add(
                plain, Every(timedelta(days=1)), schedule_id="daily", connection=it
            ),
            "after a job that ends meanwhile": after_a_job_that_ends,
            "SQL function": lambda it: it.execute("SELECT scheduler_add_job('two-phase')"),
        }
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="executed LISTEN, UNLISTEN, or NOTIFY"):
            commit_in_two_phases(two_phase_dsn, calls[kind])
