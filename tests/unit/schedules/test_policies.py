"""The policies of a schedule: what each accepts, and how it is shown."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pg_scheduler import CatchUp, Overlap
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.schedules.policies import MAX_SPAN, check_policies
from tests.support.cases import each_case

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    "policy",
    [
        CatchUp.latest(),
        CatchUp.latest(within=HOUR),
        CatchUp.earliest(within=timedelta(0)),
        CatchUp.all(limit=10_000, within=MAX_SPAN),
        CatchUp.none(),
    ],
    ids=repr,
)
def test_catch_up_is_shown_as_the_call_that_makes_it(policy: CatchUp) -> None:
    import datetime as dt

    assert eval(repr(policy), {"CatchUp": CatchUp, "datetime": dt}) == policy


@each_case(
    ("values", "rule"),
    [
        (("newest",), "selection must be 'latest', 'earliest', 'all' or 'none', not 'newest'"),
        (("latest", 5), r"limit belongs to CatchUp.all\(\), not 5 to 'latest'"),
        (("all",), r"limit belongs to CatchUp.all\(\), not None to 'all'"),
        (("all", 0), "limit must be between 1 and 10,?000"),
        (("all", 10_001), "limit must be between 1 and 10,?000"),
        (("latest", None, 60), "within must be a timedelta or None, not 60"),
        (("latest", None, -HOUR), "within must be between 0 and 3660 days"),
        (("latest", None, MAX_SPAN + HOUR), "within must be between 0 and 3660 days"),
    ],
)
def test_catch_up_raises_when_a_value_is_invalid(values: tuple[Any, ...], rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule):
        CatchUp(*values)


@pytest.mark.parametrize("overlap", [*Overlap])
def test_catch_up_of_all_fire_times_requires_a_policy_that_drops_none(overlap: Overlap) -> None:
    check_policies(overlap, CatchUp.latest())
    if overlap in {Overlap.ALLOW, Overlap.QUEUE_ALL}:
        check_policies(overlap, CatchUp.all())
    else:
        with pytest.raises(ConfigurationError, match=r"requires Overlap.ALLOW or Overlap.QUEUE_ALL, not"):
            check_policies(overlap, CatchUp.all())
