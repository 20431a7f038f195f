"""The delay before a failed attempt is retried, and exceptions by which a job controls its own retries.

Code that makes several calls at once, as in an ``asyncio.TaskGroup``, raises an exception group. What counts
are its leaves, the exceptions in it. An ``Abort`` among them is the strongest, since the job cannot succeed
any more. A ``Snooze`` is the weakest: with any other leaf the attempt has failed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from pg_scheduler.base.foreign import cause_of, guarded, is_a, leaves_of
from pg_scheduler.base.public import public
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.validation import check_delay

MAX_DELAY: Final = timedelta(days=3650)


@public
@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with jitter.

    The delay before retry ``n`` (from 0) is ``base * factor**n``, at most ``maximum``. It varies by up to the
    fraction ``jitter`` of itself, so that jobs that failed together are not retried together.

    For ``only`` and ``never``, a timeout is a ``TimeoutError``. Of an exception group, such as that of an
    ``asyncio.TaskGroup``, the exceptions in it count: the job is retried if ``only`` is empty or names all of
    them, and ``never`` names none.

    Raises:
        ConfigurationError: A value is out of range or has the wrong type; a ValueError.

    Example:
        >>> RetryPolicy(jitter=0).delay(2, spread=0.0)
        datetime.timedelta(seconds=240)
    """

    base: timedelta = timedelta(seconds=60)
    """The delay before the first retry, greater than zero."""
    factor: float = 2.0
    """The factor by which the delay grows with each retry, at least 1."""
    maximum: timedelta = timedelta(seconds=300)
    """The longest delay, from ``base`` to 3650 days."""
    jitter: float = 0.1
    """The fraction of the delay by which it varies, from 0 to less than 1."""
    only: tuple[type[BaseException], ...] = field(default=(), kw_only=True)
    """The classes of exceptions that are retried, and their subclasses; all if empty."""
    never: tuple[type[BaseException], ...] = field(default=(), kw_only=True)
    """The classes of exceptions that fail the job at once, and their subclasses; stronger than ``only``."""

    def __post_init__(self) -> None:
        for name in ("base", "maximum"):
            value = getattr(self, name)
            if not isinstance(value, timedelta):
                raise ConfigurationError(
                    f"{name} must be a timedelta, not {value!r}; pass timedelta(seconds=...)"
                )
        for name in ("factor", "jitter"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigurationError(f"{name} must be a number, not {value!r}")
        if not timedelta(0) < self.base <= self.maximum <= MAX_DELAY:
            raise ConfigurationError(
                f"RetryPolicy requires 0 < base <= maximum <= {MAX_DELAY.days} days, "
                f"not base={self.base}, maximum={self.maximum}"
            )
        if not self.factor >= 1 or not 0 <= self.jitter < 1:
            raise ConfigurationError(
                "RetryPolicy requires factor >= 1 and 0 <= jitter < 1, "
                f"not factor={self.factor}, jitter={self.jitter}"
            )

        for name in ("only", "never"):
            classes = getattr(self, name)
            if not isinstance(classes, tuple) or not all(map(_is_exception_class, classes)):
                raise ConfigurationError(
                    f"{name} must be a tuple of exception classes, not {classes!r}; "
                    f"pass {name}=(OSError, ...)"
                )

    def allows(self, error: BaseException) -> bool:
        """Return whether an attempt that raised this exception is retried."""
        # The class of a group counts too, since a policy may name it.
        kinds = [type(leaf) for leaf in leaves_of(error)]
        if issubclass(type(error), self.never) or any(issubclass(kind, self.never) for kind in kinds):
            return False
        if not self.only or issubclass(type(error), self.only):
            return True
        return all(issubclass(kind, self.only) for kind in kinds)

    def delay(self, retry_count: int, *, spread: float) -> timedelta:
        """Return the delay before the next attempt.

        Args:
            retry_count: The number of retries so far.
            spread: A number from -1 to 1 that selects the point within the jitter.
        """
        maximum = self.maximum.total_seconds()
        try:
            seconds = min(self.base.total_seconds() * float(self.factor) ** retry_count, maximum)
        except OverflowError:
            seconds = maximum
        return timedelta(seconds=min(seconds * (1 + self.jitter * spread), maximum))


def _is_exception_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


DEFAULT_RETRY_POLICY: Final = RetryPolicy()


DEFAULT_DELAY: Final = timedelta(minutes=1)


class RunAgain(Exception):
    """Ends an attempt, and makes the job due again after a delay."""

    def __init__(self, delay: float | timedelta) -> None:
        self._delay = _checked_delay(self, delay)
        super().__init__(f"run again in {self._delay}")

    @property
    def delay(self) -> timedelta:
        """The time until the next attempt is due; a minute for a subclass that sets none."""
        return getattr(self, "_delay", DEFAULT_DELAY)

    def __reduce__(self) -> tuple[type[RunAgain], tuple[timedelta]]:
        # By default, a copy would be made with the message in place of the delay.
        return type(self), (self.delay,)


@public
class Snooze(RunAgain):
    """Raise it in a job to run the job again after a delay, without using a retry.

    The attempt counts as neither failed nor completed. A job may snooze any number of times. It gets its
    whole misfire grace time again.

    Args:
        delay: The time in seconds or as a timedelta, more than 0 and at most 100 years.

    Raises:
        TypeError: ``delay`` has the wrong type.
        ValueError: ``delay`` is out of range.

    Example:
        >>> from pg_scheduler import Snooze
        >>> async def export(order: int) -> None:
        ...     if not await is_paid(order):
        ...         raise Snooze(60)
    """


@public
class Retry(RunAgain):
    """Raise it in a job to fail the attempt and choose the delay before the retry.

    It uses one of the job's ``max_retries``; if none is left, the job fails. The delay replaces that of the
    `RetryPolicy`, whose ``only=`` and ``never=`` do not apply. Raise it ``from`` the error that is the
    reason: the job stores that error.

    Args:
        delay: The time in seconds or as a timedelta, at most 100 years. With 0, as a service gives it by
            ``Retry-After: 0``, the retry is due at once.

    Raises:
        TypeError: ``delay`` has the wrong type.
        ValueError: ``delay`` is out of range.

    Example:
        >>> from pg_scheduler import Retry, current_job
        >>> async def charge(order: int) -> None:
        ...     try:
        ...         await call_bank(order)
        ...     except ConnectionError as error:
        ...         raise Retry(30 * 2 ** current_job().retry_count) from error
    """


def delay_of(again: RunAgain) -> timedelta:
    """Return the delay of a `Snooze` or `Retry`; the default one if a subclass returns no valid delay."""
    return guarded(lambda: _checked_delay(again, again.delay), lambda _: DEFAULT_DELAY)


def _checked_delay(again: RunAgain, delay: float | timedelta | None) -> timedelta:
    """Return the delay of a `Snooze` or `Retry`; raise TypeError or ValueError if it is invalid."""
    seconds = check_delay("delay", delay)
    # A job has few retries, while the number of its snoozes has no limit.
    if is_a(again, Retry):
        if delay is None:
            raise ValueError("delay must be seconds or a timedelta, not None; pass 0 to retry at once")
    elif not seconds:
        raise ValueError(
            f"delay must be more than 0 seconds, not {delay!r}; return or raise Abort(reason) to end the job"
        )
    # A timedelta counts microseconds. A shorter delay is no request for none.
    return max(timedelta(seconds=seconds), timedelta.resolution) if seconds else timedelta(0)


@public
class Abort(Exception):
    """Raise it in a job to fail the job at once, whatever retries are left.

    The reason is stored in ``Job.error_message``, after the name of the class.

    Args:
        reason: Why the job cannot succeed.

    Example:
        >>> from pg_scheduler import Abort
        >>> async def charge(order: int) -> None:
        ...     raise Abort(f"order {order} was cancelled")
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


# -- exception groups ----------------------------------------------------------------------------------


def snooze_of(error: BaseException) -> Snooze | None:
    """Return the `Snooze` that ends an attempt; None if the attempt raised any other exception.

    In a group of nothing but `Snooze`, it is the one with the longest delay.
    """
    leaves = leaves_of(error)
    snoozes = [leaf for leaf in leaves if is_a(leaf, Snooze)]
    if len(snoozes) < len(leaves):
        return None
    return max(snoozes, key=delay_of)


def retry_of(error: BaseException) -> Retry | None:
    """Return the `Retry` that an attempt raised; None if it raised none.

    In a group with several, it is the one with the longest delay.
    """
    retries = [leaf for leaf in leaves_of(error) if is_a(leaf, Retry)]
    return max(retries, key=delay_of, default=None)


def may_repeat(error: BaseException, policy: RetryPolicy) -> bool:
    """Return whether a policy and the exceptions of an attempt permit a retry.

    An `Abort` forbids it, and a `Retry` or `Snooze` permits it. The policy decides about all other
    exceptions; its class may be a subclass of the user, so it may raise.
    """
    leaves = leaves_of(error)
    if any(is_a(leaf, Abort) for leaf in leaves):
        return False
    ordinary_leaves = [leaf for leaf in leaves if not is_a(leaf, RunAgain)]
    all_are_ordinary = len(ordinary_leaves) == len(leaves)
    if all_are_ordinary and type(policy).allows is RetryPolicy.allows:
        # The policy may name the class of a group, so it gets the group and not the exceptions in it.
        return policy.allows(error)
    # Otherwise the exceptions are passed one by one, without those that permit a retry anyway. A method of a
    # user need not know groups.
    return all(bool(policy.allows(leaf)) for leaf in ordinary_leaves)


def reason_of(error: BaseException) -> BaseException:
    """Return the error for which an attempt failed: the cause of a `Retry` that has one.

    The cause may be another `Retry`, whose cause is the reason then. So applied to its own result, this
    returns the same error.
    """
    # Code may set causes that form a circle.
    visited_ids = set[int]()
    while is_a(error, Retry) and id(error) not in visited_ids:
        cause = cause_of(error)
        if cause is None:
            break
        visited_ids.add(id(error))
        error = cause
    return error


def is_mistake(error: BaseException) -> bool:
    """Return whether an attempt failed because of an error, and did not merely ask for a retry.

    It asks for one by a `Retry` without a cause.
    """
    return any(not is_a(reason_of(leaf), Retry) for leaf in leaves_of(error))


def naming_leaf_of(error: BaseException) -> BaseException:
    """Return the exception that stands for an error: in a group the first of the strongest ones.

    For a `Retry` with a cause, it is the cause.
    """
    return reason_of(min(leaves_of(error), key=_weakness))


def _weakness(leaf: BaseException) -> int:
    """Return how weak an exception in a group is, 0 for the strongest; see the docstring of the module."""
    if is_a(leaf, Abort):
        return 0
    if is_a(leaf, Snooze):
        return 3
    return 2 if is_a(leaf, Retry) else 1
