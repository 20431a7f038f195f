"""The group sequences, against a head that has not ended and one at which its sequence has stopped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cli.conftest import Ran, Run
from tests.support.inside import ExitCode
from tests.support.world import World, populate

COLUMNS = "INSERT INTO scheduler_sequences (key, job_id, stopped_at) VALUES "


@pytest.fixture
def on(call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run a command on a database with a sequence whose head waits, and one that has stopped."""

    async def fill(world: World) -> None:
        await world.job("next", "book")
        await world.job("behind", "book", blocked_on="zsequence:book:acme")
        await world.pool.execute(
            COLUMNS + "('zsequence:book:acme', 'next', NULL), ('zsequence:book:-7', 'failed', now())"
        )

    populate(dsn, fill)
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
    return call


def test_skip_spares_a_head_that_has_not_ended_and_names_the_option(on: Callable[..., Ran]) -> None:
    skip = ("sequences", "skip", "book", "acme")
    ran = on(*skip)
    assert ran.code == ExitCode.NOT_FOUND
    assert "its first job 'next' has not ended; to cancel that job, give --job next" in ran.err
    ran = on(*skip, "--job", "behind")
    assert ran.code == ExitCode.NOT_FOUND
    assert "the job 'behind' is not first" in ran.err
    assert on(*skip, "--job", "next", "--running").code == ExitCode.USAGE
    assert [job["status"] for job in on("jobs", "show", "next", "-o", "jsonl").lines] == ["pending"]
    assert "skipped" in on(*skip, "--job", "next").out
    assert [job["status"] for job in on("jobs", "show", "next", "-o", "jsonl").lines] == ["cancelled"]


def test_skip_continues_behind_a_failed_job_once(on: Callable[..., Ran]) -> None:
    assert "failed" in on("sequences", "skip", "--", "book", "-7").out
    ran = on("sequences", "skip", "--", "book", "-7")
    assert ran.code == ExitCode.NOT_FOUND
    assert "no job of the sequence 'book' with the key '-7' is first" in ran.err
