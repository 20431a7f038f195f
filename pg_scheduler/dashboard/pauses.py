"""The pauses of tasks, for lists of what waits until they end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from pg_scheduler.dashboard.context import PAUSES_AGE_S, PageRequest, entered_instant
from pg_scheduler.errors import SchedulerError
from pg_scheduler.jobs.pause import Pause

FIELDS: Final = ("until", "for", "zone", "note", "at_end", "suspend_expiry")
"""The fields of the form of a pause, in the order in which `PauseForm` has them. Its ``span`` is ``for``."""

SPANS: Final = {"+1h": "1 hour", "+4h": "4 hours", "+1d": "1 day"}
"""The lengths of a pause that the form of a task offers, as it sends them and as it shows them."""


class ExpiryPrice(NamedTuple):
    """What a pause of a task would do to the jobs that wait now.

    Attributes:
        due: Due jobs.
        due_expiring: Those of the due ones that can expire.
        expire_by: When the last of these has expired; None if there are none.
        by_span: The number of jobs that expire during the pause, by its length; empty for one without an end.
        is_capped: Whether there may be more.
    """

    due: int
    due_expiring: int
    expire_by: datetime | None
    by_span: Mapping[str, int]
    is_capped: bool


class PauseForm(NamedTuple):
    """The form of a pause as it was sent.

    Attributes:
        until: The end of the pause, by the clock of ``zone``; empty for none.
        span: A choice of a list instead of ``until``, such as ``+1h`` or ``tomorrow 08:00``; empty for none.
        zone: The time zone; empty for UTC.
        note: The note.
        at_end: What becomes of the fire times of a schedule when the pause ends.
        suspend_expiry: ``yes`` if no job of a task expires during the pause.
        wrong: What is wrong with the end; empty for nothing.
    """

    until: str = ""
    span: str = ""
    zone: str = ""
    note: str = ""
    at_end: str = ""
    suspend_expiry: str = ""
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


async def price_of_pause(name: str, request: PageRequest) -> ExpiryPrice | None:
    """Return how many waiting jobs of a task would expire during a pause; None if that cannot be read now.

    The form of a pause shows this. A pause is possible without it.
    """
    try:
        return await request.read_shared(_read_price, name, age_s=PAUSES_AGE_S)
    except SchedulerError:
        return None


async def _read_price(request: PageRequest, name: str) -> ExpiryPrice:
    """Read how many jobs would expire during a pause of each length that the form offers."""
    # The end of a pause of each length. The empty text stands for a pause without an end.
    ends = {"": None, **{span: entered_instant("until", span, request.now, "") for span in SPANS}}
    price = await request.inspector.pause_price(name, list(ends.values()))
    by_span = dict(zip(ends, price.expiring, strict=True))
    return ExpiryPrice(price.due, price.due_expiring, price.expire_by, by_span, price.is_capped)


async def pauses_of(names: Iterable[str], request: PageRequest) -> Mapping[str, Pause]:
    """Return the pauses that hold the jobs of these names, by name; names without a pause are missing.

    A task can have several names, and be paused under any of them. A pause that is stored under a name that
    the request may not see is left out.
    """
    pauses = await request.pauses()
    pauses_by_name = {}
    names_of_tasks = await request.names_of_tasks(set(names)) if pauses else {}
    for name, names_of_task in names_of_tasks.items():
        # The names are sorted, so that each process chooses the same one of several pauses.
        pauses_of_task = (pauses[alias] for alias in sorted(names_of_task & pauses.keys()))
        pause = next((pause for pause in pauses_of_task if request.access.sees_name(pause.name)), None)
        if pause is not None:
            pauses_by_name[name] = pause
    return pauses_by_name
