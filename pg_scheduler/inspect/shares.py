"""The shares of tasks: their tenants, which take turns, with the jobs that wait, are admitted or run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from pg_scheduler.inspect.base import InspectorBase
from pg_scheduler.inspect.store.limits import InFlightRow, TenantRow
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.inspect.texts import count, counted
from pg_scheduler.jobs.keys import name_and_key, named_prefix, prefix_of
from pg_scheduler.jobs.model import Worker
from pg_scheduler.jobs.shares import BLOCKED_BY_SHARE
from pg_scheduler.jobs.validation import check_text
from pg_scheduler.jobs.worker_report import ReportedSettings

MAX_TENANTS: Final = 500
"""Tenants with waiting jobs that are read."""

MAX_ITEMS: Final = 200


@dataclass(frozen=True, slots=True)
class ShareState:
    """A share whose tenants take turns."""

    name: str
    """Its name."""
    tasks: tuple[str, ...]
    """The tasks that live workers declare for it."""
    tenants: int
    """Tenants with jobs that wait, are admitted or run."""
    running: int
    """Jobs that run."""
    admitted: int
    """Jobs that had their turn, and wait for a slot or a limit."""
    waiting: int
    """Jobs that wait for the turn of their tenant."""


@dataclass(frozen=True, slots=True)
class ShareList:
    """The shares that live workers declare, and other shares that jobs wait for."""

    items: Sequence[ShareState]
    """At most 200 shares, by name."""
    is_capped: bool
    """Whether there may be more shares or tenants: at most 500 tenants with waiting jobs are read."""
    is_waiting_capped: bool
    """Whether counting the waiting jobs of a tenant stopped: 20,000 jobs are divided among the tenants."""
    is_in_flight_capped: bool = False
    """Whether counting the jobs that had their turn stopped after 10,000 jobs."""

    @property
    def summary(self) -> str:
        """The numbers of shares, tenants and jobs, in one line, as every front end shows them."""
        shares = counted(len(self.items), "share", is_capped=self.is_capped)
        tenants = counted(sum(item.tenants for item in self.items), "tenant", is_capped=self.is_capped)
        jobs = _jobs(
            self.items,
            is_in_flight_capped=self.is_capped or self.is_in_flight_capped,
            is_waiting_capped=self.is_capped or self.is_waiting_capped,
        )
        return f"{shares}, {tenants}, {jobs}"


@dataclass(frozen=True, slots=True)
class TenantState:
    """A tenant of a share."""

    name: str
    """The name of the share."""
    key: str
    """The tenant."""
    running: int
    """Jobs that run."""
    admitted: int
    """Jobs that had their turn, and wait for a slot or a limit."""
    waiting: int
    """Jobs that wait for the turn of the tenant."""
    last_turn_at: datetime | None
    """When the last job of the tenant had its turn; None if that was more than about an hour ago."""


@dataclass(frozen=True, slots=True)
class TenantList:
    """Tenants of a share, and whether there are more."""

    items: Sequence[TenantState]
    """At most 200 tenants. Tenants with most waiting jobs come first."""
    is_capped: bool
    """Whether there may be more: at most 500 tenants with waiting jobs are read."""
    is_waiting_capped: bool
    """Whether counting the waiting jobs of a tenant stopped: 20,000 jobs are divided among the tenants."""
    is_in_flight_capped: bool = False
    """Whether counting the jobs that had their turn stopped after 10,000 jobs."""

    @property
    def summary(self) -> str:
        """The numbers of tenants and jobs, in one line, as every front end shows them."""
        tenants = counted(len(self.items), "tenant", is_capped=self.is_capped)
        jobs = _jobs(
            self.items,
            is_in_flight_capped=self.is_capped or self.is_in_flight_capped,
            is_waiting_capped=self.is_capped or self.is_waiting_capped,
        )
        return f"{tenants}, {jobs}"


def _jobs(
    items: Iterable[ShareState | TenantState], *, is_in_flight_capped: bool, is_waiting_capped: bool
) -> str:
    """Return the numbers of jobs by state, as a text such as ``3 running, 0 admitted, 12 waiting``.

    ``is_in_flight_capped`` is whether more jobs than these may run or be admitted, and ``is_waiting_capped``
    is whether more may wait.
    """
    states = list(items)
    counts = {
        "running": count(sum(state.running for state in states), is_capped=is_in_flight_capped),
        "admitted": count(sum(state.admitted for state in states), is_capped=is_in_flight_capped),
        "waiting": count(sum(state.waiting for state in states), is_capped=is_waiting_capped),
    }
    return ", ".join(f"{number} {state}" for state, number in counts.items())


class ShareOverview(NamedTuple):
    """The shares, and the tenants of each share by its name. Tenants with most waiting jobs come first."""

    shares: ShareList
    tenants: Mapping[str, Sequence[TenantState]]


class ShareReads(InspectorBase):
    """The methods of `Inspector` that read shares."""

    async def shares(self) -> ShareList:
        """Return the shares that live workers declare, and other shares that jobs wait for, by name.

        Example::

            for share in (await inspector.shares()).items:
                print(share.name, share.tenants, share.running, share.admitted, share.waiting)
        """
        return (await read_shares(self._reads)).shares

    async def tenants(self, name: str) -> TenantList:
        """Return the tenants of a share whose jobs wait, are admitted or run, those with most waiting first.

        Raises:
            TypeError: ``name`` is not a str.
            ValueError: ``name`` contains a character that PostgreSQL cannot store.

        Example::

            for tenant in (await inspector.tenants("exports")).items:
                print(tenant.key, tenant.running, tenant.admitted, tenant.waiting)
        """
        # In the tables, the text of a tenant is share:<name>:<key>. All tenants of a share have one prefix.
        prefix = named_prefix(BLOCKED_BY_SHARE, check_text("name", name))
        share_tenants = await _tenants(self._reads, {prefix: name}, prefix)
        items = share_tenants.by_share.get(prefix, [])
        return TenantList(
            items[:MAX_ITEMS],
            share_tenants.is_capped or len(items) > MAX_ITEMS,
            share_tenants.is_waiting_capped,
            share_tenants.is_in_flight_capped,
        )


async def read_shares(reads: InspectionStore) -> ShareOverview:
    """Return the shares that live workers declare or that jobs wait for, with their tenants."""
    tasks_by_share = _declared(await reads.workers.list_workers())
    # The tables have the text of a share, share:<name>:, which is a prefix of the texts of its tenants.
    names = {named_prefix(BLOCKED_BY_SHARE, name): name for name in tasks_by_share}
    share_tenants = await _tenants(reads, names)
    shares: list[ShareState] = []
    for prefix in {*names, *share_tenants.by_share}:
        name = _name(prefix, names)
        tenants = share_tenants.by_share.get(prefix, [])
        share = ShareState(
            name=name,
            tasks=tuple(sorted(tasks_by_share.get(name, ()))),
            tenants=len(tenants),
            running=sum(tenant.running for tenant in tenants),
            admitted=sum(tenant.admitted for tenant in tenants),
            waiting=sum(tenant.waiting for tenant in tenants),
        )
        shares.append(share)
    shares.sort(key=lambda share: share.name)
    is_capped = share_tenants.is_capped or len(shares) > MAX_ITEMS
    tenants_by_name = {_name(prefix, names): tenants for prefix, tenants in share_tenants.by_share.items()}
    share_list = ShareList(
        shares[:MAX_ITEMS], is_capped, share_tenants.is_waiting_capped, share_tenants.is_in_flight_capped
    )
    return ShareOverview(share_list, tenants_by_name)


def _declared(workers: Iterable[Worker]) -> dict[str, set[str]]:
    """Return the tasks of each share that live workers declare, by the name of the share."""
    tasks_by_share: dict[str, set[str]] = {}
    for worker in workers:
        if not worker.is_alive:
            continue
        for share in ReportedSettings(worker.settings).shares:
            tasks_by_share.setdefault(share.name, set()).add(share.task)
    return tasks_by_share


def _name(prefix: str, names: Mapping[str, str]) -> str:
    """Return the name of the share with the text ``prefix``: ``share:<name>:``.

    ``names`` has the names that live workers declare, by their texts. For any other share, the name is that
    in the text, in which some characters are escaped.
    """
    name_in_text, _ = name_and_key(BLOCKED_BY_SHARE, prefix)
    return names.get(prefix) or name_in_text


class _Tenants(NamedTuple):
    """The tenants by the text of their share, and which of the numbers may be greater."""

    by_share: dict[str, list[TenantState]]
    is_capped: bool
    is_waiting_capped: bool
    is_in_flight_capped: bool


async def _tenants(
    reads: InspectionStore, names: Mapping[str, str], prefix: str = BLOCKED_BY_SHARE
) -> _Tenants:
    """Return the tenants of shares by the text of their share, with the numbers of their jobs.

    Args:
        reads: The tables.
        names: The names of the shares that live workers declare, by their texts.
        prefix: The start of the texts of the tenants to return: all tenants, or those of one share.
    """
    waiting = await reads.shares.tenants(prefix, MAX_TENANTS)
    # Jobs in flight are those that had their turn: they run, or are admitted.
    in_flight, is_in_flight_capped = await reads.limits.in_flight()
    # The tenants that were read sort after the prefix, so those of other shares may be among them. The prefix
    # itself is added, because it is the text of a tenant with an empty key.
    keys = dict.fromkeys(key for key in (prefix, *waiting, *in_flight) if key.startswith(prefix))
    rows, is_waiting_capped = await reads.limits.tenants(list(keys))
    tenants_by_share: dict[str, list[TenantState]] = {}
    for row in rows:
        # The prefix is always among the keys, although there may be no jobs of a tenant with an empty key.
        if not row.jobs and row.key not in in_flight:
            continue
        share = prefix_of(BLOCKED_BY_SHARE, row.key)
        tenant = _tenant(row, _name(share, names), in_flight.get(row.key, InFlightRow()))
        tenants_by_share.setdefault(share, []).append(tenant)
    # Tenants with most waiting jobs come first, then those with most jobs in flight.
    for tenants in tenants_by_share.values():
        tenants.sort(key=lambda tenant: (-tenant.waiting, -(tenant.running + tenant.admitted), tenant.key))
    return _Tenants(tenants_by_share, len(waiting) >= MAX_TENANTS, is_waiting_capped, is_in_flight_capped)


def _tenant(row: TenantRow, name: str, in_flight: InFlightRow) -> TenantState:
    """Return a tenant of the share ``name``, with its waiting jobs of ``row`` and those in flight."""
    _, key = name_and_key(BLOCKED_BY_SHARE, row.key)
    return TenantState(
        name=name,
        key=key,
        running=in_flight.running,
        admitted=in_flight.admitted,
        waiting=row.jobs,
        last_turn_at=row.last_turn_at,
    )
