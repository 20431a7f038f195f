"""Search for the fire times of schedules, for pages and commands.

A trigger of the application may hang, or raise an exception that would end the process. So each of these
triggers is called in a thread of its own, for a limited time. Built-in triggers share one thread, because a
search with a built-in trigger takes at most one second.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import TypeVar

from pg_scheduler.base.threads import run_in_thread
from pg_scheduler.schedules.own_thread import search_in_own_thread
from pg_scheduler.schedules.schedule import Schedule
from pg_scheduler.triggers import Trigger
from pg_scheduler.triggers.serialization import is_built_in

R = TypeVar("R")


async def search_one(trigger: Trigger | None, search: Callable[[], R]) -> R:
    """Call a function that calls a trigger, in a thread of its own, and return its result.

    ``trigger`` is None if this process cannot interpret it.

    Raises:
        ValueError: The function has not returned after 5 seconds, or it raised a BaseException that is no
            Exception, such as SystemExit.
        Exception: The function raised this exception.
    """
    # The JSON identifies the trigger.
    definition = "null" if trigger is None else json.dumps(trigger.to_json())
    return await search_in_own_thread(definition, search)


async def search_each(
    schedules: Sequence[Schedule],
    search: Callable[[Schedule], R | None],
    on_error: Callable[[Schedule, Exception], R | None] = lambda *_: None,
    *,
    limit_s: float,
) -> list[R]:
    """Call a function for each schedule, which calls the schedule's trigger, and return the results.

    Args:
        schedules: The schedules.
        search: The function. A schedule for which it returns None is left out.
        on_error: Called with a schedule whose search raised an exception or has not returned. It returns the
            result for this schedule, or None to leave the schedule out.
        limit_s: Seconds after which no further schedule is searched. Schedules with built-in triggers are
            searched first.

    Returns:
        The results, in the order of the schedules.
    """
    ends_at_s = monotonic() + limit_s
    # The results by the index of the schedule, because the searches have another order.
    results: dict[int, R | None] = {}
    # The indexes of the schedules with built-in triggers, and of those with triggers of the application.
    built_in: list[int] = []
    custom: list[int] = []
    for index, schedule in enumerate(schedules):
        if schedule.trigger is None or is_built_in(schedule.trigger):
            built_in.append(index)
        else:
            custom.append(index)

    def search_built_in() -> None:
        """Search the schedules with built-in triggers, one after the other, until the time is over."""
        for index in built_in:
            if monotonic() > ends_at_s:
                break
            try:
                results[index] = search(schedules[index])
            except ValueError as error:  # such as SearchLimitError: the search takes too many steps
                results[index] = on_error(schedules[index], error)

    await run_in_thread(search_built_in)
    for index in custom:
        if monotonic() > ends_at_s:
            break
        schedule = schedules[index]
        try:
            results[index] = await search_one(schedule.trigger, partial(search, schedule))
        except Exception as error:  # noqa: BLE001 - user code: a trigger of the application
            results[index] = on_error(schedule, error)
    results_in_order = [results[index] for index in sorted(results)]
    return [result for result in results_in_order if result is not None]
