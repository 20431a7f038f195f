"""What a worker reports about itself with its heartbeats."""

from __future__ import annotations

import asyncio
import json

import pytest

from pg_scheduler import DatabaseUnavailableError, Injected, Limit, Share
from pg_scheduler.events import EventBus
from pg_scheduler.jobs.worker_report import ReportedSettings
from pg_scheduler.worker import reporter as reporter_module
from pg_scheduler.worker.heartbeat import Heartbeat
from pg_scheduler.worker.reporter import Reporter
from tests.support.inside import Store, TaskOptions
from tests.support.parts import Parts
from tests.support.worker import PATIENCE, locked


async def work() -> None: ...


def reporter_of(parts: Parts, *names: str) -> Reporter:
    for name in names:
        parts.tasks.register(work, name=name)
    return parts.reporter()


async def test_names_are_written_again_only_when_they_change(parts: Parts) -> None:
    reporter = reporter_of(parts, "a")
    first = reporter.report(whole=True).names
    reporter.confirm()
    assert first is not None
    assert "a" in first
    assert reporter.report().names is None
    parts.routing.pause({"a"})
    assert reporter.report().names is None
    parts.tasks.register(work, name="b")
    assert reporter.report().names == sorted([*first, "b"])
    reporter.confirm()
    assert reporter.report().names is None
    assert reporter.report(whole=True).names == sorted([*first, "b"])


async def test_names_are_written_by_the_heartbeat_after_one_that_failed(
    touchy: Store, bus: EventBus, dsn: str
) -> None:
    parts = Parts(touchy, bus)
    reporter = reporter_of(parts, "a")
    heartbeat = Heartbeat(parts, reporter)
    await heartbeat.prepare()
    parts.tasks.register(work, name="b")
    async with locked(dsn, "scheduler_workers"):
        with pytest.raises(DatabaseUnavailableError):
            await heartbeat.run_once()
    await heartbeat.run_once()
    (row,) = await touchy.workers.list_workers()
    assert row.names is not None
    assert "b" in row.names


async def test_tasks_that_are_registered_while_a_worker_runs_are_reported_as_those_before(
    parts: Parts, store: Store, bus: EventBus
) -> None:
    """With the aliases, limits, shares, parameters and options that lists, findings and calls need."""

    def register(node: Parts) -> None:
        options = TaskOptions(limits=(Limit("mails", max_running=2),), share=Share("s", key=str))
        node.tasks.register(work, name="a", aliases=["old.a"], options=options)

    before = Parts(store, bus, "before")
    register(before)
    heartbeats = [Heartbeat(node, node.reporter()) for node in (before, parts)]
    for heartbeat in heartbeats:
        await heartbeat.prepare()
    register(parts)
    for heartbeat in heartbeats:
        await heartbeat.run_once()
    first, later = [row.settings for row in await store.workers.list_workers()]
    assert first["limits"]
    assert first == later
    report = heartbeats[1]._reporter.report()
    assert report.declared is None, "nothing is written twice"


async def test_too_many_names_are_not_reported(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    reporter = reporter_of(parts, "a", "b", "c")
    monkeypatch.setattr(reporter_module, "MAX_NAMES_BYTES", 2)
    assert reporter.report(whole=True).names is None


class Session: ...


async def invoice(
    tenant: int,
    /,
    to: str,
    copies: int = 1,
    *more: int,
    by: str,
    session: Injected[Session],
    **others: object,
) -> None: ...


async def refund(to: str, amount: int = 1, *more: int, by: str) -> None: ...


async def check() -> None: ...


async def broken() -> None: ...


broken.__signature__ = "none"  # type: ignore[attr-defined]


async def test_parameters_that_a_job_can_be_given_by_name_are_reported_once(parts: Parts) -> None:
    parts.tasks.register(invoice, name="invoice")
    parts.tasks.register(broken, name="broken")
    parts.tasks.register(refund, name="refund")
    reporter = reporter_of(parts, "work")
    reported = reporter.worker.settings["parameters"]
    assert reported["invoice"] == [("to", True), ("copies", False), ("by", True)]
    assert reported["work"] == []
    assert "broken" not in reported, "it has no signature"
    assert reporter.worker.settings["positional"] == {"refund": 2}, "the first one of an invoice has no name"
    assert "parameters" not in reporter.report(whole=True).health
    await parts.store.workers.register(reporter.worker, 60)
    (row,) = await parts.store.workers.list_workers()
    assert [*map(tuple, row.settings["parameters"]["invoice"])] == reported["invoice"]


async def test_further_parameters_are_left_out(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter_module, "MAX_PARAMETERS_BYTES", 30)
    parts.tasks.register(invoice, name="a")
    parts.tasks.register(check, name="c")
    assert list(reporter_of(parts, "b").worker.settings["parameters"]) == ["b", "c"]
    monkeypatch.setattr(reporter_module, "MAX_PARAMETERS_BYTES", 10)
    assert list(parts.reporter().worker.settings["parameters"]) == ["b"]


async def test_options_of_a_task_with_long_ones_are_left_out(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "MAX_OPTIONS_BYTES", 200)
    long_name = f"a{'b' * 200}"
    parts.tasks.register(refund, name=long_name)
    reporter = reporter_of(parts, "c")
    assert {task.name for task in parts.tasks.tasks()} == {long_name, "c"}
    assert list(reporter.worker.settings["options"]) == ["c"]


async def test_tasks_whose_options_only_the_code_applies_have_room_before_the_others(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "MAX_OPTIONS_BYTES", 250)
    for name in ("a", "b", "d"):
        parts.tasks.register(invoice, name=name)
    parts.tasks.register(check, name="z", options=TaskOptions(unique="check"))
    reported = reporter_of(parts, "c").worker.settings["options"]
    assert "z" in reported
    assert len(reported) < 5


async def test_report_has_the_alert_and_the_metadata_of_a_task(parts: Parts) -> None:
    options = TaskOptions(on_failure="page", metadata={"team": "billing"}, unique="invoice")
    parts.tasks.register(invoice, name="invoice", options=options)
    settings = reporter_of(parts, "c").worker.settings
    assert settings["options"]["invoice"]["on_failure"] == "page"
    assert settings["options"]["invoice"]["code"] == ["unique"]
    assert settings["task_metadata"] == {"invoice": {"team": "billing"}}
    reported = ReportedSettings(json.loads(json.dumps(settings))).options_of("invoice")
    assert reported is not None
    assert (reported.on_failure, reported.metadata, reported.in_code) == (
        "page",
        {"team": "billing"},
        ["unique"],
    )


async def test_long_metadata_is_left_out_and_takes_no_room_of_options(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "MAX_OPTIONS_BYTES", 500)
    parts.tasks.register(invoice, name="a", options=TaskOptions(metadata={"note": "x" * 400}))
    parts.tasks.register(check, name="b", options=TaskOptions(metadata={"team": "billing"}))
    settings = reporter_of(parts, "c").worker.settings
    assert list(settings["options"]) == ["a", "b", "c"]
    assert settings["task_metadata"] == {"b": {"team": "billing"}}
    assert ReportedSettings(settings).options_of("a").in_code == ["metadata"]  # type: ignore[union-attr]


async def test_next_heartbeat_reports_the_lag_of_the_event_loop(parts: Parts) -> None:
    reporter = reporter_of(parts)
    assert reporter.report().health["loop_lag_s"] == 0
    begin = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() < begin + 0.05:  # blocks the event loop
        pass
    await asyncio.sleep(0)
    assert 0.05 <= reporter.report().health["loop_lag_s"] < PATIENCE


async def test_heartbeat_without_a_report_leaves_the_last_one(parts: Parts) -> None:
    """The lease keeper's thread renews the lease while the event loop is blocked."""
    heartbeat = parts.heartbeat()
    await heartbeat.prepare()
    before = (await parts.store.workers.list_workers())[0]
    answer = await parts.store.workers.renew(before.worker_id, {}, 60)
    assert answer.wanted is None
    after = (await parts.store.workers.list_workers())[0]
    assert (after.state, after.health, after.names) == (before.state, before.health, before.names)
    assert after.state == "running"
