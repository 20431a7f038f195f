"""Levels and messages of the log records of schedules."""

from __future__ import annotations

import logging
from typing import Final

from pg_scheduler.events import schedules
from pg_scheduler.events.types import Event

_FIRED: Final = "schedule %(schedule_id)s: job %(job_id)s enqueued, next fire time %(next_fire_at)s"
_BROKEN: Final = "schedule %(schedule_id)s cannot be planned and is paused, correct and resume it: %(error)s"

SCHEDULE_RECORDS: Final[dict[type[Event], tuple[int, str]]] = {
    schedules.ScheduleAdded: (logging.INFO, "schedule %(schedule_id)s added"),
    schedules.ScheduleUpdated: (logging.INFO, "schedule %(schedule_id)s updated"),
    schedules.ScheduleRemoved: (logging.INFO, "schedule %(schedule_id)s removed"),
    schedules.SchedulePaused: (logging.INFO, "schedule %(schedule_id)s paused: %(note)s"),
    schedules.ScheduleResumed: (logging.INFO, "schedule %(schedule_id)s resumed"),
    schedules.ScheduleFired: (logging.DEBUG, _FIRED),
    schedules.PeriodicJobPlanned: (logging.DEBUG, _FIRED),
    schedules.ScheduleSkipped: (
        logging.INFO,
        "schedule %(schedule_id)s: %(fire_times)s fire times dropped, job %(last_job_id)s is unfinished",
    ),
    schedules.ScheduleMissed: (logging.WARNING, "schedule %(schedule_id)s missed %(fire_times)s fire times"),
    schedules.ScheduleFinished: (logging.INFO, "schedule %(schedule_id)s finished: no further fire time"),
    schedules.ScheduleBroken: (logging.ERROR, _BROKEN),
    schedules.PeriodicJobBroken: (logging.ERROR, _BROKEN),
}
