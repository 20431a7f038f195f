"""The pauses of tasks, for lists of what waits until they end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from pg_scheduler.dashboard.context import PageRequest, entered_instant
from pg_scheduler.inspect.base import tables_of
from pg_scheduler.inspect.tasks import paused_tasks
from pg_scheduler.jobs.pause import Pause

PAUSES_AGE_S: Final = 2.0
"""Seconds for which the pauses are kept."""


FIELDS: Final = ("until", "for", "zone", "note", "at_end")
"""The fields of the form of a pause."""


class PauseForm(NamedTuple):
    """The form of a pause as it was sent.

    Attributes:
        until: The end of the pause, by the clock of ``zone``; empty for none.
        span: A choice of a list instead of ``until``, such as ``+1h`` or ``tomorrow 08:00``; empty for none.
        zone: The time zone; empty for UTC.
        note: The note.
        at_end: What becomes of the fire times of a schedule when the pause ends.
        wrong: What is wrong with the end; empty for nothing.
    """

    until: str = ""
    span: str = ""
    zone: str = ""
    note: str = ""
    at_end: str = ""
    wrong: str = ""

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> PauseForm:
        """Return the form with the fields of an address."""
        return cls(*(parameters.get(name, "") for name in FIELDS))

    def ends_at(self, now: datetime) -> datetime | None:
        """Return the end of the pause; None for none.

        Raises:
            RejectedError: The end is no time.
        """
        return entered_instant("until", self.until or self.span, now, self.zone)


async def pauses_of(names: Iterable[str], request: PageRequest) -> Mapping[str, Pause]:
    """Return, for each of these names whose jobs a pause holds, this pause.

    A pause that is stored under a name that the request may not see is left out.
    """
    pauses = await request.read_shared(_read_pauses, age_s=PAUSES_AGE_S)
    pauses_by_name = {}
    names_of_tasks = await request.names_of_tasks(set(names)) if pauses else {}
    for name, names_of_task in names_of_tasks.items():
        aliases = sorted(names_of_task & pauses.keys())
        pause = next((pauses[alias] for alias in aliases if request.access.sees_name(alias)), None)
        if pause is not None:
            pauses_by_name[name] = pause
    return pauses_by_name


async def _read_pauses(request: PageRequest) -> Mapping[str, Pause]:
    return await paused_tasks(tables_of(request.inspector).reads)
