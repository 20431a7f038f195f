"""Errors of calls that schedule jobs, and the remedies that commands and forms have for them.

The remedy of such an error is for code: it names a parameter, as in "omit job_id=". A command has an option
in the place of that parameter, and a form has a field. So these errors have the problem apart from the
remedy, and the subject that has to change. A front end looks up its own remedy by the subject.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from pg_scheduler.errors import ConfigurationError, PayloadError

Subject: TypeAlias = Literal[
    "arguments", "bounds", "conflict resolution", "deadline", "due time", "id", "key of metadata",
    "named argument", "policies", "size", "value",
]  # fmt: skip
"""What has to change in a call."""


class CallError(Exception):
    """An error of a call, with its remedy in code."""

    def __init__(self, problem: str, subject: Subject, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem: Final = problem
        self.subject: Final[Subject] = subject
        self.remedy: Final = remedy

    def __reduce__(self) -> tuple[type[CallError], tuple[str, Subject, str]]:
        """Return how to restore the error in another process."""
        return type(self), (self.problem, self.subject, self.remedy)


class OptionError(CallError, ConfigurationError):
    """Options of a job or a schedule contradict one another, or an option of the task."""


class ArgumentsError(CallError, PayloadError):
    """JSON cannot represent a value, or the arguments do not fit the task."""


def message_for(error: Exception, remedies: Mapping[Subject, str]) -> str:
    """Return the message of an error, with the remedy that a front end has for the subject of a `CallError`.

    If the front end has none, because its users cannot change the subject, the message has the problem only.
    """
    if not isinstance(error, CallError):
        return str(error)
    remedy = remedies.get(error.subject)
    return error.problem if remedy is None else f"{error.problem}; {remedy}"
