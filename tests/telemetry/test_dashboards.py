"""The dashboards for Grafana: every query has data in a Prometheus that scrapes a worker."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.inspect import Inspector
from pg_scheduler.telemetry import cluster
from pg_scheduler.telemetry.cluster import ClusterCollector
from pg_scheduler.telemetry.prometheus import serve_metrics
from pg_scheduler.triggers import Every
from tests.support import inside
from tests.support.prometheus import prometheus, query
from tests.telemetry import test_cluster_metrics, test_process_metrics
from tools.dashboards.__main__ import FOLDER, texts

NAMES = ("database", "overview", "schedules", "tasks", "workers")
VARIABLES = {"$schema": ".*", "$name": ".*", "$__rate_interval": "20s"}
PATIENCE = 60.0
"""Seconds until every query must have data; it takes about ten."""


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def queries() -> Iterator[str]:
    for name in NAMES:
        for panel in read(name)["panels"]:
            for target in panel["targets"]:
                yield target["expr"]


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_every_query_has_data(
    pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cluster, "MAX_AGE_S", 0.5)
    monkeypatch.setattr(cluster, "MIN_UPDATES", 1)
    inside.replace(monkeypatch, interval_of_statistics_s=0.2)
    scheduler = Scheduler(pool)

    async def tick() -> None: ...

    scheduler.register(tick, name="dashboards.tick")
    await scheduler.schedules.add("dashboards.tick", Every(seconds=1), schedule_id="tick")
    async with scheduler:
        with (
            serve_metrics(scheduler, port=0) as port,
            serve_metrics(ClusterCollector(Inspector(scheduler)), port=0) as cluster_port,
            prometheus(tmp_path, {"pg-scheduler": port, "pg-scheduler-cluster": cluster_port}) as url,
        ):
            waiting = list(queries())
            async with asyncio.timeout(PATIENCE):
                while waiting:
                    await pool.execute("ANALYZE scheduled_jobs")
                    waiting = [each for each in waiting if not await asyncio.to_thread(has_data, url, each)]
                    await asyncio.sleep(0.2)


def has_data(url: str, expression: str) -> bool:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return any(sample["value"][1] != "NaN" for sample in query(url, expression))


def test_files_are_those_that_the_panels_describe() -> None:
    assert sorted(file.name for file in FOLDER.iterdir()) == [f"{name}.json" for name in NAMES]
    for file, text in texts().items():
        assert file.read_text(encoding="utf-8") == text, "run: python3 dev.py renew"


@pytest.mark.parametrize("name", NAMES)
def test_dashboard_has_variables_and_panels_that_do_not_overlap(name: str) -> None:
    found = read(name)
    variables = [each["name"] for each in found["templating"]["list"]]
    assert variables == ["datasource", "schema", "name"]
    used: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        assert panel["title"]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & used
        assert place["x"] + place["w"] <= 24
        used |= cells
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert 'schema=~"$schema"' in target["expr"]


def test_every_family_is_on_a_dashboard() -> None:
    words = set(re.findall(r"pg_scheduler_\w+", " ".join(queries())))
    shown = {re.sub(r"_(total|bucket|count)$", "", word) for word in words}
    families = {f"pg_scheduler_{name}" for name in test_process_metrics.DOCUMENTED}
    families |= {f"pg_scheduler_cluster_{name}" for name in test_cluster_metrics.DOCUMENTED}
    assert shown == families
