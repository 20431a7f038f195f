"""The state that the methods of an Inspector share: the tables and the actor."""

from __future__ import annotations

from typing import Any, NamedTuple

from pg_scheduler.database.author import Author, acting_as, current_author
from pg_scheduler.inspect.pages import Bounds
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.jobs.validation import check_text
from pg_scheduler.scheduler import Scheduler


class InspectorTables(NamedTuple):
    """The tables of an `Inspector`, for functions that are not its methods."""

    reads: InspectionStore
    """The tables for reads, which may be those of a standby."""
    writes: InspectionStore
    """The tables for changes, and for reads that must see these changes."""
    schema: str | None
    """The schema that was passed; None for the one that the search path leads to."""
    author: Author
    """Who changes the tables now."""


class InspectorBase:
    """The tables and the actor of an `Inspector`."""

    _bounds: Bounds
    _scheduler: Scheduler | None
    _schema: str | None
    _store: InspectionStore
    _reads: InspectionStore
    """The tables for reads, which may be those of a standby."""
    _is_actor_named: bool
    """Whether the caller passed the actor."""
    actor: str
    """The actor in the records of actions."""

    async def record_action(self, action: str, subject: str | None = None, **details: Any) -> int:
        """Record an action that a front end has not made by this Inspector, and return the id of the record.

        Args:
            action: The action, such as ``add_job``.
            subject: The id or name of the changed object; None for no particular object.
            details: Values that JSON can represent.

        Example::

            await inspector.record_action("add_job", "mail:9", name="mail.send")
        """
        subject = None if subject is None else check_text("subject", subject)
        with acting_as(self._author()):
            return await self._store.audit.record(check_text("action", action), subject, **details)

    def _author(self) -> Author:
        """Return who acts: the named actor, the author of the caller's context, or the default actor."""
        context_author = current_author()
        if context_author is None:
            return Author(self.actor, "inspector", self._store.statements.author.release)
        # A front end has set the author of its context, with the way of the change, such as ``cli``. An actor
        # that the caller of the Inspector has named takes precedence over the actor in it.
        if self._is_actor_named:
            return context_author._replace(actor=self.actor)
        return context_author


def tables_of(inspector: InspectorBase) -> InspectorTables:
    """Return the tables of an Inspector, which are no public attributes."""
    return InspectorTables(inspector._reads, inspector._store, inspector._schema, inspector._author())  # noqa: SLF001 - the only place outside of the class
