"""Settings: positional where 0.2 had them so, and every refusal names the value and the rule."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest
from pydantic import ValidationError

from pg_scheduler import (
    ConfigurationError,
    PollingConfig,
    RetryPolicy,
    Scheduler,
    VacuumConfig,
    VacuumPolicy,
    VacuumTrigger,
)


async def idle_pool() -> asyncpg.Pool:
    """A pool that never connects."""
    return asyncpg.create_pool("postgresql://nobody@localhost:1/none", min_size=0, max_size=2)


@pytest.fixture
def never_connected() -> asyncpg.Pool:
    return asyncio.run(idle_pool())


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("max_concurrent_jobs", 0, "greater than or equal to 1"),
        ("max_concurrent_jobs", -1, "greater than or equal to 1"),
        ("max_concurrent_jobs", 10**7, "less than or equal to 1000000"),
        ("max_concurrent_jobs", 2.5, "valid integer"),
        ("max_concurrent_jobs", "5", "valid integer"),
        ("max_concurrent_jobs", True, "valid integer"),
        ("max_concurrent_jobs", None, "valid integer"),
        ("misfire_grace_time", -1, "greater than or equal to 0"),
        ("misfire_grace_time", 2**31, "less than or equal to 2147483647"),
        ("misfire_grace_time", 1.5, "valid integer"),
        ("misfire_grace_time", True, "valid integer"),
        ("vacuum_enabled", "yes", "valid boolean"),
        ("vacuum_enabled", 1, "valid boolean"),
        ("vacuum_config", {}, "VacuumConfig"),
        ("batch_claim_limit", 0, "greater than or equal to 1"),
        ("batch_claim_limit", 10**6, "less than or equal to 100000"),
        ("polling_config", 5, "PollingConfig"),
        ("schema", "", "1 to 63 bytes"),
        ("schema", "x" * 64, "1 to 63 bytes"),
        ("schema", 5, "valid string"),
        ("max_payload_bytes", 63, "greater than or equal to 64"),
        ("max_payload_bytes", 1e6, "valid integer"),
        ("shutdown_timeout", -0.1, "greater than or equal to 0"),
        ("shutdown_timeout", float("nan"), "finite number"),
        ("shutdown_timeout", float("inf"), "finite number"),
        ("shutdown_timeout", "30", "valid number"),
    ],
)
def test_a_bad_setting_is_refused_with_its_value_and_the_rule(
    never_connected: asyncpg.Pool, name: str, value: Any, rule: str
) -> None:
    with pytest.raises(ConfigurationError, match=rule) as caught:
        Scheduler(never_connected, **{name: value})
    message = str(caught.value)
    assert name.removesuffix("_config") in message
    assert repr(value) in message
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("schema", ["é" * 32, "a\x00b", "\ud800"])
def test_a_schema_that_postgresql_cannot_name_is_refused(never_connected: asyncpg.Pool, schema: str) -> None:
    with pytest.raises(ConfigurationError, match="schema"):
        Scheduler(never_connected, schema=schema)


def test_all_bad_settings_are_named_at_once(never_connected: asyncpg.Pool) -> None:
    with pytest.raises(ConfigurationError, match=r"max_concurrent_jobs = 0: .*; batch_claim_limit = -5: "):
        Scheduler(never_connected, max_concurrent_jobs=0, batch_claim_limit=-5)


def test_unknown_settings_are_refused(never_connected: asyncpg.Pool) -> None:
    with pytest.raises(TypeError, match="max_jobs"):
        Scheduler(never_connected, max_jobs=5)  # type: ignore[call-arg]


@pytest.mark.parametrize("pool", [None, "postgresql://", object()])
def test_only_a_pool_is_one(pool: Any) -> None:
    with pytest.raises(TypeError, match=r"db_pool must be an asyncpg\.Pool"):
        Scheduler(pool)


def test_other_kinds_are_refused(never_connected: asyncpg.Pool) -> None:
    with pytest.raises(TypeError, match="retry_policy must be a RetryPolicy, not int: 5"):
        Scheduler(never_connected, retry_policy=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("LEASE_DURATION", 0, ConfigurationError),
        ("LEASE_DURATION", -1, ConfigurationError),
        ("LEASE_DURATION", float("inf"), ConfigurationError),
        ("HEARTBEAT_THRESHOLD", 0, ConfigurationError),
        ("WORKER_ID_LENGTH", 0, ConfigurationError),
        ("WORKER_ID_LENGTH", 4.5, TypeError),
    ],
)
def test_bad_class_attributes_are_refused(
    never_connected: asyncpg.Pool, name: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        type("Ours", (Scheduler,), {name: value})(never_connected)


def test_settings_are_positional_where_0_2_had_them_so(never_connected: asyncpg.Pool) -> None:
    vacuum, polling = VacuumConfig(interval_minutes=5), PollingConfig(max_interval=5)
    config = Scheduler(never_connected, 7, 60, vacuum, False, 3, polling)._config
    assert (config.max_concurrent_jobs, config.misfire_grace_time, config.vacuum_enabled) == (7, 60, False)
    assert (config.batch_claim_limit, config.vacuum, config.polling) == (3, vacuum, polling)
    with pytest.raises(TypeError):
        Scheduler(never_connected, 7, 60, vacuum, False, 3, polling, "schema")  # type: ignore[call-arg]


def test_whole_seconds_are_numbers_too(never_connected: asyncpg.Pool) -> None:
    config = Scheduler(never_connected, shutdown_timeout=0, misfire_grace_time=None)._config
    assert (config.shutdown_timeout, config.misfire_grace_time) == (0, None)


def test_a_dsn_with_its_password_is_not_shown(never_connected: asyncpg.Pool) -> None:
    config = Scheduler(never_connected, direct_dsn="postgresql://me:secret@db/x")._config
    assert "secret" not in repr(config)


def test_polling_defaults() -> None:
    assert PollingConfig() == PollingConfig(0.05, 2.0, 1.5, 0.5, 1.0, True)


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"min_interval": -1}, r"greater than or equal to 0.*input_value=-1"),
        ({"max_interval": 0}, r"greater than 0"),
        ({"max_interval": float("inf")}, r"finite number"),
        ({"backoff_multiplier": 0.9}, r"greater than or equal to 1.*input_value=0\.9"),
        ({"idle_start_interval": -0.1}, r"greater than or equal to 0"),
        ({"semaphore_full_interval": "1"}, r"valid number.*input_value='1'"),
        ({"jitter": 1}, r"valid boolean"),
        (
            {"min_interval": 3, "max_interval": 2},
            r"max_interval must be at least min_interval, not 2\.0 < 3\.0",
        ),
        ({"speed": 1}, r"speed[\s\S]*Unexpected keyword argument"),
    ],
)
def test_bad_polling_is_refused(values: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){rule}"):
        PollingConfig(**values)


def test_vacuum_policies() -> None:
    assert VacuumPolicy.immediate() == VacuumPolicy(VacuumTrigger.IMMEDIATE)
    assert VacuumPolicy.after_days(1) == VacuumPolicy(VacuumTrigger.TIME_BASED, 1)
    assert VacuumPolicy.after_days(0.5).days == 0.5
    assert VacuumPolicy.keep_last(3) == VacuumPolicy(VacuumTrigger.COUNT_BASED, None, 3)
    assert VacuumPolicy.never() == VacuumPolicy(VacuumTrigger.NEVER)
    assert {each.name: each.value for each in VacuumTrigger} == {
        "IMMEDIATE": "immediate",
        "TIME_BASED": "time_based",
        "COUNT_BASED": "count_based",
        "NEVER": "never",
    }


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ((VacuumTrigger.TIME_BASED,), r"days goes with VacuumTrigger\.TIME_BASED and only with it"),
        ((VacuumTrigger.COUNT_BASED,), r"keep_count goes with VacuumTrigger\.COUNT_BASED"),
        ((VacuumTrigger.TIME_BASED, 1, 1), r"keep_count goes with"),
        ((VacuumTrigger.NEVER, 1), r"days goes with"),
        ((VacuumTrigger.IMMEDIATE, None, 1), r"keep_count goes with"),
        ((VacuumTrigger.TIME_BASED, -1), r"greater than or equal to 0"),
        ((VacuumTrigger.TIME_BASED, 10**6), r"less than or equal to 100000"),
        ((VacuumTrigger.TIME_BASED, True), r"valid number"),
        ((VacuumTrigger.COUNT_BASED, None, -1), r"greater than or equal to 0"),
        ((VacuumTrigger.COUNT_BASED, None, 1.5), r"valid integer"),
        (("sometimes",), r"VacuumTrigger|instance"),
    ],
)
def test_bad_policies_are_refused(values: tuple[Any, ...], rule: str) -> None:
    with pytest.raises(ValidationError, match=rule):
        VacuumPolicy(*values)


def test_vacuum_defaults() -> None:
    config = VacuumConfig()
    assert (config.completed, config.failed) == (VacuumPolicy.after_days(1), VacuumPolicy.after_days(7))
    assert (config.cancelled, config.expired) == (VacuumPolicy.after_days(3), VacuumPolicy.after_days(7))
    assert (config.interval_minutes, config.track_metrics) == (60, False)
    never = VacuumPolicy.never()
    assert VacuumConfig(never, never, never, 5, True).cancelled == never


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"completed": 1}, "VacuumPolicy"),
        ({"interval_minutes": 0}, "greater than 0"),
        ({"track_metrics": "no"}, "valid boolean"),
        ({"finished": VacuumPolicy.never()}, "Unexpected keyword argument"),
    ],
)
def test_bad_vacuum_settings_are_refused(values: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValidationError, match=rule):
        VacuumConfig(**values)


@pytest.mark.parametrize("value", [PollingConfig(), VacuumConfig(), VacuumPolicy.never(), RetryPolicy()])
def test_settings_are_frozen(value: Any) -> None:
    name = next(iter(value.__dataclass_fields__))
    with pytest.raises(AttributeError):
        setattr(value, name, None)
    assert hash(value) == hash(
        type(value)(**{each: getattr(value, each) for each in value.__dataclass_fields__})
    )
