"""A pause stops a task under each of its exact names, also on a node where the task has another name.

During a deployment and after a rollback, workers have a task under a former name. The pause has the aliases,
and the default name of the function, so it stops these workers, too. It does not stop a function of another
service that merely has the same bare name.
"""

from __future__ import annotations

import ast
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import yaml

import pg_scheduler
from pg_scheduler import JobStatus, Scheduler, Share
from pg_scheduler.events import JobCompleted
from pg_scheduler.inspect import Inspector, ReasonCode
from pg_scheduler.inspect.cluster import read_cluster
from pg_scheduler.inspect.tasks import by_stopped_name, paused_tasks
from pg_scheduler.jobs.naming import qualified_name
from tests.api.conftest import Make
from tests.api.test_tasks_facet import until_claimed
from tests.support.inside import load_queries, reads_of, store_of, worker_of
from tests.support.worker import Gate, Recorder, now

pytestmark = pytest.mark.usefixtures("own_catalogue")

NEW, OLD = "billing.issue", "billing.send"
"""The name of a task, and its alias, under which an earlier release has it."""


async def issue(*args: Any) -> None: ...


async def send(*args: Any) -> None: ...


async def start_new(make: Make) -> Scheduler:
    """Start a worker whose code has the task under its new name."""
    scheduler = make()
    scheduler.register(issue, name=NEW, aliases=[OLD])
    await scheduler.start()
    return scheduler


async def start_old(make: Make) -> Scheduler:
    """Start a worker whose code has the task under its former name."""
    scheduler = make()
    scheduler.register(send, name=OLD)
    await scheduler.start()
    return scheduler


def claimed(scheduler: Scheduler) -> set[str]:
    """Return the names that a worker claims."""
    return set(worker_of(scheduler).node.routing.names())


async def read_pauses(scheduler: Scheduler) -> None:
    await worker_of(scheduler).pauses.run_once()


async def exact_names(pool: asyncpg.Pool) -> list[set[str]]:
    pauses = await store_of(Scheduler(pool)).pauses.paused()
    return [set(pause.exact_names) for pause in pauses]


@pytest.mark.parametrize("suspend_expiry", [False, True])
@pytest.mark.parametrize("name", [NEW, OLD])
async def test_pause_lasts_through_a_rollback(
    make: Make, gate: Gate, name: str, suspend_expiry: bool
) -> None:
    new = await start_new(make)
    assert await new.tasks.pause(name, suspend_expiry=suspend_expiry)
    await new.shutdown()
    old = make()
    old.register(gate.job, name=OLD)
    seen = Recorder(old)
    gate.open.set()
    await old.start()
    assert claimed(old) == set(), "all names of the task wait, as where it has its new name"
    job_ids = [await old.enqueue(OLD), await old.enqueue(gate.job)]
    (info,) = await old.tasks.list()
    assert (info.name, info.is_registered, info.is_paused) == (OLD, True, True)
    assert await make().tasks.resume(OLD), (
        "a process without the code knows from the pause what the name means"
    )
    for job_id in job_ids:
        await seen.until(JobCompleted, job_id=job_id)
    assert [info.is_paused for info in await old.tasks.list()] == [False]


@pytest.mark.parametrize("name", [NEW, OLD])
async def test_pause_stops_a_node_that_has_the_task_under_its_former_name(make: Make, name: str) -> None:
    old, new = await start_old(make), await start_new(make)
    seen = Recorder(old)
    assert await new.tasks.pause(name)
    await until_claimed(old, seen, OLD, False)
    assert not await make().tasks.resume("elsewhere")
    assert await old.tasks.resume(OLD)
    await until_claimed(old, seen, OLD, True)
    assert not [info for info in await new.tasks.list() if info.is_paused]


@pytest.mark.parametrize("name", [NEW, OLD])
async def test_pause_of_a_process_without_the_code_has_the_exact_names_that_workers_report(
    make: Make, pool: asyncpg.Pool, name: str
) -> None:
    new = await start_new(make)
    # The worker cannot add its names itself.
    worker_of(new).node.known_pauses.end()
    await make().tasks.pause(name)
    assert await exact_names(pool) == [{NEW, OLD, qualified_name(issue)}]
    await new.shutdown()
    old = await start_old(make)
    assert claimed(old) == set()


async def test_worker_adds_its_exact_names_to_a_pause_and_tells_other_workers(
    make: Make, pool: asyncpg.Pool
) -> None:
    """The pause was made before the deployment that renames the task, or by a process without its code."""
    await make().tasks.pause(NEW)
    assert await exact_names(pool) == [{NEW}]
    old = await start_old(make)
    seen = Recorder(old)
    assert OLD in claimed(old), "nothing says yet that it is the same task"
    new = await start_new(make)
    await until_claimed(old, seen, OLD, False)
    for worker in (old, new):  # each may add the names that it knows
        await read_pauses(worker)
    version = await pool.fetchval("SELECT xmin::text FROM scheduler_tasks")
    for worker in (old, new):
        await read_pauses(worker)
    assert await pool.fetchval("SELECT xmin::text FROM scheduler_tasks") == version, "the pause has all names"


@pytest.mark.parametrize("name", ["send", "periodic_send"])
@pytest.mark.parametrize("suspend_expiry", [False, True])
async def test_pause_does_not_stop_a_task_of_another_service_with_the_name_of_its_function(
    make: Make, pool: asyncpg.Pool, name: str, suspend_expiry: bool
) -> None:
    service, other = make(), make()
    service.register(send, name=OLD)
    other.register(issue, name=name)
    await service.start()
    await other.start()
    assert await service.tasks.pause(OLD, suspend_expiry=suspend_expiry)
    await read_pauses(service)
    await read_pauses(other)
    assert name in claimed(other)
    assert await exact_names(pool) == [{OLD, qualified_name(send)}]
    assert not await other.tasks.resume(name)
    assert {info.name for info in await other.tasks.list() if info.is_paused} == {OLD}


async def test_alias_that_is_the_bare_name_of_another_function_stops_jobs_of_this_name_only(
    make: Make,
) -> None:
    service, other = make(), make()
    service.register(issue, name=NEW, aliases=["send"])
    other.register(send, name="mail.send")
    await other.start()
    assert await service.tasks.pause(NEW)
    await read_pauses(other)
    assert claimed(other) == {"mail.send", qualified_name(send)}
    assert {info.name for info in await other.tasks.list() if info.is_paused} == {NEW}


async def test_pause_stops_workers_of_the_release_in_which_the_function_had_no_name(make: Make) -> None:
    """It also lasts when the deployment that gave the task its name is rolled back."""
    new = make()
    new.register(send, name=NEW)
    await new.tasks.pause(NEW)
    old = make()
    old.register(send)
    await old.start()
    assert claimed(old) == set()
    assert await old.tasks.resume(qualified_name(send))


async def test_functions_of_two_services_with_the_same_default_name_are_paused_apart(
    make: Make, pool: asyncpg.Pool
) -> None:
    """Both workers claim jobs of this name, which no code enqueues, so only this name stops on both."""
    service, other = make(), make()
    service.register(send, name=NEW)
    other.register(send, name="letters.send")
    await service.start()
    await other.start()
    assert await service.tasks.pause(NEW)
    await read_pauses(service)
    await read_pauses(other)
    assert claimed(other) == {"letters.send", "send"}
    assert await exact_names(pool) == [{NEW, qualified_name(send)}]
    assert {info.name for info in await other.tasks.list() if info.is_paused} == {NEW}
    assert await other.tasks.pause("letters.send")
    assert await make().tasks.resume(NEW)
    assert {info.name for info in await service.tasks.list() if info.is_paused} == {"letters.send"}
    assert not await service.tasks.resume(NEW)
    await read_pauses(service)
    assert claimed(service) == {NEW, "send"}, "the jobs of the default name wait for the other pause"
    assert await other.tasks.resume("letters.send")
    await read_pauses(service)
    assert claimed(service) == {NEW, "send", qualified_name(send)}


async def test_resuming_by_one_name_ends_the_pauses_of_the_others(make: Make, pool: asyncpg.Pool) -> None:
    old, new = make(), make()
    old.register(send, name=OLD)
    new.register(issue, name=NEW, aliases=[OLD])
    assert await old.tasks.pause(OLD)
    assert await new.tasks.pause(NEW)
    assert await make().tasks.resume(NEW)
    assert await pool.fetchval("SELECT count(*) FROM scheduler_tasks") == 0


async def test_pause_with_suspended_expiry_renews_jobs_of_all_names(make: Make) -> None:
    new = await start_new(make)
    await new.tasks.pause(NEW, suspend_expiry=True)
    await new.shutdown()
    old = await start_old(make)
    jobs = [await old.enqueue(name, misfire_grace_time=60) for name in (NEW, OLD, qualified_name(send))]
    before = [job.expires_at for job_id in jobs if (job := await old.get_job(job_id))]
    await read_pauses(old)
    assert {NEW, OLD, qualified_name(send)} <= worker_of(old).node.routing.unexpiring_names
    assert await make().tasks.resume(OLD)
    after = [job.expires_at for job_id in jobs if (job := await old.get_job(job_id))]
    assert all(late and early and late > early for late, early in zip(after, before, strict=True))


async def test_paused_share_moves_no_jobs_under_a_former_name(make: Make, pool: asyncpg.Pool) -> None:
    new = make()
    new.register(issue, name=NEW, aliases=[OLD])
    await new.tasks.pause(NEW)
    old = make()
    old.register(send, name=OLD, share=Share(key=lambda tenant: tenant))
    await old.start()
    job_id = await old.enqueue(OLD, args=("a",))
    await worker_of(old).feeder.run_once()
    blocked_on = await pool.fetchval("SELECT blocked_on FROM scheduled_jobs WHERE job_id = $1", job_id)
    assert blocked_on == f"share:{OLD}:a"


async def test_everything_that_says_what_is_paused_knows_the_former_name(
    make: Make, pool: asyncpg.Pool
) -> None:
    new = make()
    new.register(issue, name=NEW, aliases=[OLD])
    await new.tasks.pause(NEW)
    old = await start_old(make)
    hour_ago = now() - timedelta(hours=1)
    job_id = await old.schedule_job(OLD, hour_ago, {}, misfire_grace_time=None)
    inspector = Inspector(pool)
    assert NEW in {info.name for info in await make().tasks.list() if info.is_paused}
    assert [info.name for info in await old.tasks.list() if info.is_paused] == [OLD]
    assert {task.name for task in (await inspector.tasks()).items if task.paused_at} == {NEW, OLD}
    assert (await inspector.backlog()).held == {OLD}
    reasons = (await inspector.explain_job(job_id)).reasons
    assert ReasonCode.TASK_PAUSED in {reason.code for reason in reasons}
    figures = await read_cluster(reads_of(inspector))
    assert (set(figures.held), list(figures.paused)) == ({OLD}, [NEW])
    subjects = {finding.subject for finding in (await inspector.doctor()).findings}
    assert OLD not in subjects, "its jobs are not late"
    assert set(by_stopped_name(await paused_tasks(reads_of(inspector)))) == {
        NEW,
        OLD,
        *map(qualified_name, (issue, send)),
    }
    manifest = files("pg_scheduler") / "ops" / "k8s" / "keda" / "postgresql.yaml"
    scaler = yaml.safe_load(manifest.read_text(encoding="utf-8"))
    (trigger,) = scaler["spec"]["triggers"]
    assert await pool.fetchval(trigger["metadata"]["query"]) == 0
    late = await old.schedule_job(OLD, hour_ago, {}, misfire_grace_time=1)
    await pool.execute("UPDATE scheduled_jobs SET created_at = execution_time")
    await worker_of(old).expirer.run_once()
    expired = await old.get_job(late)
    assert expired
    assert expired.status is JobStatus.EXPIRED
    assert f"the task {OLD} was paused" in (expired.error_message or "")


STATEMENTS = {
    # These write and read the names of pauses, or find pauses by their own names or their ends.
    *("pause_task", "add_names", "resume_tasks", "end_pauses", "delete_renewed", "paused_tasks"),
    *("hold_tasks", "held_tasks", "resume_held_tasks", "next_instants"),
    # These compare the names of jobs with all names of a pause that suspends expiry.
    *("exchange_jobs", "expire_jobs", "find_late", "claim_next", "unblock_late", "unblock_limited"),
    *("scan_deadlines", "end_past_deadlines"),
    # This one compares them with the exact names.
    "explain_expiry",
    # A test kit reads the names of the pauses that its transaction has written, as pause_task wrote them.
    "kit_pauses",
}
"""The statements that read or write pauses. One that is new has to decide about the names of a pause."""

READERS = {
    *("admission/pause_watcher.py", "scheduler/tasks.py", "inspect/tasks.py", "inspect/job_facts.py"),
    *("inspect/cluster.py", "inspect/doctor/check.py", "dashboard/context.py", "cli/assistant/changes.py"),
}
"""The modules that read pauses, each of which is in a test above, or in one of the assistant."""


def test_every_place_that_compares_names_with_pauses_is_tested() -> None:
    queries = load_queries("public").items()
    assert {name for name, query in queries if "scheduler_tasks" in query.text} == STATEMENTS
    root = Path(pg_scheduler.__file__).parent
    readers = set()
    for path in root.rglob("*.py"):
        calls = [
            node.func
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call)
        ]
        names = {ast.unparse(func).removeprefix("self.") for func in calls}
        if any(name == "paused_tasks" or name.endswith("pauses.paused") for name in names):
            readers.add(path.relative_to(root).as_posix())
    assert readers == READERS
