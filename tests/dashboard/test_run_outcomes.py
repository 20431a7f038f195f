"""What became of the jobs of a bulk run that has ended."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import asyncpg

from pg_scheduler.dashboard import Access
from tests.dashboard.client import JSON, App, request, send
from tests.dashboard.test_actions import as_role
from tests.dashboard.test_job_list import data_of, fill, page_of
from tests.support.world import World


async def test_run_that_has_ended_states_what_became_of_its_jobs(
    pool: asyncpg.Pool, world: World, build: Callable[..., App]
) -> None:
    await fill(world)
    app = as_role(build, "admin")
    answer = await send(app, "/actions/bulk/retry?q=status%3Afailed+name%3Alist.mail", {"confirm": "yes"})
    await app._operations.runs.wait()  # type: ignore[attr-defined]
    assert answer.did is None, "the page of the run states how far it is"
    run = answer.headers["location"]
    assert "Searched" not in (await page_of(app, run)).text, "it is complete"
    assert (await data_of(app, run))["outcomes"] == [["pending", 4, "id:j002,j004,j006,j008 status:pending"]]
    await pool.execute(
        "UPDATE scheduled_jobs"
        " SET status = 'failed', finished_at = now(), error_message = 'again', attempt = 4"
        " WHERE job_id = ANY ('{j002,j004,j006}')"
    )
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = 'j008'")
    later = as_role(build, "admin")  # another process
    assert (await data_of(later, run))["outcomes"] == [["failed", 3, "id:j002,j004,j006 status:failed"]]
    page = await page_of(later, run)
    assert "3 failed again, 1 deleted since" in " ".join(page.text.split())
    assert "3 of 4 failed again" in " ".join(page.text.split()), "the verdict comes first"
    assert "Bulk run: retry of 4 jobs" in page.text
    (again,) = [str(form["action"]) for form in page.all("form") if "/bulk/retry" in str(form["action"])]
    assert "3 jobs found" in (await send(later, again, {})).text
    assert "/jobs?q=status%3Afailed%20name%3Alist.mail" in page.links()
    assert "Show 3 failed jobs" in " ".join(page.text.split())
    assert "The run goes on" not in page.text, "it has ended"
    (link,) = [each for each in page.links() if "id%3Aj002" in each]
    assert len((await data_of(later, link))["items"]) == 3


async def test_outcome_of_many_jobs_leads_to_the_search_of_the_run(
    pool: asyncpg.Pool, world: World, build: Callable[..., App]
) -> None:
    await fill(world, 600)
    app = as_role(build, "admin")
    where = "status%3Afailed+name%3Alist.%2A+arg.token%3Ahunter2-secret"
    answer = await send(app, f"/actions/bulk/retry?q={where}", {"confirm": "yes"})
    await app._operations.runs.wait()  # type: ignore[attr-defined]
    run = answer.headers["location"]
    ((status, number, q),) = (await data_of(app, run))["outcomes"]
    assert (status, number) == ("pending", 600)
    assert q == "name:list.* arg.token:hunter2-secret status:pending"
    assert len((await data_of(app, f"/jobs?q={quote(q)}"))["items"]) == 50
    await pool.execute("UPDATE scheduled_jobs SET status = 'completed', finished_at = now()")
    ((status, number, q),) = (await data_of(as_role(build, "admin"), run))["outcomes"]
    assert (status, number) == ("completed", 600)
    assert (await data_of(app, f"/jobs?q={quote(q)}"))["found"] == 50
    redacted = build(authorize=lambda _: Access("ada", "admin"), redact=["token"])
    answer = await request(redacted, run, headers=JSON)
    assert answer.data["outcomes"] == [["completed", 600, None]]
    assert "hunter2" not in answer.text
