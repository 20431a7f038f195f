"""What workers report, as readers get it: a value of another type counts as not reported."""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pg_scheduler.jobs.limits import LimitNumbers
from pg_scheduler.jobs.worker_report import (
    DECLARED,
    DECLARED_FUNCTIONS,
    LoopBlock,
    Parameter,
    PoolUse,
    ReportedHealth,
    ReportedLimit,
    ReportedOptions,
    ReportedRetention,
    ReportedSettings,
    ReportedShare,
)
from tests.support.cases import each_case

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.just(10**400),
        st.floats(),
        st.sampled_from(("", "a", "failed", "never")),
    ),
    lambda values: st.one_of(
        st.lists(values, max_size=3),
        st.dictionaries(st.sampled_from(("a", "name", "task", "days", "failed", "code")), values, max_size=3),
    ),
    max_leaves=6,
)

HEALTH_KEYS = (
    *("pool", "loop_lag_s", "is_listening", "has_liveness_lock", "is_logger_disabled", "clock_offset_s"),
    *("loop_blocked_s", "blocking_job_id", "last_blocked", "missing_executors", "unknown_zones"),
    "refused_claims",
)
SETTINGS_KEYS = (
    *("aliases", "limits", "shares", "statistics", "tzdata", "code", DECLARED, DECLARED_FUNCTIONS),
    *("vacuum", "vacuum_enabled", "options", "task_metadata", "parameters", "positional"),
)


@given(st.dictionaries(st.sampled_from(HEALTH_KEYS), VALUES))
def test_any_health_is_read(values: dict[str, Any]) -> None:
    health = ReportedHealth.of(values)
    for number in (*astuple(health.pool), health.loop_lag_s):
        assert number is None or number >= 0
    for block in filter(None, (health.block, health.last_block)):
        assert block.seconds >= 0
        assert block.job_id is None or isinstance(block.job_id, str)
    for texts in (health.missing_executors, health.unknown_zones, health.refused_claims):
        assert all(isinstance(text, str) for text in texts.values())


@given(st.dictionaries(st.sampled_from(SETTINGS_KEYS), VALUES))
def test_any_settings_are_read(values: dict[str, Any]) -> None:
    settings = ReportedSettings(values)
    assert all(isinstance(task, str) for task in settings.aliases.values())
    for limit in settings.limits:
        assert (limit.numbers.max_starts is None) == (limit.numbers.per_s is None)
    assert all(isinstance(share.name, str) for share in settings.shares)
    assert all(isinstance(schedule_id, str) for schedule_id in settings.declared_ids)
    assert all(isinstance(name, str) for names in settings.fingerprints.values() for name in names)
    days = settings.retention_of("failed").days
    assert days is None or days >= 0
    assert settings.positional_of("a") >= 0
    assert settings.parameters_of("a") is None or "a" in values["parameters"]
    assert settings.options_of("a") is None or "a" in values["options"]
    assert settings.zone_data is None or settings.zone_data


def test_whole_report_is_read() -> None:
    health = ReportedHealth.of(
        {
            "pool": {"size": 3, "idle": 1, "max": 5},
            "loop_lag_s": 0,
            "is_listening": True,
            "has_liveness_lock": False,
            "is_logger_disabled": True,
            "clock_offset_s": -1.8e9,
            "loop_blocked_s": 4.5,
            "blocking_job_id": "a",
            "blocking_job_name": "x",
            "last_blocked": {"seconds": 9, "job_id": None, "job_name": None},
            "missing_executors": {"x": "gpu"},
            "unknown_zones": {"a": "Europe/Kyiv"},
            "refused_claims": {"job": "P0001"},
            "refused_names": ["a", 7],
            "of a later release": [],
        }
    )
    assert health == ReportedHealth(
        pool=PoolUse(3, 1, 5),
        loop_lag_s=0.0,
        is_listening=True,
        has_liveness_lock=False,
        is_logger_disabled=True,
        clock_offset_s=-1.8e9,
        block=LoopBlock(4.5, "a", "x", names_culprit=True),
        last_block=LoopBlock(9.0, None, None, names_culprit=True),
        missing_executors={"x": "gpu"},
        unknown_zones={"a": "Europe/Kyiv"},
        refused_claims={"job": "P0001"},
        refused_names=("a",),
    )
    assert health.without_names() == ReportedHealth(
        pool=PoolUse(3, 1, 5),
        loop_lag_s=0.0,
        is_listening=True,
        has_liveness_lock=False,
        is_logger_disabled=True,
        clock_offset_s=-1.8e9,
        block=LoopBlock(4.5, None, None, names_culprit=False),
        last_block=LoopBlock(9.0, None, None, names_culprit=False),
    )
    limit = {"name": "l", "task": "x", "by_key": True, "max_running": 2, "max_starts": 9, "per_s": 60.0}
    settings = ReportedSettings(
        {
            "aliases": {"old": "x"},
            "limits": [{**limit, "spread": True}, {**limit, "per_s": None}],
            "shares": [{"name": "s", "task": "x"}],
            "statistics": False,
            "tzdata": "2026a",
            "code": {"cpython-311": {"x": "ab"}},
            DECLARED: ["a"],
            DECLARED_FUNCTIONS: {"a": {}},
            "vacuum": {"failed": {"trigger": "time_based", "days": 30}},
            "vacuum_enabled": True,
            "options": {"x": {"priority": 1, "timeout": None, "max_retries": "x", "code": ["unique", "y"]}},
            "parameters": {"x": [["n", True], ["n"], 7]},
            "positional": {"x": 1},
        }
    )
    assert settings.aliases == {"old": "x"}
    assert list(settings.limits) == [
        ReportedLimit("l", "x", by_key=True, numbers=LimitNumbers(2, 9, 60.0), spread=True),
        ReportedLimit("l", "x", by_key=True, numbers=LimitNumbers(2, None, None), spread=False),
    ]
    assert list(settings.shares) == [ReportedShare("s", "x")]
    assert not settings.counts_attempts
    assert settings.zone_data == "2026a"
    assert settings.fingerprints == {"cpython-311": {"x": "ab"}}
    assert (settings.declared_ids, settings.declared_functions) == (["a"], {"a": {}})
    assert settings.retention_of("failed") == ReportedRetention(30.0, deletes=True)
    assert settings.options_of("x") == ReportedOptions({"priority": 1, "timeout": None}, ["unique"])
    assert settings.parameters_of("x") == [Parameter("n", is_required=True)]
    assert settings.positional_of("x") == 1


@each_case(
    "options",
    [
        *({"priority": 2}, {"priority": True}, {"timeout": 0}, {"timeout": "7"}, {"timeout": -1}),
        *({"max_retries": None}, {"max_retries": 2**31}, {"max_retries": -1}, {"max_retries": 1.5}),
        *({"misfire_grace_time": 0.5}, {"misfire_grace_time": 2**31}, {"keep_result": 0}),
        *({"keep_result": 1e11}, {"on_failure": ""}, {"on_failure": 7}, {"on_failure": []}),
        *({"code": {"unique": 1}}, {"code": "unique"}, {"code": ["retry", 7]}),
    ],
)
def test_option_that_no_task_can_have_counts_as_not_reported(options: dict[str, Any]) -> None:
    assert ReportedSettings({"options": {"x": options}}).options_of("x") == ReportedOptions({}, [])


@each_case("metadata", [7, [], None, {"trace": {"traceparent": "00"}}])
def test_metadata_that_no_task_can_have_count_as_not_reported(metadata: Any) -> None:
    settings = ReportedSettings({"options": {"x": {}}, "task_metadata": {"x": metadata}})
    assert settings.options_of("x") == ReportedOptions({}, [])


def test_alert_and_metadata_are_read_and_may_be_named_without_their_values() -> None:
    options = {"x": {"on_failure": "page"}, "y": {"code": ["on_failure", "metadata", "share", "unique"]}}
    settings = ReportedSettings({"options": options, "task_metadata": {"x": {"team": "a"}}})
    assert settings.options_of("x") == ReportedOptions({}, [], "page", {"team": "a"})
    named = ["metadata", "share", "unique", "on_failure"]
    assert settings.options_of("y") == ReportedOptions({}, named)


def test_worker_that_reports_nothing_has_the_defaults() -> None:
    assert ReportedHealth.of({}) == ReportedHealth()
    settings = ReportedSettings({})
    assert (settings.aliases, settings.declared_ids, settings.fingerprints) == ({}, [], {})
    assert (list(settings.limits), list(settings.shares)) == ([], [])
    assert settings.counts_attempts
    assert settings.zone_data is None
    assert settings.retention is None
    assert settings.options_of("x") is None
    assert settings.parameters_of("x") is None
    assert settings.retention_of("failed") == ReportedRetention(None, deletes=False)


@each_case("text", ["true", "-1", '"1"', "null", "[1]", "{}", "NaN", "Infinity", "1" + "0" * 400, "1e12"])
def test_what_is_no_number_of_seconds_is_not_reported(text: str) -> None:
    assert ReportedHealth.of(json.loads(f'{{"loop_lag_s": {text}}}')).loop_lag_s is None
