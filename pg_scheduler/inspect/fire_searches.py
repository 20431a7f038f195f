"""Search for the fire times of schedules, for pages and commands.

A trigger of the application may hang, or raise what would end the process, so each is called in a thread of
its own, for a limited time. Built-in triggers share one, since a search with them takes at most one second.
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
    """Return what a function returns that calls a trigger.

    ``trigger`` is None if it cannot be interpreted.

    Raises:
        ValueError: It has not returned after 5 seconds, or it raised what is no Exception.
        Exception: It raised this exception.
    """
    return await search_in_own_thread("null" if trigger is None else json.dumps(trigger.to_json()), search)


async def search_each(
    schedules: Sequence[Schedule],
    search: Callable[[Schedule], R | None],
    on_error: Callable[[Schedule, Exception], R | None] = lambda *_: None,
    *,
    limit_s: float,
) -> list[R]:
    """Return what a function returns that calls the trigger of a schedule, for each of several schedules.

    Args:
        schedules: The schedules.
        search: The function. A schedule for which it returns None is left out.
        on_error: Returns what stands for a schedule whose search raised or has not returned, likewise.
        limit_s: Seconds after which no further schedule is searched; those with built-in triggers come first.
    """
    ends_at = monotonic() + limit_s
    results: dict[int, R | None] = {}
    built_in: list[int] = []
    of_the_application: list[int] = []
    for index, schedule in enumerate(schedules):
        is_ours = schedule.trigger is None or is_built_in(schedule.trigger)
        (built_in if is_ours else of_the_application).append(index)

    def search_built_in() -> None:
        for index in built_in:
            if monotonic() > ends_at:
                break
            try:
                results[index] = search(schedules[index])
            except ValueError as error:  # the search takes too many steps
                results[index] = on_error(schedules[index], error)

    await run_in_thread(search_built_in)
    for index in of_the_application:
        if monotonic() > ends_at:
            break
        schedule = schedules[index]
        try:
            results[index] = await search_one(schedule.trigger, partial(search, schedule))
        except Exception as error:  # noqa: BLE001 - user code: a trigger of the application
            results[index] = on_error(schedule, error)
    return [result for index in sorted(results) if (result := results[index]) is not None]
