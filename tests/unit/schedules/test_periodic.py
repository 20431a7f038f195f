"""@periodic: its parameters, its defaults and its errors."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pg_scheduler.errors import NameConflictError
from pg_scheduler.jobs.model import JobFunction, JobPriority
from pg_scheduler.schedules import declared as module
from pg_scheduler.schedules import decorator
from pg_scheduler.schedules.declared import PeriodicJobConfig
from pg_scheduler.schedules.decorator import periodic
from pg_scheduler.schedules.job_builder import advisory_lock_key
from pg_scheduler.triggers.cron import Cron
from pg_scheduler.triggers.interval import Every
from tests.support.cases import each_case
from tests.support.inside import PeriodicCatalogue, TaskRegistry

HOUR = timedelta(hours=1)
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def make(name: str = "sweep", place: str = "app.jobs") -> JobFunction:
    """A coroutine function of that name in that module."""

    async def func() -> None: ...

    func.__module__, func.__name__, func.__qualname__ = place, name, name
    return func


@pytest.fixture(autouse=True)
def catalogues(monkeypatch: pytest.MonkeyPatch) -> tuple[PeriodicCatalogue, TaskRegistry]:
    """Replace the global catalogues by empty ones."""
    schedules, tasks = PeriodicCatalogue(), TaskRegistry()
    monkeypatch.setattr(decorator, "periodic_catalogue", schedules)
    monkeypatch.setattr(module, "catalogue", tasks)
    return schedules, tasks


@pytest.fixture
def schedules(catalogues: tuple[PeriodicCatalogue, TaskRegistry]) -> PeriodicCatalogue:
    return catalogues[0]


@pytest.fixture
def tasks(catalogues: tuple[PeriodicCatalogue, TaskRegistry]) -> TaskRegistry:
    return catalogues[1]


def only(schedules: PeriodicCatalogue) -> PeriodicJobConfig:
    (config,) = schedules.configs().values()
    return config


def test_periodic_returns_the_function_and_registers_it(
    schedules: PeriodicCatalogue, tasks: TaskRegistry
) -> None:
    sweep = make()
    assert periodic(every=HOUR)(sweep) is sweep
    config = only(schedules)
    assert schedules.configs() == {config.dedup_key: config}
    task = tasks.resolve("app.jobs.sweep")
    assert task
    assert task.func is sweep
    assert tasks.resolve("periodic_sweep") is tasks.resolve("sweep") is task


def test_periodic_fills_in_the_defaults(schedules: PeriodicCatalogue) -> None:
    periodic(HOUR)(make())
    config = only(schedules)
    assert (config.interval, config.cron, config.timezone) == (HOUR, None, None)
    assert (config.use_advisory_lock, config.enabled, config.max_retries) == (False, True, 0)
    assert config.priority is JobPriority.NORMAL
    assert (config.job_name, config.function) == ("periodic_sweep", "app.jobs.sweep")
    assert config.trigger == Every(HOUR)
    assert config.derived_key
    assert not config.named


def test_periodic_keeps_every_given_value(schedules: PeriodicCatalogue, tasks: TaskRegistry) -> None:
    sweep = make()
    periodic(None, "0 3 * * *", "Asia/Kathmandu", True, JobPriority.LOW, 2, "nightly", "key", False)(sweep)
    config = only(schedules)
    assert config == PeriodicJobConfig(
        func=sweep,
        cron="0 3 * * *",
        timezone=ZoneInfo("Asia/Kathmandu"),
        use_advisory_lock=True,
        priority=JobPriority.LOW,
        max_retries=2,
        job_name="nightly",
        dedup_key="key",
        enabled=False,
    )
    assert config.trigger == Cron("0 3 * * *", "Asia/Kathmandu")
    assert config.named
    assert not config.derived_key
    assert tasks.resolve("nightly")


def test_cron_uses_utc_when_no_time_zone_is_given(schedules: PeriodicCatalogue) -> None:
    periodic(cron="0 3 * * *")(make())
    assert only(schedules).timezone is UTC
    assert only(schedules).trigger == Cron("0 3 * * *")


def test_periodic_converts_bounds_to_utc_and_jitter_to_seconds(schedules: PeriodicCatalogue) -> None:
    start = NOON.astimezone(ZoneInfo("Asia/Kathmandu"))
    periodic(HOUR, start=start, end=start, jitter=timedelta(minutes=1.5), pause_after_failures=1)(make())
    config = only(schedules)
    assert (config.start, config.end) == (NOON, NOON)
    assert config.jitter_seconds == 90


def test_periodic_config_is_frozen(schedules: PeriodicCatalogue) -> None:
    periodic(HOUR)(make())
    with pytest.raises(FrozenInstanceError):
        only(schedules).enabled = False  # type: ignore[misc]


@each_case(
    ("values", "error", "rule"),
    [
        ({}, ValueError, "Either every= or cron= must be given"),
        ({"every": HOUR, "cron": "* * * * *"}, ValueError, "Either every= or cron= must be given, not both"),
        ({"every": timedelta(0)}, ValueError, "positive timedelta, .* not datetime"),
        ({"every": -HOUR}, ValueError, "positive timedelta, .* not datetime"),
        ({"every": timedelta.max}, ValueError, "every"),
        ({"every": 60}, ValueError, "every must be a timedelta, not int"),
        ({"every": HOUR, "timezone": "UTC"}, ValueError, "timezone='UTC' requires cron="),
        ({"cron": "every day"}, ValueError, "every day"),
        ({"cron": "0 0 31 2 *"}, ValueError, "0 0 31 2"),
        ({"cron": 5}, ValueError, "5"),
        ({"cron": "0 3 * * *", "timezone": "Mars/Olympus"}, ValueError, "Invalid timezone 'Mars/Olympus'"),
        ({"every": HOUR, "job_name": ""}, ValueError, "job_name must be a str of 1 to 1000 characters"),
        ({"every": HOUR, "job_name": "a\x00"}, ValueError, r"not 'a\\x00'"),
        ({"every": HOUR, "job_name": "\ud800"}, ValueError, r"'\\ud800'"),
        ({"every": HOUR, "job_name": 5}, ValueError, "job_name must be a str .* not 5"),
        ({"every": HOUR, "dedup_key": ""}, ValueError, "dedup_key must be a str of 1 to 200 characters"),
        ({"every": HOUR, "dedup_key": "k" * 201}, ValueError, "dedup_key must be a str of 1 to 200"),
        ({"every": HOUR, "dedup_key": "a\x00"}, ValueError, "without NUL"),
        ({"every": HOUR, "dedup_key": "\ud800"}, ValueError, r"dedup_key .*'\\ud800'"),
        ({"every": HOUR, "max_retries": -1}, ValueError, "max_retries must be between 0 and"),
        ({"every": HOUR, "max_retries": True}, ValueError, "max_retries must be an int, not bool"),
        ({"every": HOUR, "priority": 5}, ValueError, "priority must be a JobPriority, not int: 5"),
        ({"every": HOUR, "enabled": "yes"}, ValueError, "enabled must be a bool, not str"),
        ({"every": HOUR, "use_advisory_lock": 1}, ValueError, "use_advisory_lock must be a bool, not int"),
        ({"every": HOUR, "start": "soon"}, ValueError, "start must be a datetime, not str"),
        ({"every": HOUR, "end": datetime(2030, 1, 1)}, ValueError, "end .* has no time zone"),  # noqa: DTZ001
        ({"every": HOUR, "start": NOON, "end": NOON - HOUR}, ValueError, "end .* is before start .*; pass"),
        ({"every": HOUR, "pause_after_failures": 0}, ValueError, "pause_after_failures must be between 1"),
        ({"every": HOUR, "jitter": "1"}, ValueError, "jitter must be seconds or a timedelta, not str"),
        ({"every": HOUR, "jitter": -HOUR}, ValueError, "jitter must be between 0"),
    ],
)
def test_periodic_raises_and_registers_nothing_when_a_parameter_is_invalid(
    values: dict[str, Any],
    error: type[Exception],
    rule: str,
    schedules: PeriodicCatalogue,
    tasks: TaskRegistry,
) -> None:
    with pytest.raises(error, match=rule):
        periodic(**values)(make())
    assert schedules.configs() == {}
    assert tasks.lists.names == []


def test_periodic_raises_before_it_decorates_when_the_schedule_is_invalid() -> None:
    for values in ({"cron": "nonsense"}, {"every": timedelta(0)}, {"every": HOUR, "dedup_key": ""}):
        with pytest.raises(ValueError, match=r"nonsense|positive|dedup_key"):
            periodic(**values)


@pytest.mark.parametrize("func", [len, lambda: None, "work", None])
def test_periodic_raises_type_error_when_it_decorates_no_function(func: Any) -> None:
    with pytest.raises(TypeError, match=r"^Expected an async function "):
        periodic(every=HOUR)(func)


def test_periodic_raises_when_it_is_used_without_parentheses() -> None:
    with pytest.raises(ValueError, match=r"^@periodic has no schedule for <function .*; write @periodic\("):
        periodic(make())  # type: ignore[arg-type]


def test_derived_keys_differ_between_functions_and_schedules(schedules: PeriodicCatalogue) -> None:
    for func in (make(), make("other"), make("sweep", "app.more")):
        periodic(HOUR)(func)
        periodic(2 * HOUR)(func)
        periodic(cron="0 * * * *")(func)
        periodic(cron="0 * * * *", timezone="Asia/Kathmandu")(func)
    keys = list(schedules.configs())
    assert len(keys) == 12
    assert all(len(key) == 16 and set(key) <= set("0123456789abcdef") for key in keys)


def test_derived_key_depends_on_function_and_schedule_only() -> None:
    plain = PeriodicJobConfig(make(), HOUR)
    same = PeriodicJobConfig(
        make(),
        timedelta(minutes=60),
        priority=JobPriority.LOW,
        max_retries=3,
        job_name="named",
        enabled=False,
    )
    assert plain.dedup_key == same.dedup_key
    zone = PeriodicJobConfig(make(), cron="0 3 * * *", timezone="Europe/Berlin")
    assert (
        zone.dedup_key
        == PeriodicJobConfig(make(), cron="0 3 * * *", timezone=ZoneInfo("Europe/Berlin")).dedup_key
    )


def test_derived_keys_are_the_same_in_every_process() -> None:
    code = (
        "from datetime import timedelta\n"
        "from pg_scheduler.schedules.job_builder import advisory_lock_key\n"
        "from pg_scheduler.schedules.declared import PeriodicJobConfig\n"
        "async def sweep(): ...\n"
        "sweep.__module__ = 'app.jobs'\n"
        "key = PeriodicJobConfig(sweep, timedelta(hours=1)).dedup_key\n"
        "print(key, advisory_lock_key(key))\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env={"PYTHONHASHSEED": "7"}
    ).stdout.split()
    key = PeriodicJobConfig(make(), HOUR).dedup_key
    assert printed == [key, str(advisory_lock_key(key))]


def test_advisory_lock_key_is_a_signed_64_bit_integer() -> None:
    keys = [advisory_lock_key(f"key {n}") for n in range(200)]
    assert len(set(keys)) == 200
    assert all(-(2**63) <= key < 2**63 for key in keys)
    assert min(keys) < 0 < max(keys)


def test_functions_of_the_same_name_have_separate_schedules_and_names(
    schedules: PeriodicCatalogue, tasks: TaskRegistry
) -> None:
    periodic(HOUR)(make("sweep", "a"))
    periodic(HOUR)(make("sweep", "b"))
    assert {config.function for config in schedules.configs().values()} == {"a.sweep", "b.sweep"}
    assert {config.job_name for config in schedules.configs().values()} == {"periodic_sweep"}
    assert tasks.resolve("periodic_sweep") is None
    assert tasks.resolve("a.sweep")


def test_one_function_can_have_several_schedules(schedules: PeriodicCatalogue) -> None:
    sweep = make()
    periodic(HOUR)(periodic(cron="30 * * * *")(sweep))
    assert {config.func for config in schedules.configs().values()} == {sweep}
    assert len(schedules.configs()) == 2


def test_dedup_key_is_rejected_when_another_function_has_it(schedules: PeriodicCatalogue) -> None:
    periodic(HOUR, dedup_key="key")(make("one"))
    with pytest.raises(ValueError, match=r"'key' already belongs to app\.jobs\.one; .* for app\.jobs\.two"):
        periodic(HOUR, dedup_key="key")(make("two"))
    assert only(schedules).function == "app.jobs.one"


@pytest.mark.parametrize(
    "options",
    [
        {"jitter": timedelta(minutes=1)},
        {"start": datetime(2030, 1, 1, tzinfo=UTC)},
        {"end": datetime(2030, 1, 1, tzinfo=UTC)},
        {"priority": JobPriority.HIGH},
        {"enabled": False},
    ],
    ids=lambda options: next(iter(options)),
)
def test_second_schedule_of_a_function_needs_a_key_if_its_trigger_is_the_same(
    schedules: PeriodicCatalogue, options: dict[str, Any]
) -> None:
    sweep = make()
    periodic(HOUR)(sweep)
    with pytest.raises(ValueError, match=r"already has a schedule of this trigger.* pass another dedup_key="):
        periodic(HOUR, **options)(sweep)
    assert only(schedules) == PeriodicJobConfig(sweep, HOUR)
    # The same decorator once more changes nothing.
    periodic(HOUR)(sweep)
    periodic(HOUR, dedup_key="second", **options)(sweep)
    assert len(schedules.configs()) == 2


def test_given_job_name_is_rejected_when_another_function_has_it(schedules: PeriodicCatalogue) -> None:
    periodic(HOUR, job_name="nightly")(make("one"))
    with pytest.raises(NameConflictError, match="'nightly'"):
        periodic(HOUR, job_name="nightly")(make("two"))
    assert only(schedules).function == "app.jobs.one"


def test_default_job_name_resolves_for_jobs_of_0_2_when_a_job_name_is_given(tasks: TaskRegistry) -> None:
    periodic(HOUR, job_name="nightly")(make("sweep", "a"))
    task = tasks.resolve("nightly")
    assert task
    assert tasks.resolve("periodic_sweep") is task
    periodic(HOUR)(make("sweep", "b"))
    assert tasks.resolve("periodic_sweep") is None


def test_reloaded_module_replaces_its_schedule(schedules: PeriodicCatalogue) -> None:
    periodic(HOUR, dedup_key="key")(make())
    version, fresh = schedules.version, make()
    periodic(2 * HOUR, dedup_key="key")(fresh)
    assert only(schedules).func is fresh
    assert only(schedules).interval == 2 * HOUR
    assert schedules.version > version


def test_catalogue_returns_copies_and_can_be_cleared(schedules: PeriodicCatalogue) -> None:
    periodic(HOUR)(make())
    version = schedules.version
    schedules.configs().clear()
    assert schedules.configs()
    schedules.clear()
    assert schedules.configs() == {}
    assert schedules.version > version
