"""The limits that live workers declare: how much of each is used, and the jobs that run and wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal, NamedTuple

from pg_scheduler.inspect.base import InspectorBase, tables_of
from pg_scheduler.inspect.store.limits import MAX_STARTS, LimitJobRow
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.inspect.texts import count, counted, length
from pg_scheduler.jobs.limits import MAX_PER, LimitNumbers, key_prefix, lowest_numbers
from pg_scheduler.jobs.model import Worker
from pg_scheduler.jobs.validation import check_text
from pg_scheduler.jobs.worker_report import ReportedSettings

MAX_LIMITS: Final = 200
"""Limits whose use is read."""

MAX_KEYS: Final = 200
"""Keys of a limit that are read."""

MAX_SHOWN_KEYS: Final = 10
"""Keys of a limit whose jobs are read."""

MAX_JOBS: Final = 20
"""Jobs that are read if one key is shown. If there are several keys, a tenth of this is read for each."""


@dataclass(frozen=True, slots=True)
class LimitState:
    """A limit that live workers declare."""

    name: str
    """Its name."""
    tasks: tuple[str, ...]
    """The tasks that share it."""
    by_key: bool
    """Whether each key has a limit of its own."""
    max_running: int | None
    """Attempts that may run at once; None for no limit."""
    max_starts: int | None
    """Attempts that may start within ``per_s``; None for no limit."""
    per_s: float | None
    """The time span of ``max_starts`` in seconds; None if starts have no limit."""
    running: int | None
    """Attempts that run within the limit; None if it is by key."""
    starts: int | None
    """Starts that the limit still counts, at most 10,000; None if it is by key."""
    waiting: int
    """Jobs that wait for the limit, among the first 20,000 blocked jobs."""
    spread: bool = False
    """Whether the starts are spread evenly over ``per_s``."""


@dataclass(frozen=True, slots=True)
class LimitList:
    """The limits that live workers declare, and whether there are more."""

    items: Sequence[LimitState]
    """At most 200 limits, by name."""
    is_capped: bool
    """Whether there are more."""
    is_waiting_capped: bool
    """Whether counting the waiting jobs stopped after 20,000 blocked jobs or 500 keys, so that there may be
    more."""

    @property
    def summary(self) -> str:
        """The numbers of items and waiting jobs, in one line, as every front end shows them."""
        # Workers may declare different numbers for one name. Each of these items counts the same jobs.
        one_item_per_name = {item.name: item for item in self.items}.values()
        limits = counted(len(self.items), "limit", is_capped=self.is_capped)
        waiting = _waiting(
            one_item_per_name, is_capped=self.is_capped, is_waiting_capped=self.is_waiting_capped
        )
        return f"{limits}, {waiting}"


@dataclass(frozen=True, slots=True)
class LimitKeyState:
    """A key of a limit."""

    name: str
    """The name of the limit."""
    key: str
    """The key; empty for a limit without keys."""
    running: int
    """Attempts of the key that run."""
    starts: int
    """Starts of the key that still count, at most 10,000."""
    waiting: int
    """Jobs that wait for the key, among the first 20,000 blocked jobs."""
    max_running: int | None = None
    """Attempts of the key that may run at once; None for no limit, or if no live worker declares the
    limit."""
    max_starts: int | None = None
    """Attempts of the key that may start within ``per_s``; None for no limit, or if no live worker declares
    the limit."""
    per_s: float | None = None
    """The time span of ``max_starts`` in seconds; None if ``max_starts`` is None."""


class LimitCount(NamedTuple):
    """What a limit counts.

    Attributes:
        what: ``running`` or ``started``.
        used: How many attempts the limit counts now; None if it is by key, or if the reader may not see that.
        most: How many attempts the limit admits; None for no limit.
        per_s: The time span in seconds for which a start counts; None for attempts, which count while they
            run.
    """

    what: Literal["running", "started"]
    used: int | None
    most: int | None
    per_s: float | None = None

    @property
    def is_full(self) -> bool:
        """Whether the limit admits no further attempt."""
        return self.used is not None and self.most is not None and self.used >= self.most

    @property
    def bound(self) -> str:
        """What the limit admits: ``at most 20 running``, ``at most 5 starts in 10 s``; empty for no limit."""
        if self.most is None:
            return ""
        if self.per_s is None:
            return f"at most {self.most:,} running"
        return f"at most {counted(self.most, 'start')} in {length(self.per_s)}"


def use_count(number: int) -> str:
    """Return as a text how many attempts or starts a limit counts: ``10,000+`` if more may count."""
    return count(number, is_capped=number >= MAX_STARTS)


def limit_counts(limit: LimitState | LimitKeyState) -> list[LimitCount]:
    """Return the two counts of a limit or of a key: running attempts and starts. Either may be unbounded."""
    return [
        LimitCount("running", limit.running, limit.max_running),
        LimitCount("started", limit.starts, limit.max_starts, limit.per_s),
    ]


@dataclass(frozen=True, slots=True)
class LimitKeyList:
    """Keys of a limit, and whether there are more."""

    items: Sequence[LimitKeyState]
    """At most 200 keys. Keys with most waiting jobs come first."""
    is_capped: bool
    """Whether there may be more keys."""
    is_waiting_capped: bool
    """Whether counting the waiting jobs stopped after 20,000 blocked jobs or 500 keys, so that there may be
    more."""

    @property
    def summary(self) -> str:
        """The numbers of items and waiting jobs, in one line, as every front end shows them."""
        # Keys with fewer waiting jobs are left out first, so if the last one has none, all jobs are counted.
        are_jobs_cut = self.is_capped and bool(self.items) and self.items[-1].waiting > 0
        waiting = _waiting(self.items, is_capped=are_jobs_cut, is_waiting_capped=self.is_waiting_capped)
        # The only item of a limit without keys is the limit itself.
        if [item.key for item in self.items] == [""] and not self.is_capped:
            return waiting
        # If counting blocked jobs stopped, keys that only blocked jobs have may be missing.
        keys = counted(len(self.items), "key", is_capped=self.is_capped or self.is_waiting_capped)
        return f"{keys}, {waiting}"


def _waiting(items: Iterable[LimitState | LimitKeyState], *, is_capped: bool, is_waiting_capped: bool) -> str:
    """Return as a text how many jobs wait for some limits or keys.

    ``is_capped`` is whether there may be further items. ``is_waiting_capped`` is whether counting the blocked
    jobs stopped at its maximum.
    """
    jobs = sum(item.waiting for item in items)
    bound = " among the first 20,000 blocked jobs and 500 keys" if is_waiting_capped else ""
    return f"{counted(jobs, 'waiting job', is_capped=is_capped or is_waiting_capped)}{bound}"


def declared_limits(workers: Iterable[Worker]) -> list[LimitState]:
    """Return the limits that live workers declare, by name, with their tasks and without their use.

    Tasks and workers that declare the same numbers for a name share an item. Different numbers for one name,
    as during a deployment, are several items.
    """
    tasks_by_limit: dict[LimitState, set[str]] = {}
    for worker in workers:
        if not worker.is_alive:
            continue
        for limit in ReportedSettings(worker.settings).limits:
            declared = LimitState(
                name=limit.name,
                tasks=(),
                by_key=limit.by_key,
                **limit.numbers._asdict(),
                running=None,
                starts=None,
                waiting=0,
                spread=limit.spread,
            )
            tasks_by_limit.setdefault(declared, set()).add(limit.task)
    # The repr of a limit begins with its name. The limits themselves have no order, because numbers may be
    # None.
    limits_in_order = sorted(tasks_by_limit, key=repr)
    return [replace(limit, tasks=tuple(sorted(tasks_by_limit[limit]))) for limit in limits_in_order]


async def used_limits(reads: InspectionStore) -> tuple[LimitList, Mapping[str, int]]:
    """Return the limits that live workers declare, and the number of blocked jobs by what they wait for."""
    declared = declared_limits(await reads.workers.list_workers())
    blocked = await reads.limits.blocked()
    states = [await _used(limit, blocked.jobs, reads) for limit in declared[:MAX_LIMITS]]
    return LimitList(states, len(declared) > MAX_LIMITS, blocked.is_capped), blocked.jobs


async def _used(limit: LimitState, blocked: Mapping[str, int], reads: InspectionStore) -> LimitState:
    """Return a limit with the number of its waiting jobs, and with its use unless it is by key.

    ``blocked`` has the numbers of blocked jobs by what they wait for, such as ``limit:<name>:<key>``.
    """
    prefix = key_prefix(limit.name)
    waiting = sum(jobs for blocked_on, jobs in blocked.items() if blocked_on.startswith(prefix))
    if limit.by_key:
        return replace(limit, waiting=waiting)
    # A limit without keys has the empty key, so the prefix is its whole text.
    running, starts = await reads.limits.use(prefix)
    return replace(limit, waiting=waiting, running=running, starts=starts)


class LimitReads(InspectorBase):
    """The methods of `Inspector` that read limits."""

    async def limits(self) -> LimitList:
        """Return the limits that live workers declare, by name.

        Example::

            for limit in (await inspector.limits()).items:
                print(limit.name, limit.running, limit.max_running, limit.waiting)
        """
        limits, _blocked = await used_limits(self._reads)
        return limits

    async def limit_keys(self, name: str) -> LimitKeyList:
        """Return the keys of a limit that are in use or for which jobs wait.

        The keys with most waiting jobs come first. A limit without keys has one item, even if it is not in
        use.

        Example::

            for state in (await inspector.limit_keys("stripe")).items:
                print(state.key, state.running, state.max_running, state.waiting)
        """
        prefix = key_prefix(check_text("name", name))
        workers = await self._reads.workers.list_workers()
        declared = [limit for limit in declared_limits(workers) if limit.name == name]
        limits = self._reads.limits
        # The tables have a key together with its limit, as the text limit:<name>:<key>.
        blocked = await limits.blocked()
        waiting = {text: jobs for text, jobs in blocked.jobs.items() if text.startswith(prefix)}
        used_texts, is_capped = await limits.keys(prefix)
        # A limit without keys has the empty key, whose text is the prefix itself.
        unkeyed = {prefix} if any(not limit.by_key for limit in declared) else set()
        all_texts = {*waiting, *used_texts, *unkeyed}
        # The keys with most waiting jobs come first.
        texts = sorted(all_texts, key=lambda text: (-waiting.get(text, 0), text))
        states = []
        for text in texts[:MAX_KEYS]:
            # A key that has admitted attempts is left out if none of them runs or counts any more.
            running, starts = await limits.use(text)
            if running or starts or text in waiting or text in unkeyed:
                state = LimitKeyState(
                    name=name,
                    key=text.removeprefix(prefix),
                    running=running,
                    starts=starts,
                    waiting=waiting.get(text, 0),
                    **_lowest_numbers(declared, by_key=text != prefix)._asdict(),
                )
                states.append(state)
        return LimitKeyList(states, is_capped or len(texts) > MAX_KEYS, blocked.is_capped)


def _lowest_numbers(declared: Iterable[LimitState], *, by_key: bool) -> LimitNumbers:
    """Return the lowest numbers that live workers declare for a limit.

    Workers may declare different ones. ``by_key`` is whether declarations for each key count, or those for
    the limit as a whole.
    """
    numbers = [
        LimitNumbers(limit.max_running, limit.max_starts, limit.per_s)
        for limit in declared
        if limit.by_key == by_key
    ]
    return lowest_numbers(numbers)


@dataclass(frozen=True, slots=True)
class LimitOverview:
    """The limits that live workers declare.

    Attributes:
        limits: The limits with their use.
        full_keys: For how many keys of a limit jobs wait, by the name of the limit.
        next_starts: When a full limit without keys admits its next start, by the name of the limit.
    """

    limits: LimitList
    full_keys: Mapping[str, int]
    next_starts: Mapping[str, datetime]


@dataclass(frozen=True, slots=True)
class LimitJobs:
    """Jobs of a limit, by its keys.

    Attributes:
        holders: The jobs that run within the limit; the job that runs longest comes first.
        queue: The waiting jobs that start next.
        next_starts: When the key admits its next start; keys that are not full are missing.
    """

    holders: Mapping[str, Sequence[LimitJobRow]]
    queue: Mapping[str, Sequence[LimitJobRow]]
    next_starts: Mapping[str, datetime]


async def limit_overview(inspector: InspectorBase) -> LimitOverview:
    """Return the limits that live workers declare, with their use.

    For a limit with keys this includes how many of its keys are full. For a limit without keys, it includes
    when the limit admits its next start, if it is full.
    """
    limits, blocked = await used_limits(tables_of(inspector).reads)
    full_keys: dict[str, int] = {}
    for name in {item.name for item in limits.items if item.by_key}:
        prefix = key_prefix(name)
        # A key for which jobs wait counts as full. The prefix itself is the text of the empty key.
        full_keys[name] = sum(text.startswith(prefix) and text != prefix for text in blocked)
    next_starts_by_text = await _next_starts(
        inspector, ((key_prefix(item.name), item) for item in limits.items)
    )
    next_starts = {}
    for item in limits.items:
        next_start = next_starts_by_text.get(key_prefix(item.name))
        if next_start is not None:
            next_starts[item.name] = next_start
    return LimitOverview(limits, full_keys, next_starts)


async def limit_jobs(inspector: InspectorBase, keys: Sequence[LimitKeyState]) -> LimitJobs:
    """Return the running jobs and the waiting jobs of the first 10 keys of a limit."""
    # The tables have a key together with its limit, as the text limit:<name>:<key>.
    states_by_text = {key_prefix(state.name) + state.key: state for state in keys[:MAX_SHOWN_KEYS]}
    jobs_per_text = MAX_JOBS if len(states_by_text) == 1 else MAX_JOBS // 10
    reads = tables_of(inspector).reads.limits
    texts_with_running = [text for text, state in states_by_text.items() if state.running]
    holders = await reads.holders(texts_with_running, jobs_per_text) if texts_with_running else []
    texts_with_waiting = [text for text, state in states_by_text.items() if state.waiting]
    queue = await reads.queue(texts_with_waiting, jobs_per_text) if texts_with_waiting else []
    next_starts_by_text = await _next_starts(inspector, states_by_text.items())
    return LimitJobs(
        holders=_by_key(holders, states_by_text),
        queue=_by_key(queue, states_by_text),
        next_starts={states_by_text[text].key: at for text, at in next_starts_by_text.items()},
    )


def _by_key(
    rows: Iterable[LimitJobRow], states_by_text: Mapping[str, LimitKeyState]
) -> dict[str, list[LimitJobRow]]:
    """Group rows by the key of their limit. A row has this key within the text ``limit:<name>:<key>``."""
    rows_by_key: dict[str, list[LimitJobRow]] = {}
    for row in rows:
        rows_by_key.setdefault(states_by_text[row.key].key, []).append(row)
    return rows_by_key


async def _next_starts(
    inspector: InspectorBase, limits: Iterable[tuple[str, LimitState | LimitKeyState]]
) -> dict[str, datetime]:
    """Return when those of the limits that are full admit their next start, by their texts.

    ``limits`` has each limit, or key of a limit, with its text ``limit:<name>:<key>``.
    """
    full_limits = [
        (text, int(limit.max_starts), float(limit.per_s))
        for text, limit in limits
        if limit.starts is not None
        and limit.max_starts is not None
        and limit.per_s is not None
        and limit.starts >= limit.max_starts  # it is full
        # The row of a worker may contain any number. Those that no declaration can have are left out.
        and 1 <= limit.max_starts <= MAX_STARTS
        and 0 < limit.per_s <= MAX_PER.total_seconds()
    ]
    reads = tables_of(inspector).reads.limits
    return await reads.next_starts(full_limits) if full_limits else {}
