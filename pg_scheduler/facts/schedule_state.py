"""The state of a schedule: one word for each schedule, so that the numbers of all states add up.

``schedule_state.sql`` has the state as a column, which lists, badges, the status and the numbers of the tabs
read. The first state in this order applies:

- ``retired``: the code declares it no longer, so it does not fire.
- ``finished``: its last fire time has passed.
- ``overdue``: it should have fired, or its pause should have ended, a minute ago.
- ``paused``: it does not fire until it is resumed, or its pause ends.
- ``failing``: its newest job failed or expired; or, with ``pause_after_failures``, a failure was counted and
  no job has completed since.
- ``active``: it fires.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

ScheduleState: TypeAlias = Literal["active", "failing", "overdue", "paused", "finished", "retired"]

SCHEDULE_STATES: Final[tuple[ScheduleState, ...]] = get_args(ScheduleState)
"""The states in the order in which people read them."""
