"""The retries and the time limit of a step: what its call demands, and which of its attempts have failed.

An attempt of a step is one call of its function. Failed ones are stored in a row of their own, whose name is
that of the step after a prefix, so that neither a crash nor a suspension begins their count again.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pg_scheduler.base.annotations import signature_of
from pg_scheduler.base.foreign import is_a
from pg_scheduler.base.text.numbers import exact, plural
from pg_scheduler.errors import JobLostError, PayloadError, StepFailedError
from pg_scheduler.jobs.call import RaisedError
from pg_scheduler.jobs.history import instant_from, to_ascii
from pg_scheduler.jobs.model import UNSET, Unset
from pg_scheduler.jobs.payload import object_from
from pg_scheduler.jobs.retry import Abort, RetryPolicy, snooze_of
from pg_scheduler.jobs.validation import check_count, check_kind, check_timeout

IN_PLACE_WAIT_S: Final = 10.0
"""The longest wait before an attempt of a step, in seconds, for which the attempt of the job stays in memory.
A longer wait suspends the job, which costs a new attempt, and uses no slot."""

DEFAULT_MAX_RETRIES: Final = 5
"""How often a step with ``retry=`` is retried if its call states no number."""

MAX_ERRORS: Final = 5
"""Errors of one step that are kept, the newest ones."""

MAX_ERROR_BYTES: Final = 250
"""Bytes of such an error that are kept. With this bound, the row of a step needs no compression."""


FINAL_ERRORS: Final = (JobLostError, PayloadError)
"""Errors after which a further call of the function of a step would have the same end."""


@dataclass(frozen=True, slots=True)
class StepError:
    """A failed attempt of a step: a call of its function that raised an exception or took too long."""

    at: datetime | None
    """When it ended; None if that cannot be read."""
    attempt: int
    """The ``attempt`` of the job that made the call."""
    error: str
    """The class and the message of the exception, at most 250 bytes."""


@dataclass(frozen=True, slots=True)
class StepFailures:
    """The failed attempts of a step.

    Attributes:
        count: Their number, since the retries of the step began.
        errors: The newest of them, the oldest first.
        is_aborted: Whether the last one was an `Abort`, after which the job is not retried.
    """

    count: int = 0
    errors: tuple[StepError, ...] = ()
    is_aborted: bool = False

    def after(self, error: StepError, *, is_aborted: bool = False) -> StepFailures:
        """Return the failures with one more."""
        return StepFailures(self.count + 1, (*self.errors, error)[-MAX_ERRORS:], is_aborted)

    def error_of(self, step: str) -> Abort | StepFailedError:
        """Return the exception that a call of the step raises once its retries are used up."""
        text = self.errors[-1].error if self.errors else "an unknown error"
        if self.is_aborted:
            return Abort(f"step {step!r} failed with {text}")
        return StepFailedError(step, text, self.count)

    def to_json(self, *, in_ascii: bool = False) -> str:
        """Return what the row stores; ``in_ascii`` is for a database whose encoding lacks a character."""
        errors = [
            {
                "at": None if error.at is None else error.at.isoformat(),
                "attempt": error.attempt,
                "error": shortened(to_ascii(error.error)) if in_ascii else error.error,
            }
            for error in self.errors
        ]
        stored: dict[str, Any] = {"count": self.count, "errors": errors}
        if self.is_aborted:
            stored["aborted"] = True
        return json.dumps(stored, ensure_ascii=False, separators=(",", ":"))


def failures_from(text: str | None) -> StepFailures:
    """Return the failures that a row has. What cannot be read, as after a change by hand, is left out."""
    stored = {} if text is None else object_from(text)
    count, entries = stored.get("count"), stored.get("errors")
    errors = [
        StepError(instant_from(entry.get("at")), entry["attempt"], entry["error"])
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, dict)
        and type(entry.get("attempt")) is int
        and isinstance(entry.get("error"), str)
    ]
    if type(count) is not int or count < 0:
        count = len(errors)
    return StepFailures(count, tuple(errors[-MAX_ERRORS:]), stored.get("aborted") is True)


def shortened(text: str) -> str:
    """Return the beginning of an error, as a row keeps it."""
    # The cut may divide a character, whose remaining bytes are left out.
    return text.encode()[:MAX_ERROR_BYTES].decode(errors="ignore")


def cause_of_failure(error: Exception) -> Exception | None:
    """Return the exception for which an attempt of a step has failed; None if the attempt has not failed.

    That is so for a `Snooze`, which postpones the job, and for `FINAL_ERRORS`.
    """
    cause: BaseException = error.error if is_a(error, RaisedError) else error
    # A job in a thread may raise what ends its attempt, such as SystemExit, and gets it back wrapped.
    if not is_a(cause, Exception) or issubclass(type(cause), FINAL_ERRORS):
        return None
    return None if snooze_of(cause) is not None else cause


@dataclass(frozen=True, slots=True)
class StepRules:
    """What the call of a step demands besides its function.

    Attributes:
        retry: Which errors are retried, and after which delays; None for no retries.
        max_retries: How often the function is called again after its first failure.
        timeout_s: The time limit of each call of the function, in seconds; None for none.
    """

    retry: RetryPolicy | None = None
    max_retries: int = 0
    timeout_s: float | None = None

    @classmethod
    def of(
        cls,
        func: Callable[..., Any],
        retry: RetryPolicy | Unset | None,
        max_retries: int | Unset,
        timeout: float | timedelta | Unset | None,
    ) -> StepRules:
        """Return the rules of a call, from its arguments.

        Raises:
            TypeError: An argument has the wrong type, or the function has a parameter of its name.
            ConfigurationError: A number is out of range.
        """
        options = {"retry": retry, "max_retries": max_retries, "timeout": timeout}
        names = [name for name, value in options.items() if value is not UNSET]
        if not names:
            return NO_RULES
        for name in names:
            if has_parameter(func, name):
                raise TypeError(
                    f"{name}= is an option of the step, and {func!r} has a parameter of that name; pass "
                    f"functools.partial(function, {name}=...) for the function"
                )
        policy = None if retry is UNSET or retry is None else check_kind("retry", retry, RetryPolicy)
        if policy is None and max_retries is not UNSET:
            raise TypeError("max_retries= of a step needs retry=; pass retry=RetryPolicy() too")
        number = DEFAULT_MAX_RETRIES
        if max_retries is not UNSET:
            number = check_count("max_retries", max_retries)
        return cls(
            retry=policy,
            max_retries=0 if policy is None else number,
            timeout_s=None if timeout is UNSET else check_timeout(timeout),
        )

    @asynccontextmanager
    async def time_limit(self, step: str) -> AsyncIterator[None]:
        """Cancel the block, which calls the function of a step, at its time limit, by a TimeoutError."""
        if self.timeout_s is None:
            yield
            return
        limit = asyncio.timeout(self.timeout_s)
        try:
            async with limit:
                yield
        except Exception as error:
            # The function may have raised an error of its own in time, such as a TimeoutError that names what
            # took too long. After the limit, it has made that error from its cancellation.
            cause = error.error if is_a(error, RaisedError) else error
            if not limit.expired() or not is_a(cause, Exception):
                raise
            seconds = f"{exact(self.timeout_s)} {plural(self.timeout_s, 'second')}"
            raise TimeoutError(f"step {step!r} ran longer than its timeout of {seconds}") from error


BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
"""The kinds of parameters that keyword arguments set."""

NO_RULES: Final = StepRules()
"""The rules of a step that is not retried, and has no time limit."""


def has_parameter(func: Callable[..., Any], name: str) -> bool:
    """Return whether a keyword argument sets a parameter of a function that no partial has set yet."""
    while isinstance(func, functools.partial):
        if name in func.keywords:
            return False
        func = func.func
    parameters = _parameters_of(func)
    return name in parameters and parameters[name].kind in BY_NAME


def accepts_keyword(func: Callable[..., Any], name: str) -> bool:
    """Return whether a function accepts a keyword argument, perhaps by a parameter such as ``**kwargs``."""
    parameters = _parameters_of(func)
    has_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return has_any or (name in parameters and parameters[name].kind in BY_NAME)


def _parameters_of(func: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function by name; none if Python cannot read its signature."""
    try:
        return signature_of(func).parameters
    except (TypeError, ValueError):
        return {}
