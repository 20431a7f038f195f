"""A tool of an assistant, and the session in which it is called.

A tool takes arguments, which pydantic checks, and returns an object of a dataclass. The schemas of both are
made from these types. A tool with rights changes something, or prepares that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict

from pg_scheduler import Scheduler
from pg_scheduler.dashboard.access import Access, Right, Role, rights_of
from pg_scheduler.dashboard.redaction import Redaction
from pg_scheduler.dashboard.visibility import Visibility
from pg_scheduler.inspect import Inspector, ReadSettings

from ..errors import RefusedError
from ..settings import PROGRAM

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

READ_SETTINGS: Final = ReadSettings(statement_timeout_s=10.0, application_name="pg_scheduler mcp")

MAX_PROPOSALS: Final = 20
"""Proposals that wait for their confirmation; a further one replaces the oldest."""


class Arguments(BaseModel):
    """The arguments of a tool. Those that it does not have are refused."""

    model_config = ConfigDict(extra="forbid")


class NoArguments(Arguments):
    """The arguments of a tool that takes none."""


@dataclass(frozen=True, slots=True)
class ChangedObject:
    """What a change did to a job, a task, a schedule or a worker."""

    id: str
    """Its id or name."""
    outcome: str
    """`done`; `refused` if its state does not allow the change; `skipped` if it has changed since the
    proposal, or does not exist any more."""


@dataclass(frozen=True, slots=True)
class MadeChange:
    """A change that was made."""

    summary: str
    """What happened."""
    objects: Sequence[ChangedObject]
    """The outcome for each object."""
    actor: str
    """The person who is named in the audit."""


class Proposal(NamedTuple):
    """A change that waits for its confirmation.

    Attributes:
        right: The right that it needs.
        make: Makes it.
        expires_at_s: The time of the clock of the session at which it expires.
    """

    right: Right
    make: Callable[[], Awaitable[MadeChange]]
    expires_at_s: float


@dataclass(frozen=True, slots=True)
class Session:
    """What the calls of one assistant share.

    Attributes:
        scheduler: Makes the changes; it is not started.
        reads: Reads in bounded, read-only transactions.
        writes: Changes jobs and workers.
        visibility: Hides what the person may not see.
        proposals: The proposals that wait for their confirmation, by their tokens, the oldest first.
        clock: Returns seconds, by which proposals expire.
    """

    scheduler: Scheduler
    reads: Inspector
    writes: Inspector
    visibility: Visibility
    proposals: dict[str, Proposal] = field(default_factory=dict)
    clock: Callable[[], float] = monotonic

    @classmethod
    def of(cls, scheduler: Scheduler, access: Access, redaction: Redaction) -> Session:
        """Return the session of a person on the database of a Scheduler."""
        reads = Inspector(scheduler, read_settings=READ_SETTINGS)
        return cls(scheduler, reads, Inspector(scheduler), Visibility(access, redaction))

    @property
    def access(self) -> Access:
        """The rights of the person."""
        return self.visibility.access

    def require(self, right: Right) -> None:
        """Raise an error unless the person has a right.

        Raises:
            CommandError: The role does not have it.
        """
        if not self.access.may(right):
            roles = [role for role in get_args(Role) if right in rights_of(role, None)]
            raise RefusedError(
                f"the role {self.access.role} may not do this: it needs the right {right}; "
                f"the person can start {PROGRAM} mcp with --role {' or '.join(roles)}"
            )


class Tool(NamedTuple):
    """A tool.

    Attributes:
        run: Runs the tool. Its docstring is the description that assistants read.
        title: What it does, in a few words, for people.
        arguments: The type of its arguments.
        document: The dataclass of its result.
        rights: The rights of which its caller needs one; empty for a tool that reads.
        changes: Whether it changes something. Other tools with rights prepare a change.
    """

    run: Callable[[Session, Any], Awaitable[DataclassInstance]]
    title: str
    arguments: type[Arguments]
    document: type[DataclassInstance]
    rights: frozenset[Right] = frozenset()
    changes: bool = False

    @property
    def name(self) -> str:
        """The name by which assistants call it."""
        return self.run.__name__

    @property
    def description(self) -> str:
        """What it does, for assistants."""
        return " ".join((self.run.__doc__ or "").split())
