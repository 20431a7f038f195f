"""Errors of calls that schedule jobs, and the remedies that commands and forms have for them.

The remedy of such an error is for code: it names a parameter, as in "omit job_id=". A command has an option
in the place of that parameter, and a form has a field. So such an error also has its problem apart from the
remedy, and the subject that has to change. A front end looks up its own remedy by the subject.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

Subject: TypeAlias = Literal[
    "arguments", "bounds", "conflict resolution", "deadline", "due time", "id", "key of metadata",
    "named argument", "policies", "size", "value",
]  # fmt: skip
"""What has to change in a call."""

ATTRIBUTE: Final = "_pg_scheduler_problem"
"""The attribute of an error that has its `CallProblem`."""

ErrorT = TypeVar("ErrorT", bound=Exception)


class CallProblem(NamedTuple):
    """What is wrong with a call, without the remedy, and what has to change."""

    text: str
    subject: Subject


def call_error(kind: type[ErrorT], problem: str, subject: Subject, remedy: str) -> ErrorT:
    """Return an error about a call, whose message has the remedy for code."""
    error = kind(f"{problem}; {remedy}")
    setattr(error, ATTRIBUTE, CallProblem(problem, subject))
    return error


def message_for(error: Exception, remedies: Mapping[Subject, str]) -> str:
    """Return the message of an error; if it is about a call, with the remedy that a front end has for it.

    If the front end has none, because its users cannot change the subject, the message has the problem only.
    """
    problem: CallProblem | None = getattr(error, ATTRIBUTE, None)
    if problem is None:
        return str(error)
    remedy = remedies.get(problem.subject)
    return problem.text if remedy is None else f"{problem.text}; {remedy}"
