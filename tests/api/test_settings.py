"""Settings of a Scheduler, and the absence of global effects."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from pg_scheduler import (
    ConfigurationError,
    PollingConfig,
    RetryPolicy,
    Scheduler,
    VacuumConfig,
    VacuumPolicy,
    VacuumTrigger,
)
from pg_scheduler.events import JobCompleted
from tests.api.conftest import Make
from tests.support.cases import each_case
from tests.support.inside import config_of
from tests.support.worker import Gate, Recorder, holds, now


@each_case(
    ("settings", "message"),
    [
        ({"max_concurrent_jobs": 0}, r"max_concurrent_jobs must be greater than or equal to 1, not 0"),
        ({"max_concurrent_jobs": 2.5}, r"max_concurrent_jobs must be .*, not 2.5"),
        ({"max_concurrent_jobs": True}, "max_concurrent_jobs"),
        ({"batch_claim_limit": 0}, r"batch_claim_limit must be .*, not 0"),
        ({"batch_claim_limit": "10"}, "batch_claim_limit"),
        ({"misfire_grace_time": -1}, r"misfire_grace_time must be .*, not -1"),
        ({"misfire_grace_time": 2**31}, "misfire_grace_time"),
        ({"misfire_grace_time": "5"}, "misfire_grace_time"),
        ({"vacuum_enabled": "yes"}, "vacuum_enabled"),
        ({"vacuum_config": 3}, "vacuum"),
        ({"polling_config": {"min_interval": "x"}}, "polling"),
        ({"schema": ""}, "schema"),
        ({"schema": "x" * 64}, "schema"),
        ({"schema": "pg_jobs"}, "schema must not begin with pg_"),
        ({"shutdown_timeout": -1}, "shutdown_timeout"),
        ({"max_crashes": 0}, "max_crashes"),
        ({"max_crashes": 2**31}, "max_crashes"),
        ({"max_loop_block": 0}, "max_loop_block"),
        ({"max_loop_block": "600"}, "max_loop_block"),
        ({"keeper_dsn": 5}, "keeper_dsn"),
        ({"shutdown_timeout": float("nan")}, "shutdown_timeout"),
        ({"max_concurrent_jobs": 0, "batch_claim_limit": 0}, "max_concurrent_jobs.*batch_claim_limit"),
    ],
    ids=str,
)
async def test_scheduler_rejects_an_invalid_setting_with_value_and_constraint(
    pool: asyncpg.Pool, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        Scheduler(pool, **settings)
    assert isinstance(raised.value, ValueError)
    assert raised.value.__cause__ is not None


@pytest.mark.parametrize("value", [None, "postgresql://x", 3])
def test_scheduler_rejects_anything_but_a_pool(value: Any) -> None:
    with pytest.raises(TypeError, match=r"asyncpg\.Pool"):
        Scheduler(value)


async def test_scheduler_rejects_anything_but_a_retry_policy_and_unknown_settings(pool: asyncpg.Pool) -> None:
    with pytest.raises(TypeError, match="retry_policy"):
        Scheduler(pool, retry_policy="often")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="executors must be a Mapping, not list"):
        Scheduler(pool, executors=[])  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Scheduler(pool, unknown=1)  # type: ignore[call-arg]


@each_case(
    "build",
    [
        lambda: PollingConfig(min_interval=-1),
        lambda: PollingConfig(max_interval=0),
        lambda: PollingConfig(min_interval=3, max_interval=2),
        lambda: PollingConfig(backoff_multiplier=0.9),
        lambda: PollingConfig(unknown=1),  # type: ignore[call-arg]
        lambda: VacuumPolicy.after_days(-1),
        lambda: VacuumPolicy.keep_last(-1),
        lambda: VacuumPolicy(VacuumTrigger.TIME_BASED),
        lambda: VacuumPolicy(VacuumTrigger.NEVER, days=3),
        lambda: VacuumPolicy(VacuumTrigger.TIME_BASED, days=3, keep_count=1),
        lambda: VacuumConfig(interval_minutes=0),
        lambda: VacuumConfig(interval_minutes=1e12),
        lambda: VacuumConfig(completed="never"),  # type: ignore[arg-type]
        lambda: RetryPolicy(base=timedelta(0)),
        lambda: RetryPolicy(factor=0.5),
        lambda: RetryPolicy(jitter=1),
    ],
)
def test_settings_classes_reject_invalid_values_at_construction(build: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        build()


async def test_scheduler_accepts_the_positional_parameters_of_0_2(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    assert (scheduler.HEARTBEAT_THRESHOLD, scheduler.LEASE_DURATION, scheduler.WORKER_ID_LENGTH) == (
        120,
        60,
        8,
    )
    assert (scheduler.db_pool, len(scheduler.worker_id)) == (pool, 8)
    scheduler = Scheduler(pool, 5, 60, VacuumConfig(), False, 3, PollingConfig())
    config = config_of(scheduler)
    assert (config.max_concurrent_jobs, config.misfire_grace_time, config.vacuum_enabled) == (5, 60, False)
    assert config.batch_claim_limit == 3


async def test_settings_omit_the_password_of_a_dsn_in_their_repr(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool, direct_dsn="postgresql://user:secret@host/db")
    assert "secret" not in repr(config_of(scheduler))


@pytest.mark.parametrize("how", ["subclass", "instance"])
async def test_scheduler_uses_class_attributes_set_before_the_start(
    make: Make, pool: asyncpg.Pool, how: str
) -> None:
    class Quick(Scheduler):
        LEASE_DURATION = 7
        HEARTBEAT_THRESHOLD = 9
        WORKER_ID_LENGTH = 12

    scheduler: Scheduler
    if how == "subclass":
        scheduler = Quick(pool)
        assert len(scheduler.worker_id) == 12
    else:
        scheduler = Scheduler(pool)
        scheduler.LEASE_DURATION = 7  # type: ignore[misc] # documented to be settable
        scheduler.HEARTBEAT_THRESHOLD = 9  # type: ignore[misc]
    async with scheduler:
        (worker,) = await scheduler.workers()
        assert worker.lease_until - worker.last_beat == timedelta(seconds=7)
        assert config_of(scheduler).heartbeat_threshold == 9


async def test_lease_takes_precedence_over_the_class_attribute(pool: asyncpg.Pool) -> None:
    class Slow(Scheduler):
        LEASE_DURATION = 600

    async with Slow(pool, lease=timedelta(seconds=7)) as scheduler:
        (worker,) = await scheduler.workers()
        assert worker.lease_until - worker.last_beat == timedelta(seconds=7)
    assert Slow.LEASE_DURATION == 600


async def test_scheduler_rejects_an_invalid_lease(pool: asyncpg.Pool) -> None:
    assert Scheduler(pool, lease=30).LEASE_DURATION == 30
    with pytest.raises(TypeError, match="lease"):
        Scheduler(pool, lease="30")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="LEASE_DURATION must be"):
        Scheduler(pool, lease=timedelta(0))


async def test_scheduler_rejects_an_invalid_lease_duration(pool: asyncpg.Pool) -> None:
    class Invalid(Scheduler):
        LEASE_DURATION = 0

    with pytest.raises(ConfigurationError, match="LEASE_DURATION must be"):
        Invalid(pool)
    scheduler = Scheduler(pool)
    scheduler.LEASE_DURATION = -1  # type: ignore[misc]
    with pytest.raises(ConfigurationError, match="LEASE_DURATION must be"):
        await scheduler.start()
    assert not holds(scheduler.is_running)


async def test_retries_use_the_retry_policy_of_the_scheduler(make: Make) -> None:
    scheduler = make(retry_policy=RetryPolicy(timedelta(milliseconds=1), 1.0, timedelta(milliseconds=1), 0.0))
    seen = Recorder(scheduler)
    attempts = 0

    async def fail_twice() -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise ValueError

    await scheduler.start()
    await scheduler.schedule(fail_twice, execution_time=now(), max_retries=2)
    await seen.until(JobCompleted, attempt=3)


async def test_scheduler_creates_and_uses_its_tables_in_the_given_schema(
    make: Make, pool: asyncpg.Pool, open_gate: Gate
) -> None:
    schema = 'Quite "odd" 1'
    scheduler = make(schema=schema)
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.schedule(open_gate.job, execution_time=now())
    await seen.until(JobCompleted)
    assert (await scheduler.run_vacuum())["completed"] == 0
    tables = await pool.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
    assert {"scheduled_jobs", "scheduler_workers", "vacuum_stats"} <= {row[0] for row in tables}
    assert await pool.fetchval("SELECT count(*) FROM public.scheduled_jobs") == 0
    assert await pool.fetchval("SELECT count(*) FROM public.scheduler_workers") == 0


@pytest.mark.slow
def test_import_and_construction_have_no_global_effects() -> None:
    """In a separate process: no handlers, levels, signal handlers, event loop or output."""
    code = """
import asyncio, logging, signal, sys, threading
root = logging.getLogger()
before = (root.level, list(root.handlers), [signal.getsignal(s) for s in signal.valid_signals()])
hook, threads = sys.excepthook, threading.active_count()
import pg_scheduler, asyncpg
async def pool(): return asyncpg.create_pool("postgresql://nowhere", min_size=0)
loop = asyncio.new_event_loop()
made = loop.run_until_complete(pool())
loop.close()
one, two = pg_scheduler.Scheduler(made), pg_scheduler.Scheduler(made)
assert one.worker_id != two.worker_id
assert before == (root.level, list(root.handlers), [signal.getsignal(s) for s in signal.valid_signals()])
assert (hook, threads) == (sys.excepthook, threading.active_count())
logger = logging.getLogger("pg_scheduler")
assert [type(h) for h in logger.handlers] == [logging.NullHandler]
assert logger.level == logging.NOTSET and logger.propagate
assert asyncio._get_running_loop() is None
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


async def test_schedulers_do_not_share_registered_functions(make: Make) -> None:
    async def work() -> None: ...

    one, two = make(), make()
    one.register(work, name="settings.mine")
    await two.schedule_job("settings.mine", now(), {})
    assert await one.load_task_functions() == []
    assert await two.load_task_functions() == ["settings.mine"]
    assert asyncio.get_running_loop().is_running()


class Settings(BaseModel):
    """The settings of an application, which has those of its Scheduler among its own."""

    model_config = ConfigDict(frozen=True)

    polling: PollingConfig = PollingConfig()
    vacuum: VacuumConfig = VacuumConfig()


def test_a_model_of_pydantic_reads_and_writes_settings_as_json() -> None:
    text = """{"polling": {"min_interval": 1},
               "vacuum": {"completed": {"trigger": "time_based", "days": 3}, "failed": null}}"""
    settings = Settings.model_validate_json(text)
    assert settings.polling == PollingConfig(min_interval=1)
    assert settings.vacuum == VacuumConfig(completed=VacuumPolicy.after_days(3))
    assert Settings.model_validate_json(settings.model_dump_json()) == settings
    assert Settings(polling=settings.polling).polling is settings.polling
    assert Settings.model_json_schema()["$defs"]["PollingConfig"]["additionalProperties"] is False


@each_case(
    ("text", "message"),
    [
        ('{"polling": {"backoff_multiplier": 0}}', "backoff_multiplier must be greater than or equal to 1"),
        ('{"polling": {"max_interval": 0.01}}', "max_interval must be at least min_interval"),
        ('{"polling": {"max_interval": "2"}}', "valid number"),
        ('{"polling": {"interval": 1}}', "interval"),
        ('{"vacuum": {"completed": {"trigger": "time_based", "days": -1}}}', "days must be"),
    ],
    ids=str,
)
def test_a_model_of_pydantic_refuses_what_the_constructor_refuses(text: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Settings.model_validate_json(text)


class Place(str, Enum):  # noqa: UP042 - a StrEnum is formatted as its text
    """An enum of texts, whose members are formatted as their names."""

    SCHEMA = "jobs"
    ROLE = "worker"


async def test_settings_become_plain_texts_and_numbers(pool: asyncpg.Pool) -> None:
    role: Any = Place.ROLE
    config = config_of(
        Scheduler(pool, schema=Place.SCHEMA, role=role, only=[Place.ROLE], metadata={Place.SCHEMA: 1})
    )
    assert config.metadata is not None
    texts = [config.schema, config.role, *config.only, *config.metadata]
    assert texts == ["jobs", "worker", "worker", "jobs"]
    assert {type(text) for text in texts} == {str}
    seconds: Any = Decimal("0.5")
    assert type(PollingConfig(min_interval=seconds).min_interval) is float
