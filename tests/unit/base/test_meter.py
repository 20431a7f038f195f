"""The Meter: counts by name and outcome, histograms that can be added, and its bounds."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pg_scheduler.base.figures import Snapshot
from pg_scheduler.base.meter import MAX_NAME_LENGTH, MAX_NAMES, OTHER
from tests.support.inside import BOUNDS, OUTCOMES, Histogram, JobFigures, Meter

NOW = datetime(2030, 1, 1, tzinfo=UTC)

OF_DURATIONS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
OF_LATENESS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)

seconds = st.floats(min_value=0, max_value=1e6, allow_nan=False)


@dataclass(frozen=True)
class Attempt:
    job_name: str = "mail"
    execution_time: datetime = NOW


class Time:
    """The seconds of a clock that only a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def meter(time: Time) -> Meter:
    return Meter(lambda: NOW, monotonic=time)


def of(values: list[float]) -> Histogram:
    meter = Meter()
    for value in values:
        meter.measure("pass", "", value)
    return meter.snapshot().durations.get(("pass", ""), Histogram())


def mail(meter: Meter) -> JobFigures:
    return meter.snapshot().jobs["mail"]


def ended(figures: JobFigures) -> dict[str, int]:
    return {outcome: n for outcome, n in zip(OUTCOMES, figures.ended, strict=True) if n}


# -- buckets ------------------------------------------------------------------------------------------


def test_there_are_48_buckets_with_increasing_bounds() -> None:
    assert len(Histogram().buckets) == len(BOUNDS) + 1 == 48
    assert all(low < high for low, high in itertools.pairwise(BOUNDS))


def test_bounds_are_roughly_logarithmic_up_to_a_day() -> None:
    within_a_day = BOUNDS[: BOUNDS.index(86_400) + 1]
    factors = [high / low for low, high in itertools.pairwise(within_a_day)]
    assert min(factors) >= 1.25
    assert max(factors) <= 3


@pytest.mark.parametrize("bounds", [OF_DURATIONS, OF_LATENESS])
def test_bounds_of_the_metrics_are_bounds_of_buckets(bounds: tuple[float, ...]) -> None:
    assert set(bounds) <= set(BOUNDS)


@given(st.lists(seconds, max_size=50))
def test_histogram_counts_values_up_to_each_bound(values: list[float]) -> None:
    assert of(values).at_most(OF_LATENESS) == [sum(v <= bound for v in values) for bound in OF_LATENESS]


def test_value_equal_to_a_bound_belongs_to_the_bucket_below_it() -> None:
    assert of([0.25]).at_most([0.15, 0.25]) == [0, 1]


def test_histogram_rejects_a_bound_that_no_bucket_has() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        Histogram().at_most([0.2])


@given(st.lists(seconds, max_size=30), st.lists(seconds, max_size=30))
def test_sum_of_two_histograms_is_that_of_all_values(first: list[float], second: list[float]) -> None:
    merged, whole = Histogram.added(of(first), of(second)), of(first + second)
    assert merged.buckets == whole.buckets
    assert merged.total == pytest.approx(whole.total)
    assert merged.minus(of(second)).buckets == of(first).buckets


@given(st.lists(seconds, min_size=1, max_size=50), st.floats(min_value=0.01, max_value=1))
def test_quantile_lies_in_the_bucket_of_the_exact_one(values: list[float], share: float) -> None:
    found = of(values).quantile(share)
    exact = sorted(values)[max(-int(-share * len(values) // 1) - 1, 0)]
    assert found is not None
    bucket = bisect_left(BOUNDS, exact)
    assert (BOUNDS[bucket - 1] if bucket else 0) <= found <= BOUNDS[min(bucket, len(BOUNDS) - 1)]


@given(st.lists(seconds, min_size=1, max_size=50))
def test_quantiles_grow_with_their_share_up_to_the_ceiling(values: list[float]) -> None:
    histogram = of(values)
    quantiles = [histogram.quantile(share) or 0.0 for share in (0.01, 0.25, 0.5, 0.75, 0.95, 1)]
    assert all(low <= high for low, high in itertools.pairwise(quantiles))
    assert histogram.ceiling is not None
    assert histogram.ceiling == pytest.approx(max(values)) or histogram.ceiling >= min(
        max(values), BOUNDS[-1]
    )


@pytest.mark.parametrize("number", [1, 30])
def test_quantile_of_values_in_one_bucket_is_their_mean(number: int) -> None:
    histogram = of([30.1] * number)
    for share in (0.5, 0.95):
        assert histogram.quantile(share) == pytest.approx(30.1)


def test_quantile_follows_the_sum_of_the_values() -> None:
    lower, upper = of([0.54] * 100 + [0.1]), of([0.74] * 100 + [0.1])
    for histogram, exact in ((lower, 0.54), (upper, 0.74)):
        for share in (0.5, 0.95):
            assert histogram.quantile(share) == pytest.approx(exact, rel=0.1)


def test_quantile_of_a_sum_that_is_no_number_lies_in_its_bucket() -> None:
    for values in ([30.1], [30.1, 0.5]):
        assert of(values)._replace(total=math.nan).quantile(1) == 30.0


def test_quantile_and_ceiling_of_no_values_are_none() -> None:
    assert (Histogram().quantile(0.5), Histogram().ceiling) == (None, None)


# -- jobs ---------------------------------------------------------------------------------------------


def test_meter_counts_each_outcome_by_name(meter: Meter) -> None:
    meter.record_scheduled("mail", 12)
    meter.record_starts([Attempt()] * 11)
    meter.record_completions([Attempt()] * 2)
    for number, outcome in enumerate(OUTCOMES, start=1):
        for _ in range(number):
            meter.record_end("mail", outcome)
    assert mail(meter).scheduled == 12
    assert mail(meter).started == 11
    assert ended(mail(meter)) == dict(zip(OUTCOMES, [3, 2, 3, 4, 5, 6, 7, 8, 9, 10], strict=True))


def test_meter_rejects_an_unknown_outcome(meter: Meter) -> None:
    with pytest.raises(KeyError):
        meter.record_end("mail", "done")


def test_lateness_is_the_start_minus_the_due_time(meter: Meter) -> None:
    due = [NOW - timedelta(seconds=late) for late in (0.3, 3, 400)]
    meter.record_starts([Attempt(execution_time=each) for each in due])
    lateness = mail(meter).lateness
    assert lateness.at_most([0.25, 0.35, 2.5, 3.5, 300, 450]) == [0, 1, 1, 2, 2, 3]
    assert lateness.total == pytest.approx(403.3)


def test_attempt_that_starts_before_its_time_by_the_clock_of_the_host_is_not_late(meter: Meter) -> None:
    meter.record_starts([Attempt(execution_time=NOW + timedelta(seconds=1))])
    assert mail(meter).lateness == Histogram((1, *Histogram().buckets[1:]), 0.0)


def test_durations_are_kept_by_name(meter: Meter) -> None:
    meter.record_duration("mail", 0.2)
    meter.record_duration("mail", 2)
    meter.record_duration("report", 200)
    assert mail(meter).durations.total == pytest.approx(2.2)
    assert meter.snapshot().jobs["report"].durations.at_most([180, 300]) == [0, 1]


def test_names_beyond_the_maximum_are_counted_together(meter: Meter) -> None:
    for number in range(MAX_NAMES + 3):
        meter.record_completions([Attempt(f"job {number}")])
        meter.record_duration(f"job {number}", 1)
    jobs = meter.snapshot().jobs
    assert len(jobs) == MAX_NAMES + 1
    assert jobs[OTHER].ended[0] == jobs[OTHER].durations.number == 3
    assert jobs["job 199"].ended[0] == 1


def test_known_names_are_told_apart_after_the_maximum_is_reached(meter: Meter) -> None:
    meter.record_end("mail", "failed")
    for number in range(MAX_NAMES):
        meter.record_end(f"job {number}", "failed")
    meter.record_end("mail", "failed")
    assert ended(mail(meter)) == {"failed": 2}


# -- sampling -----------------------------------------------------------------------------------------


def run(meter: Meter, number: int) -> None:
    for weight in meter.record_starts([Attempt(execution_time=NOW - timedelta(seconds=2))] * number):
        if weight:
            meter.record_duration("mail", 0.2, weight)


def test_every_attempt_is_measured_up_to_a_thousand_starts_per_second(meter: Meter, time: Time) -> None:
    for _ in range(5):
        time.now += 1
        run(meter, 1000)
    assert mail(meter).lateness.number == mail(meter).durations.number == 5000


def test_one_attempt_in_16_is_measured_above_a_thousand_starts_per_second(meter: Meter, time: Time) -> None:
    run(meter, 3000)
    before = mail(meter)
    time.now += 1
    run(meter, 3000)
    added = mail(meter).minus(before)
    assert added.started == 3000
    assert {n for n in added.durations.buckets if n} == {188 * 16}
    assert {n for n in added.lateness.buckets if n} == {188 * 16}
    assert added.durations.total == pytest.approx(188 * 16 * 0.2)
    assert added.lateness.total == pytest.approx(188 * 16 * 2)


def test_every_attempt_is_measured_again_when_the_rate_has_fallen(meter: Meter, time: Time) -> None:
    run(meter, 3000)
    time.now += 1
    run(meter, 10)
    time.now += 1
    before = mail(meter)
    run(meter, 10)
    assert mail(meter).minus(before).durations.number == 10


def test_burst_of_a_thousand_starts_is_measured_without_exception(meter: Meter, time: Time) -> None:
    for number in (10, 490, 500):
        run(meter, number)
    assert mail(meter).durations.number == mail(meter).lateness.number == 1000
    run(meter, 500)
    assert {31 * 16} == {mail(meter).durations.number - 1000, mail(meter).lateness.number - 1000}


def test_sampling_continues_from_batch_to_batch(meter: Meter, time: Time) -> None:
    run(meter, 1001)
    before = mail(meter)
    for number in (1, 2, 3, 5, 8, 13) * 50:
        run(meter, number)
    added = mail(meter).minus(before)
    assert added.started == 1600
    assert added.durations.number == added.lateness.number == 1600


def test_names_of_a_mixed_claim_are_sampled_apart(meter: Meter) -> None:
    claims = [Attempt("rare"), *[Attempt("often")] * 15] * 200
    weights = meter.record_starts(claims)
    jobs = meter.snapshot().jobs
    assert (jobs["rare"].started, jobs["often"].started) == (200, 3000)
    assert jobs["rare"].lateness.number == 200
    assert jobs["often"].lateness.number == 1000 + 2000
    assert sum(weights) == 3200
    assert {weight for claim, weight in zip(claims, weights, strict=True) if claim.job_name == "rare"} == {1}


def test_claim_without_jobs_is_not_counted(meter: Meter) -> None:
    assert meter.record_starts([]) == []
    meter.record_completions([])
    assert meter.batch() is None


def test_completions_of_several_names_are_counted_apart(meter: Meter) -> None:
    meter.record_completions([Attempt(), Attempt("report"), Attempt()])
    assert ended(mail(meter)) == {"completed": 2}
    assert ended(meter.snapshot().jobs["report"]) == {"completed": 1}


def test_name_that_is_too_long_for_the_tables_is_counted_with_the_others(meter: Meter) -> None:
    meter.record_completions([Attempt("x" * MAX_NAME_LENGTH), Attempt("x" * (MAX_NAME_LENGTH + 1))])
    assert meter.snapshot().jobs.keys() == {"x" * MAX_NAME_LENGTH, OTHER}


def test_one_busy_name_does_not_make_others_inexact(meter: Meter, time: Time) -> None:
    run(meter, 3000)
    time.now += 1
    meter.record_starts([Attempt("report")])
    meter.record_duration("report", 1)
    assert meter.snapshot().jobs["report"].durations.number == 1


# -- snapshots and their differences ------------------------------------------------------------------


def test_snapshot_does_not_change_with_the_meter(meter: Meter) -> None:
    meter.record_starts([Attempt()])
    meter.count("claims", "full")
    before = meter.snapshot()
    meter.record_starts([Attempt()])
    meter.count("claims", "full")
    assert before.jobs["mail"].started == 1
    assert before.counters == {("claims", "full"): 1}


def test_difference_of_snapshots_contains_only_names_that_changed(meter: Meter) -> None:
    meter.record_completions([Attempt(), Attempt("report")])
    before = meter.snapshot()
    meter.record_completions([Attempt("report")])
    meter.record_duration("new", 1)
    added = meter.snapshot().jobs_since(before.jobs)
    assert added.keys() == {"report", "new"}
    assert ended(added["report"]) == {"completed": 1}
    assert meter.snapshot().jobs_since(meter.snapshot().jobs) == {}


def test_sum_of_all_differences_is_the_last_snapshot(meter: Meter, time: Time) -> None:
    total, before = JobFigures(), Snapshot({}, {}, {}, {})
    for number in (5, 3000, 7):
        time.now += 1
        run(meter, number)
        meter.record_end("mail", "failed")
        meter.record_scheduled("mail")
        now = meter.snapshot()
        total, before = JobFigures.added(total, now.jobs_since(before.jobs)["mail"]), now
    assert total[:3] == mail(meter)[:3]
    assert total.durations.buckets == mail(meter).durations.buckets
    assert total.lateness.buckets == mail(meter).lateness.buckets


# -- batches for the database -------------------------------------------------------------------------


def test_batch_contains_what_was_counted_since_the_one_before(meter: Meter) -> None:
    meter.record_completions([Attempt()] * 3)
    first = meter.batch()
    assert first is not None
    meter.settle(first)
    assert meter.batch() is None, "nothing was counted since"
    meter.record_completions([Attempt()] * 2)
    second = meter.batch()
    assert second is not None
    assert (first.number, second.number) == (1, 2)
    assert [ended(each.jobs["mail"]) for each in (first, second)] == [{"completed": 3}, {"completed": 2}]


def test_batch_is_repeated_unchanged_until_it_is_settled(meter: Meter) -> None:
    meter.record_completions([Attempt()])
    first = meter.batch()
    assert first is not None
    meter.record_completions([Attempt()] * 4)
    assert meter.batch() == first
    meter.settle(first)
    second = meter.batch()
    assert second is not None
    meter.settle(first)
    assert meter.batch() == second, "the second call of settle() for the first batch is a no-op"
    assert ended(second.jobs["mail"]) == {"completed": 4}


# -- the process --------------------------------------------------------------------------------------


def test_counters_and_gauges_of_the_process(meter: Meter) -> None:
    meter.count("leases_lost")
    meter.count("loop_blocked_seconds", "mail", by=0.5)
    meter.count("loop_blocked_seconds", "mail", by=1.5)
    meter.set_gauge("listener_connected", 1)
    meter.set_gauge("listener_connected", 0)
    now = meter.snapshot()
    assert now.counters == {("leases_lost", ""): 1, ("loop_blocked_seconds", "mail"): 2}
    assert now.gauges == {"listener_connected": 0}


def test_labels_beyond_the_maximum_are_counted_together() -> None:
    meter = Meter(max_names=2)
    for label in ("a", "b", "c", "d", "a"):
        meter.count("fire_times_planned", label)
        meter.measure("pass_duration", label, 1)
    now = meter.snapshot()
    assert now.counters == {
        ("fire_times_planned", "a"): 2,
        ("fire_times_planned", "b"): 1,
        ("fire_times_planned", OTHER): 2,
    }
    assert now.durations["pass_duration", OTHER].number == 2
