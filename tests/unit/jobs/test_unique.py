"""Unique jobs: the rules, the keys, and the ids of time spans."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pg_scheduler import Unique
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.model import UNSET
from pg_scheduler.jobs.payload import encode
from pg_scheduler.jobs.rows import Span
from pg_scheduler.jobs.task import JobSpec, Task
from pg_scheduler.jobs.unique import Uniqueness, check_unique, unique_text
from pg_scheduler.queue.job_template import JobTemplate
from pg_scheduler.queue.prepare import JobPreparer, rule_of
from tests.support.cases import each_case
from tests.support.foreign import overriding
from tests.support.inside import ExtendedJob, PlainJob, TaskOptions, TaskRegistry

DUE = datetime(2030, 1, 1, 12, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)


async def work(user_id: int, /, reason: str = "none", *rest: str, force: bool = False) -> None: ...


async def options(user_id: int, **kwargs: Any) -> None: ...


async def odd(value: object = object(), tags: tuple[str, ...] = ("a",)) -> None: ...


def text(
    *args: Any,
    func: Callable[..., Any] = work,
    rule: Unique = Unique(),  # noqa: B008 - a frozen value
    task: str = "app.work",
    **kwargs: Any,
) -> str:
    return unique_text(rule, task, inspect.signature(func), encode(args, kwargs))


def job(**changes: Any) -> PlainJob:
    return PlainJob("own", encode((7,), {}), DUE, "app.work", 5, 0, None, None)._replace(**changes)


def test_debounce_is_given_in_seconds_or_as_a_timedelta() -> None:
    rule = Unique(("user_id",), debounce=30, max_wait=timedelta(minutes=5))
    assert (rule.debounce, rule.max_wait) == (timedelta(seconds=30), timedelta(minutes=5))
    assert rule == Unique(("user_id",), debounce=timedelta(seconds=30), max_wait=300.0)
    assert Unique(debounce=5, max_wait=5).debouncing == (timedelta(seconds=5), timedelta(seconds=5))
    assert Unique(debounce=0.001).debouncing == (timedelta(milliseconds=1), None)
    assert Unique().debouncing is None


@each_case(
    ("values", "error", "message"),
    [
        (
            {"max_wait": 300},
            ConfigurationError,
            "max_wait is 300, .* pass debounce=30 too, or omit max_wait=",
        ),
        ({"debounce": 0}, ConfigurationError, "debounce must be 1 ms to 366 days, not 0"),
        ({"debounce": float("nan")}, ConfigurationError, "debounce must be 1 ms to 366 days, not nan"),
        ({"debounce": timedelta(days=367)}, ConfigurationError, "debounce must be 1 ms to 366 days"),
        ({"debounce": "30"}, TypeError, "debounce must be seconds, a timedelta or None, not str"),
        ({"debounce": True}, TypeError, "debounce must be seconds, a timedelta or None, not bool"),
        (
            {"debounce": 30, "max_wait": 29},
            ConfigurationError,
            r"max_wait must be debounce \(.*\) to 366 days",
        ),
        (
            {"debounce": 30, "max_wait": 1e9},
            ConfigurationError,
            "max_wait must be debounce .* not 1000000000.0",
        ),
        ({"debounce": 30, "max_wait": "5"}, TypeError, "max_wait must be seconds"),
        (
            {"debounce": 30, "per": HOUR},
            ConfigurationError,
            "per allows one job in a time span; omit one of them",
        ),
    ],
)
def test_debounce_that_has_no_meaning_is_refused(
    values: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Unique(**values)


def test_rules_that_differ_in_their_debounce_have_the_same_keys() -> None:
    assert text(7) == text(7, rule=Unique(debounce=30)) == text(7, rule=Unique(debounce=60, max_wait=300))


def test_unique_key_is_equal_for_positional_keyword_and_default_arguments() -> None:
    assert text(7) == text(7, "none") == text(7, reason="none") == text(7, force=False, reason="none")
    assert len({text(7), text(8), text(7, "other"), text(7, force=True), text(7, "none", "more")}) == 5
    assert text(1, b=2, a=[1], func=options) == text(1, a=(1,), b=2, func=options)


def test_unique_key_contains_the_name_of_the_task_and_hides_the_arguments() -> None:
    key = text(7, "a secret")
    assert key.startswith("unique:app.work:")
    assert "secret" not in key
    assert text(7, task="app.other") != text(7)
    long = text(7, task="x" * 5000)
    assert len(long) < 300
    assert long != text(7, task="x" * 5001)


def test_unique_key_compares_only_the_selected_arguments() -> None:
    rule = Unique(args=("user_id",))
    assert text(7, "one", rule=rule) == text(7, "two", force=True, rule=rule)
    assert text(7, rule=rule) != text(8, rule=rule)
    assert text(7, rule=Unique(args=())) == text(8, "x", rule=Unique(args=()))
    by_name = Unique(args=("tenant",))
    assert text(1, tenant=7, func=options, rule=by_name) == text(2, tenant=7, func=options, rule=by_name)
    assert text(1, tenant=7, func=options, rule=by_name) != text(1, tenant=8, func=options, rule=by_name)


@pytest.mark.parametrize("signature", [None, inspect.signature(options), inspect.signature(work)])
def test_unique_key_needs_the_arguments_that_its_rule_names(signature: inspect.Signature | None) -> None:
    rule = Unique(args=("user",))
    assert unique_text(rule, "app.work", signature, encode((), {"user": 7}))
    with pytest.raises(ConfigurationError, match="unique names the argument 'user', which this job of 'app"):
        unique_text(rule, "app.work", signature, encode((), {"tenant": 7}))


def test_unique_key_ignores_a_default_that_json_cannot_represent() -> None:
    assert text(func=odd) == text(tags=["a"], func=odd)
    assert text(func=odd) != text(None, func=odd)


def test_arguments_that_the_database_returns_as_the_same_ones_have_one_key() -> None:
    assert text(0.0) == text(-0.0) == text([-0.0][0]) != text(-0.05)
    assert text(1e16) == text(10**16) != text(1e17)
    assert text({"a": [-0.0]}) == text({"a": [0.0]})

    def weigh(grams: float = 1e16, offset: float = -0.0) -> None: ...

    assert text(func=weigh) == text(1e16, -0.0, func=weigh) == text(10**16, 0.0, func=weigh)


def test_unique_key_of_a_function_without_signature_compares_the_arguments_as_given() -> None:
    def of(*args: Any, **kwargs: Any) -> str:
        return unique_text(Unique(), "app.work", None, encode(args, kwargs))

    assert len({of(1), of(a=1), of(a=2), of()}) == 4


def test_id_of_a_time_span_is_the_same_within_a_span_counted_from_the_epoch() -> None:
    assert Span("unique:x:1", HOUR).id_at(DUE) == "unique:x:1:2030-01-01T12:00:00+00:00"
    assert Span("a", HOUR).id_at(DUE + HOUR / 2 - timedelta(microseconds=1)) == Span("a", HOUR).id_at(DUE)
    assert Span("a", HOUR).id_at(DUE + HOUR / 2) == "a:2030-01-01T13:00:00+00:00"
    week = Span("a", timedelta(days=7)).id_at(DUE)
    assert week == "a:2029-12-27T00:00:00+00:00", "the epoch was a Thursday"
    assert Span("a", HOUR).id_at(datetime(1969, 12, 31, 23, 59, tzinfo=UTC)) == "a:1969-12-31T23:00:00+00:00"
    first = datetime(1, 1, 1, 0, 0, 1, tzinfo=UTC)
    year = Span("a", timedelta(days=366)).id_at(first)
    assert year.startswith("a:-"), "the calendar begins within the span"


def test_spans_of_another_length_have_other_ids() -> None:
    day = text(7, rule=Unique(per=timedelta(days=1)))
    assert len({day, text(7, rule=Unique(per=HOUR)), text(7)}) == 3


@each_case(
    ("make", "error", "message"),
    [
        (lambda: Unique(args="user_id"), TypeError, r"pass \('user_id',\)"),  # type: ignore[arg-type]
        (lambda: Unique(args=False), TypeError, "True or a tuple of names, not False"),  # type: ignore[arg-type]
        (lambda: Unique(args=(7,)), TypeError, "a name in args must be a str"),  # type: ignore[arg-type]
        (lambda: Unique(per=3600), TypeError, r"pass timedelta\(hours=1\)"),  # type: ignore[arg-type]
        (lambda: Unique(per=timedelta(0)), ValueError, "1 second to 366 days"),
        (lambda: Unique(per=timedelta(days=367)), ValueError, "1 second to 366 days"),
        (lambda: check_unique(True), TypeError, r"must be a str, a Unique\(\) or None, not True"),
        (lambda: check_unique(7), TypeError, "not 7"),
        (lambda: check_unique(""), ValueError, "1 to 200 bytes of UTF-8, not 0"),
        (lambda: check_unique("ä" * 101), ValueError, "1 to 200 bytes of UTF-8, not 202"),
        (lambda: check_unique("a\x00"), ValueError, "NUL"),
        (lambda: check_unique("\ud800"), ValueError, "surrogate"),
    ],
)
def test_unique_rejects_invalid_values(make: Callable[[], object], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_unique_is_a_value() -> None:
    assert Unique(args=["a", "b"]) == Unique(args=("a", "b"))  # type: ignore[arg-type]
    assert hash(Unique(per=HOUR)) == hash(Unique(per=HOUR))
    assert check_unique("ä" * 100) == "ä" * 100


def test_task_rejects_a_unique_argument_that_the_function_lacks() -> None:
    task = Task(work, "app.work")
    with pytest.raises(ValueError, match=r"'account', which work\(\) lacks; its parameters are: 'user_id'"):
        task.changed(work, "app.work", TaskOptions(unique=Unique(args=("account",))))
    rule = Unique(args=("account",))
    assert (
        Task(options, "app.options").changed(options, "app.options", TaskOptions(unique=rule)).unique == rule
    )
    with pytest.raises(ValueError, match="'account'"):
        rule_of(rule, task)


def test_rule_of_a_call_takes_precedence_over_that_of_the_task() -> None:
    tasks = TaskRegistry()
    tasks.register(work, options=TaskOptions(unique="task"))
    preparer = JobPreparer(tasks, misfire_grace_time=None, max_payload_bytes=None)
    rules: list[Any] = [UNSET, None, "call"]
    jobs = preparer.prepare([JobSpec(work, DUE, (7,), unique=rule) for rule in rules])
    assert [each.unique_key for each in jobs] == ["task", None, "call"]


def test_registering_a_task_again_keeps_its_rule_unless_it_is_given() -> None:
    task = Task(work, "app.work", unique="task")
    assert task.changed(work, "app.work", TaskOptions()).unique == "task"
    assert task.changed(work, "app.work", TaskOptions(unique=None)).unique is None


def extended(task: Task | None, unique: Uniqueness, **options: Any) -> ExtendedJob:
    template = JobTemplate.of("app.work", task, {}, misfire_grace_time=None)
    return template.extend(job(), None, unique, None, **options)


def test_unique_job_follows_its_due_time() -> None:
    task = Task(work, "app.work")
    made = extended(task, Unique(per=HOUR))
    moved = made.due_at(DUE + HOUR)
    assert moved.job_id == made.job_id.replace("T12", "T13")
    assert moved.due_at(DUE).job_id == made.job_id
    assert (made.unique_key, job().unique_key) == (None, None)
    renamed = extended(task, Unique(), has_id=True).with_id("other")
    assert (renamed.job_id, renamed.unique_key) == ("other", text(7))


def test_unique_job_with_a_span_accepts_no_id() -> None:
    with pytest.raises(ValueError, match=r"derived from its time span, .* has the id 'own'"):
        extended(Task(work, "app.work"), Unique(per=HOUR), has_id=True)


def test_unique_job_of_an_unregistered_task_needs_a_key() -> None:
    assert extended(None, "import:7").unique_key == "import:7"
    with pytest.raises(ValueError, match=r"'app\.work' is not registered in this process"):
        extended(None, Unique())


def test_key_leaves_out_a_default_that_cannot_be_read() -> None:
    default = overriding(dict, SystemExit, "items", "__iter__", "__len__")(a=1)
    parameter = inspect.Parameter("order", inspect.Parameter.KEYWORD_ONLY, default=default)
    keys = {
        unique_text(Unique(), "t", inspect.Signature(each), encode((), None)) for each in ([], [parameter])
    }
    assert len(keys) == 1
