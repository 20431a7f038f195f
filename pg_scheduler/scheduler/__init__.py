"""The scheduler: its class, its facets, and what joins the rooms."""

from pg_scheduler.scheduler.scheduler import Scheduler

__all__ = ["Scheduler"]
