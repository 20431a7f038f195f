"""Readers of the jobs and schedules of other libraries, for ``pg-scheduler import``."""
