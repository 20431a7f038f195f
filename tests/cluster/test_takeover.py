"""Jobs of nodes that die, or that only seem to."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

from pg_scheduler import JobStatus, Scheduler
from tests.cluster.fleet import Fleet

LEASE = ("--lease", "2")
NOTHING: dict[str, object] = {"args": [], "kwargs": {}}


async def enqueue(client: Scheduler, name: str) -> str:
    return await client.schedule_job(f"cluster.{name}", datetime.now(UTC), NOTHING)


async def test_jobs_of_a_killed_node_are_completed_by_the_other(fleet: Fleet, client: Scheduler) -> None:
    victim = await fleet.start(*LEASE, "--slots", "3")
    early = [await enqueue(client, "note") for _ in range(50)]
    await fleet.sees("JobCompleted", count=len(early))
    held = [await enqueue(client, "hold") for _ in range(3)]
    await fleet.sees("JobStarted", node=victim, count=len(early) + len(held))
    late = [await enqueue(client, "note") for _ in range(50)]  # the victim has no slot left for them

    await victim.kill()
    other = await fleet.start(*LEASE)
    done = await fleet.sees("JobCompleted", count=len(early) + len(held) + len(late))

    assert Counter(seen.job_id for seen in done) == Counter([*early, *held, *late])
    assert Counter(seen.job_id for seen in fleet.seen("ran")) == Counter([*early, *held, *late])
    [rescued] = fleet.seen("JobsReclaimed", node=other)
    assert set(rescued.about["job_ids"]) == set(held)
    assert rescued.about["dead_workers"] == [victim.worker_id]
    for job_id in held:
        row = await client.get_job(job_id)
        assert row is not None
        assert (row.status, row.worker_id, row.attempt) == (JobStatus.COMPLETED, other.worker_id, 2)
        assert row.retry_count == 0  # the death of a node is no failure of the job
    assert (await client.count_jobs()).total == len(done)


async def test_two_survivors_share_what_a_killed_node_held(fleet: Fleet, client: Scheduler) -> None:
    victim = await fleet.start(*LEASE)
    held = [await enqueue(client, "hold") for _ in range(20)]
    await fleet.sees("JobStarted", node=victim, count=len(held))
    survivors = [await fleet.start(*LEASE), await fleet.start(*LEASE)]

    await victim.kill()
    done = await fleet.sees("JobCompleted", count=len(held))

    assert Counter(seen.job_id for seen in done) == Counter(held)
    assert {seen.node for seen in done} <= set(survivors)
    rescued = [job_id for seen in fleet.seen("JobsReclaimed") for job_id in seen.about["job_ids"]]
    assert Counter(rescued) == Counter(held)  # by one of them or the other, never by both


async def test_a_zombie_can_neither_complete_nor_go_on_with_what_it_lost(
    fleet: Fleet, client: Scheduler
) -> None:
    zombie = await fleet.start(*LEASE)
    going_on = await enqueue(client, "hold")
    await fleet.sees("JobStarted", node=zombie, job_id=going_on)
    # This one halts the process in its middle (SIGSTOP), and ends at once when it is let go.
    ending = await enqueue(client, "freeze")
    await fleet.sees("JobStarted", node=zombie, job_id=ending)

    winner = await fleet.start(*LEASE)
    for job_id in (going_on, ending):
        await fleet.sees("JobCompleted", node=winner, job_id=job_id)
    won = {job_id: await client.get_job(job_id) for job_id in (going_on, ending)}
    zombie.resume()

    await fleet.sees("LeaseLost", node=zombie, worker_id=zombie.worker_id)
    await fleet.sees("ran", node=zombie, job_id=ending)  # its code came to its end ...
    await fleet.sees("JobLost", node=zombie, job_id=ending, attempt=1)  # ... which was refused
    await fleet.sees("cancelled", node=zombie, job_id=going_on)
    await fleet.sees("JobLost", node=zombie, job_id=going_on, attempt=1)
    assert not fleet.seen("JobCompleted", node=zombie)
    for job_id, row in won.items():
        assert row is not None
        assert (row.status, row.worker_id, row.attempt) == (JobStatus.COMPLETED, winner.worker_id, 2)
        assert await client.get_job(job_id) == row

    await winner.stop()
    fresh = await enqueue(client, "note")
    await fleet.sees("JobCompleted", node=zombie, job_id=fresh)  # it is a worker again
    await zombie.stop()
