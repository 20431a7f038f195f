"""A tool of an assistant, and the session in which it is called.

A tool takes arguments, which pydantic checks, and returns an object of a dataclass. The schemas of both are
made from these types. A tool with rights changes something, or prepares that.
"""

from __future__ import annotations

import asyncio
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

MAX_USED_TOKENS: Final = 500
"""Proposals whose outcomes are kept after their confirmation; a further one replaces the oldest."""


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
    are_objects_capped: bool = field(default=False, kw_only=True)
    """Whether there are more."""
    actor: str
    """The person who is named in the audit."""
    is_repeated: bool = False
    """Whether an earlier call made it, and this one changed nothing."""


@dataclass(slots=True)
class Proposal:
    """A change that waits for its confirmation, or that was confirmed.

    Attributes:
        right: The right that it needs.
        summary: What would happen, as the person has read it.
        make: Makes it.
        expires_at_s: The time of the clock of the session at which it expires.
        is_atomic: Whether it is one transaction, of which nothing is left after an error.
        change: The task that makes it, or has made it, with its outcome; None before the confirmation.
    """

    right: Right
    summary: str
    make: Callable[[], Awaitable[MadeChange]]
    expires_at_s: float
    is_atomic: bool = True
    change: asyncio.Task[MadeChange] | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """What the calls of one assistant share.

    Attributes:
        scheduler: Makes the changes; it is not started.
        reads: Reads in bounded, read-only transactions.
        writes: Changes jobs and workers.
        visibility: Hides what the person may not see.
        proposals: The proposals that wait for their confirmation or were confirmed, by their tokens, the
            oldest first.
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

    def keep(self, token: str, proposal: Proposal) -> None:
        """Let a proposal be confirmed.

        The oldest proposals give way to it: of those that wait, and of those that were confirmed.
        """
        for is_used, limit in ((False, MAX_PROPOSALS), (True, MAX_USED_TOKENS)):
            tokens = [
                other_token
                for other_token, other_proposal in self.proposals.items()
                if (other_proposal.change is not None) is is_used
            ]
            for old_token in tokens[: max(len(tokens) - limit + 1, 0)]:
                del self.proposals[old_token]
        self.proposals[token] = proposal

    async def finish(self) -> None:
        """Wait for the changes that are being made."""
        changes = [proposal.change for proposal in self.proposals.values() if proposal.change is not None]
        await asyncio.gather(*changes, return_exceptions=True)

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
        remedy: How to ask for less if its result is too large.
    """

    run: Callable[[Session, Any], Awaitable[DataclassInstance]]
    title: str
    arguments: type[Arguments]
    document: type[DataclassInstance]
    rights: frozenset[Right] = frozenset()
    changes: bool = False
    remedy: str = "the person can read it on the command line or in the dashboard"

    @property
    def name(self) -> str:
        """The name by which assistants call it."""
        return self.run.__name__

    @property
    def description(self) -> str:
        """What it does, for assistants."""
        return " ".join((self.run.__doc__ or "").split())
