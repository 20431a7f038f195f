"""Settings: positional as in 0.2, and every error names the setting, the value and the constraint."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    ConfigurationError,
    PollingConfig,
    RetryPolicy,
    Scheduler,
    VacuumConfig,
    VacuumPolicy,
    VacuumTrigger,
)
from tests.support.cases import each_case
from tests.support.inside import config_of


async def idle_pool() -> asyncpg.Pool:
    """A pool that never connects."""
    return asyncpg.create_pool("postgresql://nobody@localhost:1/none", min_size=0, max_size=2)


@pytest.fixture
def never_connected() -> asyncpg.Pool:
    return asyncio.run(idle_pool())


@each_case(
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
        ("migrations", "none", "'apply' or 'verify'"),
    ],
)
def test_scheduler_raises_with_name_value_and_constraint_when_a_setting_is_invalid(
    never_connected: asyncpg.Pool, name: str, value: Any, rule: str
) -> None:
    with pytest.raises(ConfigurationError, match=rule) as caught:
        Scheduler(never_connected, **{name: value})
    message = str(caught.value)
    assert message.startswith(f"{name} must ")
    assert repr(value) in message
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("schema", ["é" * 32, "a\x00b", "\ud800"])
def test_scheduler_raises_when_postgresql_cannot_store_the_schema_name(
    never_connected: asyncpg.Pool, schema: str
) -> None:
    with pytest.raises(ConfigurationError, match="schema"):
        Scheduler(never_connected, schema=schema)


def test_scheduler_names_every_invalid_setting_when_there_are_several(never_connected: asyncpg.Pool) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^max_concurrent_jobs must .*, not 0; batch_claim_limit must .*, not -5$"
    ):
        Scheduler(never_connected, max_concurrent_jobs=0, batch_claim_limit=-5)


def test_scheduler_raises_type_error_when_a_setting_is_unknown(never_connected: asyncpg.Pool) -> None:
    with pytest.raises(TypeError, match="max_jobs"):
        Scheduler(never_connected, max_jobs=5)  # type: ignore[call-arg]


@pytest.mark.parametrize("pool", [None, "postgresql://", object()])
def test_scheduler_raises_type_error_when_db_pool_is_not_a_pool(pool: Any) -> None:
    with pytest.raises(TypeError, match=r"db_pool must be an asyncpg\.Pool"):
        Scheduler(pool)


def test_scheduler_raises_type_error_when_retry_policy_is_not_one(never_connected: asyncpg.Pool) -> None:
    with pytest.raises(TypeError, match="retry_policy must be a RetryPolicy, not int: 5"):
        Scheduler(never_connected, retry_policy=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("LEASE_DURATION", 0, ConfigurationError),
        ("LEASE_DURATION", -1, ConfigurationError),
        ("LEASE_DURATION", float("inf"), ConfigurationError),
        ("LEASE_DURATION", 1e-6, ConfigurationError),
        ("LEASE_DURATION", 1e9, ConfigurationError),
        ("HEARTBEAT_THRESHOLD", 0, ConfigurationError),
        ("WORKER_ID_LENGTH", 0, ConfigurationError),
        ("WORKER_ID_LENGTH", 4.5, TypeError),
    ],
)
def test_scheduler_raises_when_a_class_attribute_is_invalid(
    never_connected: asyncpg.Pool, name: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=name):
        type("Ours", (Scheduler,), {name: value})(never_connected)


def test_settings_are_positional_as_in_0_2(never_connected: asyncpg.Pool) -> None:
    vacuum, polling = VacuumConfig(interval_minutes=5), PollingConfig(max_interval=5)
    config = config_of(Scheduler(never_connected, 7, 60, vacuum, False, 3, polling))
    assert (config.max_concurrent_jobs, config.misfire_grace_time, config.vacuum_enabled) == (7, 60, False)
    assert (config.batch_claim_limit, config.vacuum, config.polling) == (3, vacuum, polling)
    with pytest.raises(TypeError):
        Scheduler(never_connected, 7, 60, vacuum, False, 3, polling, "schema")  # type: ignore[call-arg]


def test_scheduler_accepts_an_int_for_seconds(never_connected: asyncpg.Pool) -> None:
    config = config_of(Scheduler(never_connected, shutdown_timeout=0, misfire_grace_time=None))
    assert (config.shutdown_timeout, config.misfire_grace_time) == (0, None)


def test_password_of_a_dsn_is_hidden_in_repr_and_errors(never_connected: asyncpg.Pool) -> None:
    config = config_of(Scheduler(never_connected, direct_dsn="postgresql://me:secret@db/x"))
    assert "secret" not in repr(config)
    with pytest.raises(ConfigurationError) as caught:
        Scheduler(never_connected, keeper_dsn=b"postgresql://me:secret@db/x")  # type: ignore[arg-type]
    assert str(caught.value) == "keeper_dsn must be a valid string, not ***"


def test_polling_config_has_the_defaults_of_0_2() -> None:
    assert PollingConfig() == PollingConfig(0.05, 2.0, 1.5, 0.5, 1.0, True)


@each_case(
    ("values", "rule"),
    [
        ({"min_interval": -1}, r"^min_interval must be greater than or equal to 0, not -1$"),
        ({"max_interval": 0}, r"greater than 0"),
        ({"max_interval": float("inf")}, r"finite number"),
        ({"backoff_multiplier": 0.9}, r"^backoff_multiplier must be greater than or equal to 1, not 0\.9$"),
        ({"idle_start_interval": -0.1}, r"greater than or equal to 0"),
        ({"semaphore_full_interval": "1"}, r"valid number, not '1'$"),
        ({"jitter": 1}, r"valid boolean"),
        (
            {"min_interval": 3, "max_interval": 2},
            r"^max_interval must be at least min_interval = 3\.0, not 2\.0$",
        ),
        ({"speed": 1}, r"^speed is not a setting of PollingConfig$"),
    ],
)
def test_polling_config_raises_when_a_value_is_invalid(values: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule):
        PollingConfig(**values)


def test_vacuum_policy_constructors_set_trigger_and_value() -> None:
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


@each_case(
    ("values", "rule"),
    [
        ((), r"^VacuumPolicy requires trigger=$"),
        ((VacuumTrigger.NEVER, None, None, 4), r"^VacuumPolicy takes fewer positional settings; remove 4$"),
        ((VacuumTrigger.TIME_BASED,), r"^days must be given with VacuumTrigger\.TIME_BASED, not None$"),
        ((VacuumTrigger.COUNT_BASED,), r"keep_count must be given with VacuumTrigger\.COUNT_BASED"),
        (
            (VacuumTrigger.TIME_BASED, 1, 1),
            r"^keep_count must be None with VacuumTrigger\.TIME_BASED, not 1$",
        ),
        ((VacuumTrigger.NEVER, 1), r"days must be None"),
        ((VacuumTrigger.IMMEDIATE, None, 1), r"keep_count must be None"),
        ((VacuumTrigger.TIME_BASED, -1), r"greater than or equal to 0"),
        ((VacuumTrigger.TIME_BASED, 10**6), r"less than or equal to 100000"),
        ((VacuumTrigger.TIME_BASED, True), r"valid number"),
        ((VacuumTrigger.COUNT_BASED, None, -1), r"greater than or equal to 0"),
        ((VacuumTrigger.COUNT_BASED, None, 1.5), r"valid integer"),
        (("sometimes",), r"VacuumTrigger|instance"),
    ],
)
def test_vacuum_policy_raises_when_a_value_is_invalid(values: tuple[Any, ...], rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule):
        VacuumPolicy(*values)


@pytest.mark.parametrize("values", [{}, dict.fromkeys(["completed", "failed", "cancelled", "expired"])])
def test_vacuum_config_uses_the_default_when_a_policy_is_none_or_missing(values: dict[str, Any]) -> None:
    config = VacuumConfig(**values)
    assert (config.completed, config.failed) == (VacuumPolicy.after_days(1), VacuumPolicy.after_days(7))
    assert (config.cancelled, config.expired) == (VacuumPolicy.after_days(3), VacuumPolicy.after_days(7))
    assert (config.interval_minutes, config.track_metrics) == (60, False)


def test_vacuum_config_is_positional_as_in_0_2() -> None:
    never = VacuumPolicy.never()
    assert VacuumConfig(never, never, never, 5, True).cancelled == never


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"completed": 1}, "VacuumPolicy"),
        ({"interval_minutes": 0}, "greater than 0"),
        ({"track_metrics": "no"}, "valid boolean"),
        ({"finished": VacuumPolicy.never()}, "finished is not a setting of VacuumConfig"),
    ],
)
def test_vacuum_config_raises_when_a_value_is_invalid(values: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule):
        VacuumConfig(**values)


@pytest.mark.parametrize("value", [PollingConfig(), VacuumConfig(), VacuumPolicy.never(), RetryPolicy()])
def test_settings_are_frozen(value: Any) -> None:
    name = next(iter(value.__dataclass_fields__))
    with pytest.raises(AttributeError):
        setattr(value, name, None)
    assert hash(value) == hash(
        type(value)(**{each: getattr(value, each) for each in value.__dataclass_fields__})
    )
