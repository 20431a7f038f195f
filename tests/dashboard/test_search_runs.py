"""A search that its first page does not finish goes on while somebody looks at the list."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import asyncpg
import pytest

from pg_scheduler.dashboard import Access
from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.search_runs import IDLE_S, MAX_RUNS, RESULT_AGE_S, SearchRuns
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.inspect import Bounds, SearchPage
from pg_scheduler.inspect.paths import BY_ID
from tests.dashboard.client import JSON, App, Page, request, stream
from tests.support.patience import PATIENCE
from tests.support.world import World
from tests.unit.inspect.test_explain import PENDING

BOUNDS = Bounds(rows=20)
JOBS = 100
RARE = "/jobs?q=name:rare.task"
LIVE = "/live?page=/jobs&q=name:rare.task"


def id_of(number: int) -> str:
    """Return an id as they are generated: the greater the number, the newer the job."""
    return f"0{number:05}"


async def fill(world: World, *rare: tuple[int, str]) -> None:
    """Add completed jobs, of which those with these numbers have the rare name and another status."""
    statuses = dict(rare)
    await world.jobs(
        JOBS,
        lambda n: "rare.task" if n in statuses else "mail.send",
        job_id=id_of,
        status="completed",
        task_data=lambda n: json.dumps({"args": [], "kwargs": {"customer": n}}),
    )
    for number, status in statuses.items():
        await world.pool.execute("DELETE FROM scheduled_jobs WHERE job_id = $1", id_of(number))
        error = {"error_message": "no route"} if status == "failed" else {}
        await world.job(id_of(number), "rare.task", status=status, **error)
    await world.pool.execute("VACUUM ANALYZE scheduled_jobs")


async def data_of(app: App, url: str) -> Any:
    return (await request(app, url, headers=JSON)).data


async def watched(app: App, live: str) -> dict[str, str]:
    """Return the parts of a list as its stream has sent them when the search was over."""
    parts: dict[str, str] = {}
    async with asyncio.timeout(PATIENCE), stream(app, live) as read:
        assert await read() == "retry: 1000\n\n"
        while "Stop</a>" in parts.get("region", "Stop</a>"):
            event = await read()
            assert event.startswith("event: parts\n"), event
            parts |= json.loads(event.partition("\ndata: ")[2])
    return parts


def ids_of(html: str) -> list[str]:
    """Return the ids of the rows of a list."""
    return [str(row["data-key"]) for row in Page(html).all("tr") if row.get("data-key")]


async def test_stream_continues_a_search_until_all_jobs_are_searched(
    build: Callable[..., App], world: World
) -> None:
    await fill(world, (2, "completed"))
    app = build(bounds=BOUNDS)
    first = await data_of(app, RARE)
    assert (first["items"], first["is_searching"], first["searched"]) == ([], True, 20)
    page = Page((await request(app, RARE)).text)
    assert "No job was found so far." in page.text
    assert "The search has examined 20 of about 100 jobs." in page.text
    bar = next(bar for bar in page.all("progress") if bar.get("aria-label") == "Searched")
    assert (bar["max"], bar["value"]) == ("100", "20")
    (following,) = [link for link in page.all("a") if link.get("rel") == "next"]
    assert "primary" in str(following["class"]), "without a script, the search goes on with a click"
    parts = await watched(app, LIVE)
    assert ids_of(parts["region"]) == [id_of(2)]
    assert "1 job, by id, descending" in parts["summary"]
    last = await data_of(app, RARE)
    assert (last["is_searching"], last["is_complete"], last["next"]) == (False, True, None)
    assert [row["job_id"] for row in last["items"]] == [id_of(2)]


async def test_first_page_has_the_jobs_that_the_indexes_find(build: Callable[..., App], world: World) -> None:
    await fill(world, (1, "completed"), (3, "failed"), (5, "pending"), (7, "running"), (95, "completed"))
    app = build(bounds=BOUNDS)
    first = await data_of(app, RARE)
    assert [row["job_id"] for row in first["items"]] == [id_of(95)]
    assert sorted(row["job_id"] for row in first["early"]) == [id_of(3), id_of(5), id_of(7)]
    html = (await request(app, RARE)).text
    assert ids_of(html) == [id_of(95), id_of(7), id_of(5), id_of(3)], "in the order that the head states"
    assert "4 found, 20 of about 100 jobs searched; by id, descending" in html
    assert "1\N{EN DASH}4</span>" in html
    parts = await watched(app, LIVE)
    html = (await request(app, RARE)).text
    assert ids_of(html) == [id_of(number) for number in (95, 7, 5, 3, 1)], "each once"
    assert "5 jobs, by id, descending" in parts["summary"]


async def test_pages_without_a_stream_have_each_job_once(build: Callable[..., App], world: World) -> None:
    await fill(world, (1, "completed"), (5, "pending"), (95, "completed"))
    app, ids, url = build(bounds=BOUNDS), list[str](), RARE
    while url:
        page = await data_of(app, url)
        ids += [row["job_id"] for row in page["items"]]
        url = f"{RARE}&after={page['next']}" if page["next"] else ""
    assert ids == [id_of(95), id_of(5), id_of(1)]


async def test_stopped_search_does_not_go_on(
    build: Callable[..., App], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(world, (1, "completed"), (95, "completed"))
    app = build(bounds=BOUNDS, refresh=0.5)
    page = Page((await request(app, RARE)).text)
    (stop,) = [link for link in page.links() if "stop=1" in link]
    parts_read = 0
    continue_search = PageRequest.continue_search

    async def count(*arguments: Any) -> SearchPage:
        nonlocal parts_read
        parts_read += 1
        return await continue_search(*arguments)

    monkeypatch.setattr(PageRequest, "continue_search", count)
    html = (await request(app, stop)).text
    assert "Stop</a>" not in html
    assert "Continue the search" in html
    async with asyncio.timeout(PATIENCE), stream(app, f"{LIVE}&stop=1") as read:
        await read()
        assert "Continue the search" in await read()
        await world.job(id_of(JOBS + 1), "rare.task", status="completed")
        assert id_of(JOBS + 1) in await read(), "the first page is read again"
    assert parts_read == 0


async def test_jobs_that_were_found_leave_the_list_when_they_do_not_match_any_more(
    build: Callable[..., App], world: World, pool: asyncpg.Pool
) -> None:
    await fill(world, (1, "completed"), (2, "completed"))
    app = build(bounds=BOUNDS)
    await request(app, RARE)
    await watched(app, LIVE)
    await pool.execute("UPDATE scheduled_jobs SET job_name = 'other' WHERE job_id = $1", id_of(1))
    await world.job(id_of(JOBS + 1), "rare.task", status="running")
    data = await data_of(app, RARE)
    assert [(row["job_id"], row["status"]) for row in data["items"]] == [
        (id_of(JOBS + 1), "running"),
        (id_of(2), "completed"),
    ]
    assert data["found"] == 2


async def test_search_goes_on_among_visible_jobs_without_the_number_of_all(
    build: Callable[..., App], world: World
) -> None:
    await fill(world, (1, "completed"), (5, "pending"))
    everybody = build(bounds=BOUNDS, authorize=lambda _: Access("bob", names=("rare.*",)))
    nobody = build(bounds=BOUNDS, authorize=lambda _: Access("eve", names=("other.*",)))
    for headers in ({}, JSON):
        html = (await request(everybody, "/jobs?q=any:~a", headers=headers)).text
        assert not re.search(r"\b100\b", html), "the number of all jobs"
    page = Page((await request(everybody, RARE)).text)
    bar = next(bar for bar in page.all("progress") if bar.get("aria-label") == "Searched")
    assert "value" not in bar
    assert ids_of((await watched(everybody, LIVE))["region"]) == [id_of(5), id_of(1)]
    data = await data_of(nobody, RARE)
    assert (data["items"], data["early"], data["searched"]) == ([], [], None)
    assert ids_of((await watched(nobody, LIVE))["region"]) == []


async def test_requests_with_other_rights_share_no_search(build: Callable[..., App], world: World) -> None:
    await fill(world, (1, "completed"), (2, "completed"))
    access = [Access("ada")]
    app = build(bounds=BOUNDS, authorize=lambda _: access[0])
    await request(app, RARE)
    await watched(app, LIVE)
    for access[0] in (Access("eve", names=("other.*",)), Access("bob", sees_arguments=False)):
        data = await data_of(app, RARE)
        assert (data["items"], data["is_complete"]) == ([], False), access


async def test_number_is_searched_in_arguments_and_offers_the_fields_that_have_it(
    build: Callable[..., App], world: World
) -> None:
    await fill(world)
    await world.job("invoice", "billing.x", task_data=json.dumps({"kwargs": {"account": {"id": "47"}}}))
    await world.job("x47y", "billing.x", task_data="{}")
    app = build()
    data = await data_of(app, "/jobs?q=47")
    assert data["q"] == "any:47", "the search that the actions on the list change too"
    assert {row["job_id"] for row in data["items"]} == {id_of(47), "invoice"}
    places = {place["field"]: (place["jobs"], place["q"]) for place in data["places"]}
    assert places == {
        "arg.customer": (1, "arg.customer:47"),
        "arg.account.id": (1, "arg.account.id:47"),
    }
    links = Page((await request(app, "/jobs?q=47")).text).links()
    assert "/jobs?q=arg.customer%3A47" in links
    (only,) = (await data_of(app, "/jobs?q=arg.customer:47"))["items"]
    assert only["job_id"] == id_of(47)
    words = await data_of(app, "/jobs?q=status:pending+BILL")
    assert [place["q"] for place in words["places"]] == ["status:pending name:~BILL"]
    assert {row["job_id"] for row in words["items"]} == {"invoice", "x47y"}
    assert (await data_of(app, "/jobs?q=any:4711"))["meant"]["id:*4711*"] == "id:*4711*"


SECRET = "hunter2"


@pytest.mark.parametrize(
    "arguments",
    [
        {"authorize": lambda _: Access("bob", sees_arguments=False)},
        {"redact": ["password"]},
    ],
)
async def test_words_find_no_hidden_value(
    arguments: dict[str, Any], build: Callable[..., App], world: World
) -> None:
    kwargs = {"kwargs": {"password": SECRET, "account": 7}, "metadata": {"password": SECRET}}
    await world.job("login", "billing.x", task_data=json.dumps(kwargs))
    app = build(**arguments)
    for q in (SECRET, f"~{SECRET}", f'"{SECRET}"'):
        data = await data_of(app, f"/jobs?q={q}")
        assert (data["q"], data["items"], data["places"]) == (q, [], []), q
    for q in (f"any:{SECRET}", f"-any:{SECRET}", "any:~h", "any:x,h*"):
        answer = await request(app, f"/jobs?q={q}", headers=JSON)
        assert (answer.status, answer.data["items"]) == (400, []), q
        assert (await request(app, f"/export?q={q}&format=csv")).status == 400
    data = await data_of(app, "/jobs?q=login")
    assert [place["q"] for place in data["places"]] == ["id:~login"]
    is_redacted = "redact" in arguments
    offered = (await data_of(app, "/jobs?q=7"))["meant"]
    assert ("arg.account:7" in offered) == is_redacted
    assert not [text for text in offered if "password" in text]


# -- the runs ------------------------------------------------------------------------------------------


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Table:
    """Parts of a search, each with these ids."""

    clock: Clock
    parts: list[list[str]]
    calls: list[tuple[int, str | None]] = field(default_factory=list)
    state: dict[str, int] = field(default_factory=lambda: {"reading": 0})

    async def read(self, limit: int, after: str | None) -> SearchPage:
        self.calls.append((limit, after))
        self.state["reading"] += 1
        assert self.state["reading"] == 1, "one part is read at a time"
        await asyncio.sleep(0)
        self.state["reading"] -= 1
        self.clock.now += 0.3
        return part_of(self.parts.pop(0), len(self.calls) + 1, is_complete=not self.parts)


def part_of(ids: list[str], number: int = 1, *, is_complete: bool = False) -> SearchPage:
    jobs = [replace(PENDING, job_id=job_id) for job_id in ids]
    following = None if is_complete else str(number)
    return SearchPage(jobs, 20 * number, len(ids), 100, is_complete, following, order=BY_ID)


async def test_run_is_continued_in_parts_by_all_who_look_at_it() -> None:
    clock = Clock()
    runs, table = SearchRuns(clock), Table(clock, [["7"], [], ["6", "7", "5"], ["4"]])
    other = Table(clock, [["1"]], state=table.state)
    run = runs.begin("key", part_of(["9", "8"]), [replace(PENDING, job_id="5")], 6)
    runs.begin("other", part_of([]), [], 6)
    assert await runs.advance("missing", table.read) is None
    first = await runs.advance("key", table.read)
    assert table.calls == [(4, "1"), (3, "2")], "for a moment only"
    second = await asyncio.gather(runs.advance("key", table.read), runs.advance("other", other.read))
    assert first != second[0]
    while await runs.advance("key", table.read) is not None:
        pass
    assert [job.job_id for job in run.found_jobs] == ["9", "8", "7", "6", "5", "4"], "each once"
    assert table.parts == [], "until the page is full or the search complete"
    view = run.shown((), {job.job_id: job for job in run.found_jobs})
    assert [job.job_id for job in view.page.items] == ["9", "8", "7", "6", "5", "4"]
    assert (view.page.found, list(view.early)) == (6, [])


async def test_full_run_reads_no_more() -> None:
    clock = Clock()
    runs, table = SearchRuns(clock), Table(clock, [["7", "6"], ["5"]])
    runs.begin("key", part_of(["9", "8"]), [], 4)
    assert await runs.advance("key", table.read) is not None
    assert await runs.advance("key", table.read) is None
    assert table.parts == [["5"]]


async def test_run_that_fails_is_continued_later() -> None:
    clock = Clock()
    runs, table = SearchRuns(clock), Table(clock, [["7"]])

    async def fail(limit: int, after: str | None) -> SearchPage:
        raise DatabaseUnavailableError("no answer")

    run = runs.begin("key", part_of([]), [], 4)
    with pytest.raises(DatabaseUnavailableError):
        await runs.advance("key", fail)
    assert await runs.advance("key", table.read) is not None
    assert run.is_over


def test_runs_are_forgotten_when_nobody_looks_or_there_are_too_many() -> None:
    clock = Clock()
    runs = SearchRuns(clock)
    first = runs.begin(0, part_of([]), [], 4)
    for _ in range(3):
        clock.now += IDLE_S / 2
        assert runs.look(0) is first
    clock.now += IDLE_S
    assert runs.look(0) is None
    for key in range(MAX_RUNS):
        runs.begin(key, part_of([]), [], 4)
    assert runs.look(0) is not None
    runs.begin(MAX_RUNS, part_of([]), [], 4)
    assert (runs.look(0) is None, runs.look(1) is None) == (False, True), "looked at longest ago"


async def test_result_of_a_run_is_kept_in_proportion_to_its_cost() -> None:
    clock = Clock()
    runs, table = SearchRuns(clock), Table(clock, [[], []])
    run = runs.begin("key", part_of([]), [], 4)
    clock.now += 8.9
    await runs.advance("key", table.read)
    assert (run.is_over, run.is_active, run.is_old) == (True, False, False)
    clock.now += RESULT_AGE_S
    assert not run.is_old, "it took 9.5 s, so it is repeated after 95 s"
    clock.now += RESULT_AGE_S
    assert run.is_old


def test_new_jobs_never_push_those_of_the_run_from_the_page() -> None:
    run = SearchRuns(Clock()).begin("key", part_of(["8", "7"]), [], 3)
    now = {job.job_id: job for job in run.found_jobs}
    shown = run.shown(part_of(["z", "9", "8"]).items, now)
    assert [job.job_id for job in shown.page.items] == ["z", "8", "7"]
