"""Limits as values, and the texts that identify them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest

from pg_scheduler import ConfigurationError, Limit, Scheduler, job
from pg_scheduler.jobs.keys import readable
from pg_scheduler.jobs.limits import LimitBook, LimitKeyError, LimitNumbers, check_limits, limits_of_job
from tests.support.cases import each_case
from tests.support.inside import TaskOptions, TaskRegistry

SECOND = timedelta(seconds=1)


async def work() -> None: ...


async def never(**_: Any) -> str:
    return ""


def own(value: Any) -> Any:
    return value


@each_case(
    ("options", "part"),
    [
        ({}, "needs max_running= or max_starts="),
        ({"max_running": 0}, "max_running must be between 1"),
        ({"max_starts": 0, "per": SECOND}, "max_starts must be between 1"),
        ({"max_starts": 1}, "belong together"),
        ({"max_running": 1, "per": SECOND}, "belong together"),
        ({"max_running": 1, "spread": True}, "spread= of a Limit needs max_starts= and per="),
        ({"max_starts": 1, "per": timedelta(0)}, "per must be between"),
        ({"max_starts": 1, "per": timedelta(days=400)}, "per must be between"),
        ({"name": "", "max_running": 1}, "is empty or contains a colon"),
        ({"name": "a:b", "max_running": 1}, "'a:b' of a Limit is empty or contains a colon"),
        ({"name": "é" * 101, "max_running": 1}, "at most 200 bytes, not 202"),
    ],
)
def test_limit_rejects_values_out_of_range(options: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigurationError, match=part):
        Limit(**options)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"max_running": "1"}, "max_running must be an int"),
        ({"max_running": True}, "max_running must be an int"),
        ({"max_starts": 1, "per": 10}, r"per must be a timedelta.*timedelta\(seconds=10\)"),
        ({"max_starts": 1, "per": SECOND, "spread": 1}, "spread must be True or False, not int: 1"),
        ({"max_running": 1, "key": "account"}, "key must be a function"),
        ({"max_running": 1, "key": never}, "cannot await"),
        ({"name": 7, "max_running": 1}, "name must be a str"),
    ],
)
def test_limit_rejects_values_of_a_wrong_type(options: dict[str, Any], part: str) -> None:
    with pytest.raises(TypeError, match=part):
        Limit(**options)


@pytest.mark.parametrize("limits", [Limit(max_running=1), 7, [Limit(max_running=1), 7]])
def test_job_and_register_reject_what_is_no_list_of_limits(limits: Any) -> None:
    with pytest.raises(TypeError, match="limits must"):
        job(limits=limits)
    with pytest.raises(TypeError, match="limits must"):
        Scheduler.register(cast("Scheduler", None), work, limits=limits)


def keys(limit: Limit, *args: Any, **kwargs: Any) -> list[str]:
    return [key for key, _ in limits_of_job([limit], "app.task", args, kwargs)]


def test_limits_of_job_names_the_limit_and_its_key() -> None:
    by_account = Limit(max_running=1, key=lambda account, **_: account)
    assert keys(Limit(max_running=1), 5) == ["limit:app.task:"]
    assert keys(Limit("stripe", max_running=1), 5) == ["limit:stripe:"]
    assert keys(by_account, 5, x=1) == ["limit:app.task:5"]
    assert keys(by_account, account="a:b") == ["limit:app.task:a:b"]


@pytest.mark.parametrize(
    ("max_starts", "per", "step"),
    [
        (10, SECOND, LimitNumbers(None, 1, 0.1)),
        (100, timedelta(minutes=1), LimitNumbers(None, 1, 0.6)),
        (1000, SECOND, LimitNumbers(None, 100, 0.1)),
        (1, SECOND, LimitNumbers(None, 1, 1.0)),
    ],
)
def test_limits_of_job_add_the_numbers_of_a_step_when_a_limit_spreads_its_starts(
    max_starts: int, per: timedelta, step: LimitNumbers
) -> None:
    limits = [Limit("api", max_running=3, max_starts=max_starts, per=per, spread=True)]
    declared = LimitNumbers(3, max_starts, per.total_seconds())
    assert limits_of_job(limits, "task", (), {}) == [("limit:api:", declared), ("limit:api:", step)]
    assert LimitBook([("task", limits)]).number_sets("limit:api:") == [(declared, step)]


def test_limits_of_job_are_ascii_so_that_databases_of_any_encoding_agree() -> None:
    assert keys(Limit("é", max_running=1, key=own), "ü\x00\ud800") == ["limit:\\xe9:\\xfc\\x00\\ud800"]


def test_limits_of_job_of_a_long_task_name_or_one_with_a_colon_are_short_and_unambiguous() -> None:
    long = [limits_of_job([Limit(max_running=1)], "x" * 5000 + end, (), {})[0][0] for end in "ab"]
    assert max(map(len, long)) < 300
    assert long[0] != long[1]
    assert limits_of_job([Limit(max_running=1)], "a:b", (), {})[0][0] == "limit:a\\x3ab:"


def test_limits_of_job_of_characters_beyond_ascii_are_short_and_unambiguous() -> None:
    found = [keys(Limit("é" * 100, max_running=1, key=own), "ü" * 99 + end)[0] for end in "ab"]
    assert max(map(len, found)) <= 500
    assert found[0] != found[1]


def fail(*_: Any) -> str:
    raise KeyError("account")


def leave(*_: Any) -> str:
    raise SystemExit


@each_case(
    ("key", "part"),
    [
        (fail, "raised KeyError"),
        (leave, "raised SystemExit"),
        (lambda _: None, "returned a NoneType"),
        (lambda _: True, "returned a bool"),
        (lambda _: "é" * 101, "returned 202 bytes, more than 200"),
        (lambda _: 10**5000, "returned an int of"),
        (lambda _: 10**200, "returned an int of|returned 201 bytes"),
        (lambda: "no arguments", "raised TypeError"),
    ],
)
def test_limits_of_job_raises_one_error_for_whatever_a_key_function_does(key: Any, part: str) -> None:
    with pytest.raises(LimitKeyError, match=part):
        keys(Limit(max_running=1, key=key), 5)


def test_limits_of_job_accepts_an_int_whose_text_has_the_maximum_length() -> None:
    assert keys(Limit(max_running=1, key=lambda _: 10**199), 5) == keys(
        Limit(max_running=1, key=lambda _: str(10**199)), 5
    )


def test_limits_of_job_lets_an_interrupt_pass() -> None:
    def interrupt(_: Any) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keys(Limit(max_running=1, key=interrupt), 5)


def test_limit_book_has_a_set_of_numbers_for_each_task_that_shares_a_name() -> None:
    rate = Limit("api", max_starts=5, per=10 * SECOND)
    book = LimitBook(
        [
            ("a", [Limit("api", max_running=2), rate]),
            ("b", [Limit("api", max_running=9)]),
            ("c", [Limit("api", max_running=9), Limit(max_running=1, key=own)]),
        ]
    )
    assert book.number_sets("limit:api:") == [
        (LimitNumbers(2, None, None), LimitNumbers(None, 5, 10.0)),
        (LimitNumbers(9, None, None),),
    ]
    assert book.number_sets("limit:c:some key") == [(LimitNumbers(1, None, None),)]
    assert book.number_sets("limit:gone:") == book.number_sets("garbage") == ()
    assert (book.longest_per_s("limit:api:"), book.longest_per_s("limit:c:7")) == (10.0, 0.0)


def test_registry_lists_limited_tasks_by_every_name() -> None:
    parent = TaskRegistry()
    tasks = TaskRegistry(parent)
    assert tasks.lists.limited == {}
    parent.register(
        work, name="app.work", aliases=["old"], options=TaskOptions(limits=(Limit(max_running=1),))
    )
    assert set(tasks.lists.limited) == {"app.work", "old", "work", f"{__name__}.work"}
    assert tasks.lists.limited is tasks.lists.limited


def test_register_again_changes_the_limits_only_if_they_are_given() -> None:
    tasks = TaskRegistry()
    one, two = Limit(max_running=1), Limit(max_running=2)
    tasks.register(work, name="a")
    assert tasks.lists.limited == {}
    tasks.register(work, options=TaskOptions(limits=(one,)))
    assert tasks.lists.limited["a"].limits == (one,)
    tasks.register(work, options=TaskOptions(timeout=5))
    assert tasks.lists.limited["a"].limits == (one,)
    tasks.register(work, options=TaskOptions(limits=(two,)))
    assert tasks.lists.limited["a"].limits == (two,)


def test_check_limits_accepts_any_iterable() -> None:
    limit = Limit(max_running=1)
    assert check_limits(iter([limit])) == (limit,)


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ("ACME & S\\xf6hne", "ACME & Söhne"),
        ("\\u6771\\u4eac", "東京"),
        ("\\U0001f600", "\N{GRINNING FACE}"),
        ("a\\x00b \\u202e \\ud800 \\Uffffffff", "a\\x00b \\u202e \\ud800 \\Uffffffff"),
        ("C:\\new", "C:\\new"),
    ],
)
def test_key_is_shown_with_its_printable_characters(stored: str, shown: str) -> None:
    assert readable(stored) == shown
