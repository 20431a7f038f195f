"""Limits: how many attempts of a task, or of a key, may run or start.

Workers identify a limit by a text, ``limit:<name>:<key>``. Each admitted attempt leaves a row with that text
in ``scheduler_starts``, and a job that waits for the limit has it in ``blocked_on``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, NamedTuple

from pg_scheduler.base.public import public
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.keys import (
    KeyFunction,
    KeyFunctionError,
    check_key_function,
    check_key_name,
    key_text,
    name_and_key,
    named_prefix,
    prefix_of,
)
from pg_scheduler.jobs.validation import check_count

BLOCKED_BY_LIMIT: Final = "limit:"
"""How ``blocked_on`` begins in a job that waits for a limit."""

MAX_PER: Final = timedelta(days=366)

MAX_GROUP_STEP_S: Final = 0.1
"""The longest step in which several attempts start together, in seconds. One with one start may be longer."""


class LimitKeyError(KeyFunctionError):
    """The key function of a limit raised, or returned a value that is not a valid key."""

    remedy = "correct it, and retry_job()"


@public
@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on the attempts that run at once or start within a time, across all workers.

    Args:
        name: The name of the limit, of at most 200 bytes and without a colon. Limits of the same name are
            shared by their tasks. The name of the task when None.
        max_running: Attempts that may run at once; at least 1.
        max_starts: Attempts that may start within any time span of ``per``; at least 1.
        per: The time span, as a timedelta of at most 366 days. Required with ``max_starts``.
        spread: Spread the starts evenly over ``per`` instead of admitting ``max_starts`` at once: 10 per
            second start at least 100 ms apart. A rate of more than that starts in groups, about 10 a second.
        key: A function that is called with the arguments of the job and returns a str or an int, of at most
            200 bytes. Each key has a limit of its own. It must be fast and must not block, because the event
            loop calls it before each attempt. A job whose key function raises fails.

    Raises:
        ConfigurationError: Neither ``max_running`` nor ``max_starts`` is given, ``per`` is missing or out of
            range, ``spread`` is given without ``max_starts``, or a value is out of range; a ValueError.
        TypeError: A value has the wrong type.

    Example:
        >>> from datetime import timedelta
        >>> from pg_scheduler import Limit, job
        >>> @job(
        ...     limits=[
        ...         Limit("stripe", max_running=20),
        ...         Limit("stripe", max_starts=100, per=timedelta(seconds=10)),
        ...         Limit(max_running=1, key=lambda account, **_: account),
        ...     ]
        ... )
        ... async def charge(account: int, amount: int) -> None: ...
    """

    name: str | None = None
    max_running: int | None = field(default=None, kw_only=True)
    max_starts: int | None = field(default=None, kw_only=True)
    per: timedelta | None = field(default=None, kw_only=True)
    key: KeyFunction | None = field(default=None, kw_only=True)
    spread: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.name is not None:
            check_key_name("Limit", self.name, "stripe.charges")
        if self.max_running is None and self.max_starts is None:
            raise ConfigurationError(
                "a Limit needs max_running= or max_starts=; write Limit(max_running=1), or "
                "Limit(max_starts=100, per=timedelta(seconds=10))"
            )
        if self.max_running is not None:
            check_count("max_running", self.max_running, least=1)
        if self.max_starts is not None:
            check_count("max_starts", self.max_starts, least=1)
        _check_per(self.max_starts, self.per)
        _check_spread(self.spread, self.max_starts)
        if self.key is not None:
            check_key_function(self.key, "account")


class LimitNumbers(NamedTuple):
    """How many attempts a limit lets run at once, and how many start within a time; None for no limit.

    ``max_starts`` and ``per_s`` are both given, or both None.
    """

    max_running: int | None
    max_starts: int | None
    per_s: float | None


def numbers_of(limit: Limit) -> LimitNumbers:
    """Return the numbers that a limit declares."""
    per_s = None if limit.per is None else limit.per.total_seconds()
    return LimitNumbers(limit.max_running, limit.max_starts, per_s)


def lowest_numbers(declared: Sequence[LimitNumbers]) -> LimitNumbers:
    """Return the lowest numbers that are declared for a limit; None for a number that none declares.

    ``per_s`` is the time span of the lowest ``max_starts``.
    """
    running = [numbers.max_running for numbers in declared if numbers.max_running is not None]
    starts = [(numbers.max_starts, numbers.per_s) for numbers in declared if numbers.max_starts is not None]
    # Only the numbers of starts are compared. Each is the first part of a pair.
    max_starts, per_s = min(starts, key=lambda start: start[0], default=(None, None))
    return LimitNumbers(min(running, default=None), max_starts, per_s)


def _check_per(max_starts: int | None, per: object) -> None:
    """Raise unless ``per`` is a valid time span, and is given exactly if ``max_starts`` is."""
    if per is not None and not isinstance(per, timedelta):
        raise TypeError(
            f"per must be a timedelta, not {type(per).__name__}: {per!r}; pass timedelta(seconds={per!r})"
        )
    if (max_starts is None) != (per is None):
        raise ConfigurationError(
            "max_starts= and per= of a Limit belong together; write "
            "Limit(max_starts=100, per=timedelta(seconds=10))"
        )
    if per is not None and not timedelta(milliseconds=1) <= per <= MAX_PER:
        raise ConfigurationError(f"per must be between 1 ms and {MAX_PER.days} days, not {per}")


def _check_spread(spread: object, max_starts: int | None) -> None:
    """Raise unless ``spread`` is a bool, which is False without ``max_starts``."""
    if not isinstance(spread, bool):
        raise TypeError(f"spread must be True or False, not {type(spread).__name__}: {spread!r}")
    if spread and max_starts is None:
        raise ConfigurationError(
            "spread= of a Limit needs max_starts= and per=; write "
            "Limit(max_starts=10, per=timedelta(seconds=1), spread=True)"
        )


def check_limits(limits: object) -> tuple[Limit, ...]:
    """Return the limits as a tuple.

    Raises:
        TypeError: It is not an iterable of limits.
    """
    if isinstance(limits, Limit):
        raise TypeError(f"limits must be a list, not one Limit; write limits=[{limits!r}]")
    if not isinstance(limits, Iterable):
        raise TypeError(f"limits must be a list of Limit, not {type(limits).__name__}")
    items = tuple(limits)
    for item in items:
        if not isinstance(item, Limit):
            raise TypeError(f"limits must contain Limit(...) only, not {type(item).__name__}")
    return items


def limits_of_job(
    limits: Sequence[Limit], task_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, LimitNumbers]]:
    """Return the limits of a job with these arguments, each as the text that identifies it and its numbers.

    A limit that spreads its starts occurs twice: with the declared numbers, and with those of a step. A step
    is the short time span within which a few attempts may start together.

    Raises:
        LimitKeyError: A key function raised, or returned something else than a short str or int.
    """
    job_limits = []
    for limit in limits:
        text = _prefix(limit, task_name) + _key_of(limit, task_name, args, kwargs)
        job_limits += [(text, numbers) for numbers in _numbers_and_step(limit)]
    return job_limits


def limits_of_every_job(limits: Sequence[Limit], task_name: str) -> list[tuple[str, LimitNumbers]] | None:
    """Return what `limits_of_job()` returns for every job of a task; None if that depends on arguments."""
    if any(limit.key is not None for limit in limits):
        return None
    return limits_of_job(limits, task_name, (), {})


def is_shared_by_all(limits: Sequence[Limit], task_name: str, key: str) -> bool:
    """Return whether a limit applies to every job of a task, whatever its arguments are.

    ``key`` is the text that identifies the limit, ``limit:<name>:<key>``.
    """
    return any(limit.key is None and _prefix(limit, task_name) == key for limit in limits)


def _numbers_and_step(limit: Limit) -> list[LimitNumbers]:
    """Return the numbers of a limit: those that it declares, and those of a step if it spreads its starts.

    A step is the short time span within which a few attempts may start together.
    """
    declared = numbers_of(limit)
    if not limit.spread or declared.max_starts is None or declared.per_s is None:
        return [declared]
    # A step has as many starts as the rate allows in MAX_GROUP_STEP_S. At a rate of less than one start in
    # this time, it has one start, and is longer.
    starts_per_step = max(int(declared.max_starts * MAX_GROUP_STEP_S / declared.per_s), 1)
    step_s = declared.per_s * starts_per_step / declared.max_starts
    return [declared, LimitNumbers(max_running=None, max_starts=starts_per_step, per_s=step_s)]


def _key_of(limit: Limit, task_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the key of a job with these arguments; empty for a limit without a key function."""
    if limit.key is None:
        return ""
    owner = f"limit {limit.name or task_name!r}"
    return key_text(limit.key, owner, args, kwargs, error=LimitKeyError)


def _prefix(limit: Limit, task_name: str) -> str:
    """Return the text of a limit of a task without its key, ``limit:<name>:``."""
    return key_prefix(limit.name or task_name)


def key_prefix(name: str) -> str:
    """Return the text of the limit of this name without its key, ``limit:<name>:``."""
    return named_prefix(BLOCKED_BY_LIMIT, name)


class LimitBook:
    """The limits of the registered tasks, by the part of ``blocked_on`` before the key."""

    def __init__(self, tasks: Iterable[tuple[str, Sequence[Limit]]]) -> None:
        # A number set has the numbers of all limits that one task declares under a name.
        self._number_sets: defaultdict[str, list[tuple[LimitNumbers, ...]]] = defaultdict(list)
        self._declared: defaultdict[str, list[Limit]] = defaultdict(list)
        for task_name, limits in tasks:
            numbers_by_prefix: defaultdict[str, list[LimitNumbers]] = defaultdict(list)
            for limit in limits:
                prefix = _prefix(limit, task_name)
                numbers_by_prefix[prefix] += _numbers_and_step(limit)
                self._declared[prefix].append(limit)
            # A task may declare several limits of one name, whose numbers apply together.
            for prefix, numbers in numbers_by_prefix.items():
                number_set = tuple(numbers)
                if number_set not in self._number_sets[prefix]:
                    self._number_sets[prefix].append(number_set)

    def declared(self, blocked_on: str) -> Sequence[Limit]:
        """Return the limits that tasks declare under the name in this text; empty if the name is unknown."""
        return self._declared.get(prefix_of(BLOCKED_BY_LIMIT, blocked_on), ())

    def number_sets(self, blocked_on: str) -> Sequence[Sequence[LimitNumbers]]:
        """Return each different set of numbers that a task declares for a limit; empty if it is unknown."""
        return self._number_sets.get(prefix_of(BLOCKED_BY_LIMIT, blocked_on), ())

    def longest_per_s(self, blocked_on: str) -> float:
        """Return the longest time span of a limit in seconds, for which its starts are kept."""
        spans = (
            numbers.per_s or 0.0 for number_set in self.number_sets(blocked_on) for numbers in number_set
        )
        return max(spans, default=0.0)


def limit_of(blocked_on: str | None) -> tuple[str, str]:
    """Return the name and the key of the limit that a job waits for; empty texts if it waits for none."""
    return name_and_key(BLOCKED_BY_LIMIT, blocked_on)
