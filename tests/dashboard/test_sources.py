"""Several Schedulers in one dashboard, and the metrics of each."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import asyncpg
import pytest
from starlette.applications import Starlette

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access, dashboard
from tests.dashboard.client import JSON, App, Page, request
from tests.dashboard.conftest import read_all
from tests.support.cases import each_case
from tests.support.world import World


@pytest.fixture
def both(scheduler: Scheduler) -> App:
    """Return a dashboard of a Scheduler, and of one that does not exist yet."""
    return dashboard({"shop": scheduler, "later": lambda: None}, authorize=read_all)


@pytest.mark.parametrize("path", ["/", "/jobs", "/a/b/"])
async def test_each_source_has_a_part_of_the_address(path: str, world: World, both: App) -> None:
    await world.job("one", "sources.a")
    host, base = Starlette(), path.rstrip("/")
    host.mount(path, both)
    for address in (f"{base}/", f"{base}/shop/", f"{base}/shop/jobs", f"{base}/jobs"):
        answer = await request(host, address)
        assert answer.status == 200, address
        links = Page(answer.text).links()
        assert f"{base}/later/" in links, "the switch"
        own = [each for each in links if each.startswith("/") and each != f"{base}/later/"]
        assert all(each.startswith(f"{base}/shop/") for each in own), own
    assert (await request(host, f"{base}/shop/job?id=one")).status == 200
    assert (await request(host, f"{base}/shop/static/dashboard.css")).status == 200
    late = await request(host, f"{base}/later/")
    assert (late.status, late.text) == (503, "the Scheduler is not ready yet; reload the page\n")
    assert (await request(host, f"{base}/nothing/jobs")).status == 404


async def test_every_source_is_authorized(scheduler: Scheduler) -> None:
    app = dashboard({"a": scheduler, "b": scheduler}, authorize=lambda _: None)
    for path in ("/", "/a/", "/b/jobs", "/c", "/b/static/dashboard.css", "/b/metrics"):
        assert (await request(app, path)).status == 403, path


async def test_dashboard_of_one_source_has_no_switch(app: App) -> None:
    assert 'aria-label="Schedulers"' not in (await request(app, "/")).text


@each_case("name", ["", "a b", "a/b", "..", "é", "x" * 65, 7, None])
def test_invalid_names_of_sources_are_rejected(name: object, scheduler: Scheduler) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(name))):
        dashboard({name: scheduler}, authorize=read_all)  # type: ignore[dict-item]


async def test_invalid_sources_are_rejected(pool: asyncpg.Pool, scheduler: Scheduler) -> None:
    with pytest.raises(ValueError, match="1 to 50"):
        dashboard({}, authorize=read_all)
    with pytest.raises(TypeError, match="not int"):
        dashboard({"a": 7}, authorize=read_all)  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=re.escape("write {'a': pool}")):
        dashboard({"a": scheduler}, authorize=read_all, read_pool=pool)
    with pytest.raises(TypeError, match="for one source"):
        dashboard(scheduler, authorize=read_all, read_pool={"a": pool})
    with pytest.raises(ValueError, match="'b', which is no source; sources: a"):
        dashboard({"a": scheduler}, authorize=read_all, read_pool={"b": pool})


async def test_each_source_is_read_on_its_own_read_pool(dsn: str, scheduler: Scheduler) -> None:
    async with asyncpg.create_pool(
        dsn, min_size=1, max_size=2, server_settings={"search_path": "copy"}
    ) as copy:
        await Scheduler(copy, schema="copy").initialize_db()
        await World(copy).job("1", "sources.a")
        app = dashboard({"shop": scheduler, "mail": scheduler}, authorize=read_all, read_pool={"mail": copy})
        for name, expected in (("shop", 0), ("mail", 1)):
            found = (await request(app, f"/{name}/jobs", headers=JSON)).data["items"]
            assert len(found) == expected, name


async def test_metrics_are_those_of_the_exporter(world: World, app: App) -> None:
    await world.worker(names=["sources.a"])
    answer = await request(app, "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert "pg_scheduler_cluster_workers{" in answer.text
    assert 'pg_scheduler_cluster_jobs_due{job_name="sources.a"' in answer.text
    assert "collect_errors_total" in answer.text
    assert (await request(app, "/metrics")).text == answer.text, "they are kept for 10 s"
    assert (await request(app, "/metrics", method="HEAD")).body == b""


async def test_metrics_are_for_requests_that_see_all_names(
    build: Callable[..., App], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = build(authorize=lambda _: Access("bob", names=("a.*",)))
    assert (await request(closed, "/metrics", headers=JSON)).status == 403
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    answer = await request(build(), "/metrics")
    assert answer.status == 404
    assert "pg-scheduler[metrics]" in answer.text
