"""Until when a worker trusts its lease."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from pg_scheduler.worker import lease as module
from pg_scheduler.worker.lease import Lease


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The lease's monotonic clock, to be moved by hand."""
    moment = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: moment[0]))
    return moment


def test_lease_is_not_trusted_before_its_first_renewal_when_the_machine_just_booted() -> None:
    assert Lease(time.monotonic() * 10).trusted_until == float("-inf")


def test_lease_is_trusted_until_a_tenth_before_its_end(clock: list[float]) -> None:
    lease = Lease(60)
    lease.renewed(990.0)
    assert (lease.trusted_until, lease.renewal_interval) == (1044.0, 20.0)
    for clock[0], expected in ((1043.9, True), (1044.0, False)):
        assert lease.is_trusted is expected


def test_lease_keeps_the_latest_renewal_when_answers_arrive_out_of_order(clock: list[float]) -> None:
    lease = Lease(60)
    lease.renewed(999.0)
    lease.renewed(990.0)
    assert lease.renewed_at == 999.0


def test_lease_counts_only_renewals_that_arrive_in_time(clock: list[float]) -> None:
    lease = Lease(60)
    lease.renewed(clock[0] - 55)
    assert (lease.renewals, lease.is_trusted) == (0, False)
    lease.renewed(clock[0])
    assert lease.renewals == 1


def test_lease_is_not_trusted_after_revoke_until_it_is_renewed(clock: list[float]) -> None:
    lease = Lease(60)
    lease.renewed(clock[0])
    lease.revoke()
    assert not lease.is_trusted
    lease.renewed(clock[0] - 1)
    assert lease.trusted_until == 1053.0


@pytest.mark.parametrize(
    ("max_loop_block_s", "key", "proves_life", "extension_s"),
    [
        (600, 1, True, 540),
        (600, 1, False, None),  # a proxy holds the session
        (600, None, True, None),  # no lock
        (60, 1, True, None),  # not longer than the lease
    ],
)
def test_lease_is_extended_only_by_a_lock_that_proves_life(
    max_loop_block_s: float, key: int | None, proves_life: bool, extension_s: float | None
) -> None:
    lease = Lease(60, max_loop_block_s)
    lease.lock_taken(key, proves_life=proves_life)
    assert (lease.liveness_key, lease.extension_s) == (key, extension_s)
    lease.lock_lost()
    assert (lease.liveness_key, lease.extension_s) == (None, None)
