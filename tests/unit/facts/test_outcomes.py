"""What counts as failed: in Python, in statements and in the alerting rules."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from pg_scheduler.facts.outcomes import (
    DECIDED_ATTEMPTS,
    FAILED_ATTEMPTS,
    FAILED_JOBS,
    count_completed,
    count_decided,
    count_failed,
    failure_rate,
)
from tests.support.inside import OUTCOMES, JobFigures, load_fragment

RULES = files("pg_scheduler") / "ops" / "alerts" / "pg_scheduler.rules.yaml"


def figures(**outcomes: int) -> JobFigures:
    return JobFigures(ended=tuple(outcomes.get(outcome, 0) for outcome in OUTCOMES))


def test_failure_rate_counts_retried_and_lost_attempts_and_leaves_out_those_that_show_nothing() -> None:
    mixed = figures(completed=12, failed=6, retried=8, snoozed=10, lost=4, cancelled=3, released=2, skipped=1)
    assert (count_completed(mixed), count_failed(mixed), count_decided(mixed)) == (12, 18, 30)
    assert failure_rate(mixed) == 0.6


def test_suspended_attempt_has_not_failed() -> None:
    assert failure_rate(figures(suspended=28, retried=5)) == 5 / 33


def test_failure_rate_is_unknown_without_an_attempt_that_completed_or_failed() -> None:
    assert failure_rate(figures(snoozed=3, expired=4)) is None


@pytest.mark.parametrize(
    ("fragment", "outcomes"), [("failed_attempts", FAILED_ATTEMPTS), ("decided_attempts", DECIDED_ATTEMPTS)]
)
def test_statements_add_up_the_outcomes_of_the_definition(fragment: str, outcomes: tuple[str, ...]) -> None:
    places = {int(place) for place in re.findall(r"counts\[(\d+)\]", load_fragment(fragment))}
    assert {OUTCOMES[place - 3] for place in places} == set(outcomes)


def test_statements_name_the_statuses_of_failed_jobs() -> None:
    assert set(re.findall(r"'(\w+)'", load_fragment("failed_jobs"))) == FAILED_JOBS


def test_alert_divides_the_outcomes_of_the_definition() -> None:
    rule = RULES.read_text(encoding="utf-8").partition("PgSchedulerFailureRatio")[2].partition("- alert:")[0]
    found = re.findall(r'outcome=~"([\w|]+)"', rule)
    assert found == ["|".join(each) for each in (FAILED_ATTEMPTS, DECIDED_ATTEMPTS, FAILED_ATTEMPTS)]
