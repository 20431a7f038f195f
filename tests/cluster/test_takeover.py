"""Jobs of nodes that die, or that are wrongly declared dead."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

from pg_scheduler import JobStatus, Scheduler
from tests.cluster.fleet import Fleet

LEASE = ("--lease", "2")
NO_ARGUMENTS: dict[str, object] = {"args": [], "kwargs": {}}


async def enqueue(client: Scheduler, name: str) -> str:
    return await client.schedule_job(f"cluster.{name}", datetime.now(UTC), NO_ARGUMENTS)


async def test_jobs_of_a_killed_node_complete_on_another_node(fleet: Fleet, client: Scheduler) -> None:
    victim = await fleet.start(*LEASE, "--slots", "3")
    early = [await enqueue(client, "note") for _ in range(50)]
    await fleet.wait_for("JobCompleted", count=len(early))
    held = [await enqueue(client, "hold") for _ in range(3)]
    await fleet.wait_for("JobStarted", node=victim, count=len(early) + len(held))
    late = [await enqueue(client, "note") for _ in range(50)]  # the victim has no free slot for them

    await victim.kill()
    other = await fleet.start(*LEASE)
    done = await fleet.wait_for("JobCompleted", count=len(early) + len(held) + len(late))

    assert Counter(record.job_id for record in done) == Counter([*early, *held, *late])
    assert Counter(record.job_id for record in fleet.records("ran")) == Counter([*early, *held, *late])
    assert Counter(await fleet.reclaimed(len(held), node=other)) == Counter(held)
    [reclaimed] = fleet.records("JobsReclaimed")
    assert reclaimed.details["dead_workers"] == [victim.worker_id]
    for job_id in held:
        row = await client.get_job(job_id)
        assert row is not None
        assert (row.status, row.worker_id, row.attempt) == (JobStatus.COMPLETED, other.worker_id, 2)
        assert row.retry_count == 0  # the death of a node counts as no retry
    assert (await client.count_jobs()).total == len(done)


async def test_jobs_of_a_killed_node_are_reclaimed_once_by_two_other_nodes(
    fleet: Fleet, client: Scheduler
) -> None:
    victim = await fleet.start(*LEASE)
    held = [await enqueue(client, "hold") for _ in range(20)]
    await fleet.wait_for("JobStarted", node=victim, count=len(held))
    survivors = [await fleet.start(*LEASE), await fleet.start(*LEASE)]

    await victim.kill()
    done = await fleet.wait_for("JobCompleted", count=len(held))

    assert Counter(record.job_id for record in done) == Counter(held)
    assert {record.node for record in done} <= set(survivors)
    assert Counter(await fleet.reclaimed(len(held))) == Counter(held)  # no job is reclaimed by both


async def test_resumed_node_can_neither_complete_nor_continue_the_jobs_it_lost(
    fleet: Fleet, client: Scheduler
) -> None:
    stopped = await fleet.start(*LEASE, "--max-loop-block", "3")
    continuing = await enqueue(client, "hold")
    await fleet.wait_for("JobStarted", node=stopped, job_id=continuing)
    # This job stops its own process (SIGSTOP), and completes immediately after SIGCONT.
    ending = await enqueue(client, "freeze")
    await fleet.wait_for("JobStarted", node=stopped, job_id=ending)

    winner = await fleet.start(*LEASE)
    for job_id in (continuing, ending):
        await fleet.wait_for("JobCompleted", node=winner, job_id=job_id)
    rows = {job_id: await client.get_job(job_id) for job_id in (continuing, ending)}
    stopped.resume()

    await fleet.wait_for("LeaseLost", node=stopped, worker_id=stopped.worker_id)
    await fleet.wait_for("ran", node=stopped, job_id=ending)  # its code ended ...
    await fleet.wait_for("JobLost", node=stopped, job_id=ending, attempt=1)  # ... but its result was rejected
    await fleet.wait_for("cancelled", node=stopped, job_id=continuing)
    await fleet.wait_for("JobLost", node=stopped, job_id=continuing, attempt=1)
    assert not fleet.records("JobCompleted", node=stopped)
    for job_id, row in rows.items():
        assert row is not None
        assert (row.status, row.worker_id, row.attempt) == (JobStatus.COMPLETED, winner.worker_id, 2)
        assert await client.get_job(job_id) == row

    await winner.stop()
    new = await enqueue(client, "note")
    await fleet.wait_for("JobCompleted", node=stopped, job_id=new)  # it has registered again
    await stopped.stop()
