"""Tests with the real Scheduler, the real SQL and a virtual clock: see `TestScheduler`.

`job_context()` is for unit tests that call a job function directly.

The pytest plugin ``pg_scheduler.testing.plugin`` is active wherever the library is installed. It has the
fixtures ``scheduler_dsn`` and ``test_scheduler``.
"""

from pg_scheduler.testing.context import job_context
from pg_scheduler.testing.scheduler import TestScheduler

__all__ = ["TestScheduler", "job_context"]

for _thing in (TestScheduler, job_context):
    _thing.__module__ = __name__  # tracebacks and docs name the module that users import from
