"""The check of a deployment: stored steps that do not fit the source of the new code."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from secrets import token_hex
from typing import Any

import pytest

from pg_scheduler import Scheduler
from pg_scheduler.inspect import DeployCode, DeployReport, Severity, check
from pg_scheduler.inspect.store import deploy as deploy_store
from pg_scheduler.jobs.codec import check_codec
from pg_scheduler.jobs.step_values import step_text
from pg_scheduler.migrate import migrate
from tests.inspect import deploy_computed_jobs, deploy_jobs
from tests.support.codecs import KeyedCodec
from tests.support.inside import store_of
from tests.support.store import Pool
from tests.support.world import World

TASK = "shop.order"


@pytest.fixture
def scheduler(pool: Pool) -> Scheduler:
    """A Scheduler of the new code."""
    scheduler = Scheduler(pool)
    scheduler.register(deploy_jobs.order, name=TASK)
    scheduler.register(deploy_computed_jobs.many, name="shop.many")
    return scheduler


async def insert(
    world: World,
    job_id: str,
    steps: Mapping[str, Any],
    *,
    version: int = 1,
    kind: str = "step",
    name: str = TASK,
) -> None:
    """Insert a job with stored steps, as the old code has left it."""
    args: list[Any] = [[], []] if name == "shop.many" else [7]
    await world.job(job_id, name, task_data={"args": args, "kwargs": {}}, options={"steps": version})
    for step, value in steps.items():
        await world.step(job_id, step, kind, value=value)


def found(report: DeployReport) -> list[tuple[DeployCode, str, int]]:
    """Return the findings without those of versions."""
    return [(each.code, each.reason, each.count) for each in report.findings if each.code != "VERSION"]


async def test_values_that_fit_are_no_finding(scheduler: Scheduler, world: World) -> None:
    values = {
        "quote": {"price": 1},
        "page-7": 7,
        "old-8": 8,
        "reserve": [{"price": 1}],
        "untyped": "x",
        "local": "y",
    }
    await insert(world, "a", values)
    await insert(world, "b", {"lines": "z"}, kind="cursor")
    await insert(world, "c", {"cool-off": None, "delivery": None}, kind="sleep")
    await insert(world, "d", {"approval": {"by": "ann"}}, kind="signal")
    await insert(world, "e", {"docs:0": None}, kind="child")
    await insert(world, "g", {"fastest": "cheapest"}, kind="first")
    await insert(world, "h", {"cheapest": 1}, kind="signal")
    await insert(world, "f", {"result:0f3a": {"value": 1}}, kind="result")
    assert found(await check(scheduler)) == []


async def test_values_that_do_not_fit_are_grouped_by_step(scheduler: Scheduler, world: World) -> None:
    await insert(world, "a", {"quote": {"price": 1, "parts": [1, "x"]}, "page-1": "x", "page-2": "y"})
    await insert(world, "b", {"quote": {"price": 1, "parts": ["x"]}, "page-3": None, "reserve": {}})
    await insert(world, "c", {"quote": {"price": 0}})
    report = await check(scheduler)
    invalid = "Input should be a valid integer, unable to parse string as an integer"
    assert found(report) == [
        (DeployCode.STEP_TYPE, "step 'page-*': value: Input should be a valid integer", 1),
        (DeployCode.STEP_TYPE, f"step 'page-*': value: {invalid}", 2),
        (DeployCode.STEP_TYPE, "step 'quote': KeyError: 'no price'", 1),
        (DeployCode.STEP_TYPE, f"step 'quote': value.parts[]: {invalid}", 2),
        (DeployCode.STEP_TYPE, "step 'reserve': value: Input should be a valid array", 1),
    ]
    assert report.severity is Severity.ERROR
    assert report.findings[1].ids == ("a",)


async def test_steps_that_the_module_does_not_name_are_a_warning(scheduler: Scheduler, world: World) -> None:
    await insert(world, "a", {"quota": 1, "pages-1": 1, "pages-2": 1})
    report = await check(scheduler)
    assert report.severity is Severity.WARNING
    assert found(report) == [
        (DeployCode.STEP_GONE, "step 'pages-*' is not in the module of the function", 2),
        (DeployCode.STEP_GONE, "step 'quota' is not in the module of the function", 1),
    ]


KINDS = {
    "quote": "step",
    "reserve": "step",
    "lines": "cursor",
    "cool-off": "sleep",
    "docs:0": "child",
    "fastest": "first",
    "cheapest": "signal",
    "approval": "signal",
}
"""The kind of a step of each method that the module names."""


async def test_steps_whose_kind_changes_are_an_error_in_each_direction(
    scheduler: Scheduler, world: World
) -> None:
    number = 0
    for name, own in KINDS.items():
        for kind in sorted({*KINDS.values()} - {own}):
            number += 1
            await insert(world, f"{number}", {name: None}, kind=kind)
    findings = [(each.code, each.reason) for each in (await check(scheduler)).findings]
    for name, own in KINDS.items():
        shown = re.sub(r"\d", "*", name)
        for kind in sorted({*KINDS.values()} - {own}):
            # The names of the jobs of gather() are computed.
            code = DeployCode.STEP_GONE if own == "child" else DeployCode.STEP_KIND
            reason = f"step {shown!r} is stored as {kind!r}, and the code has it as {own!r}"
            if own == "child":
                reason = f"step {shown!r} is not in the module of the function"
            assert (code, reason) in findings, (name, kind)


async def test_computed_names_of_steps_are_no_finding_whatever_their_values(
    scheduler: Scheduler, world: World
) -> None:
    await insert(world, "a", {"anything": 1, "other": "no number"}, name="shop.many")
    assert found(await check(scheduler)) == []


async def test_functions_without_a_source_are_left_out(pool: Pool, world: World) -> None:
    namespace: dict[str, Any] = {"__name__": "nowhere"}
    exec("async def order(order_id: int) -> None: ...", namespace)
    scheduler = Scheduler(pool)
    scheduler.register(namespace["order"], name=TASK)
    await insert(world, "a", {"quota": 1})
    assert found(await check(scheduler)) == []


async def test_jobs_are_counted_by_task_and_version_of_their_steps(
    scheduler: Scheduler, world: World
) -> None:
    await insert(world, "a", {}, version=1)
    await insert(world, "b", {}, version=2)
    await insert(world, "c", {}, version=2)
    await insert(world, "signalled", {}, version=0)
    await insert(world, "unknown", {}, version=4, name="shop.gone")
    report = await check(scheduler, name=TASK)
    assert [(each.name, each.reason, each.count, each.ids) for each in report.findings] == [
        (TASK, "version 1", 1, ("a",)),
        (TASK, "version 2", 2, ("b", "c")),
    ]
    assert (report.findings[0].code, report.severity) == (DeployCode.VERSION, Severity.INFO)


async def test_encoded_values_are_decoded_by_the_codec_of_the_scheduler(pool: Pool, world: World) -> None:
    codec = KeyedCodec("one")
    values = {"page-1": "x", "page-2": 2}
    stored = {
        step: json.loads(step_text(step, value, None, check_codec(codec), TASK))
        for step, value in values.items()
    }
    await insert(world, "a", stored)
    without, with_codec = Scheduler(pool), Scheduler(pool, codec=codec)
    for scheduler in (without, with_codec):
        scheduler.register(deploy_jobs.order, name=TASK)
    ((code, reason, count),) = found(await check(without))
    assert (code, count) == (DeployCode.NOT_EXAMINED, 2)
    assert "step 'page-*' cannot be read: encrypted with xor, key one; this Scheduler has no codec" in reason
    ((code, _, count),) = found(await check(with_codec))
    assert (code, count) == (DeployCode.STEP_TYPE, 1)


async def test_all_steps_of_many_jobs_are_read_in_pages(
    scheduler: Scheduler, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploy_store, "PAGE_ROWS", 7)
    monkeypatch.setattr(deploy_store, "MAX_READ_BYTES", 5_000)
    for number in range(20):
        steps = {f"page-{step}": f"x{token_hex(1500 * (step % 3))}" for step in range(number)}
        await insert(world, f"job-{number:02}", steps)
    report = await check(scheduler)
    assert [count for _, _, count in found(report)] == [sum(range(20))]
    repository = deploy_store.DeployRepository(store_of(scheduler).statements)
    pages = [page async for page in repository.steps([f"job-{number:02}" for number in range(20)])]
    assert max(map(len, pages)) == 7
    read = [(step.job_id, step.name) for page in pages for step in page]
    assert len(read) == len(set(read)) == sum(range(20))


async def test_database_without_the_table_of_steps_is_checked(
    scheduler: Scheduler, pool: Pool, world: World
) -> None:
    await insert(world, "a", {"quota": 1})
    await insert(world, "b", {}, name="shop.gone")
    async with pool.acquire() as connection:
        await migrate(connection, target=1)
    assert [(each.code, each.ids) for each in (await check(scheduler)).findings] == [
        (DeployCode.NAME_UNKNOWN, ("b",))
    ]
