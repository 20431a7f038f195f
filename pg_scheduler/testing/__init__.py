"""Tests with the real Scheduler and the real SQL.

`AsyncTestKit` and `TestKit` look at jobs in the transaction of a test, and run them there. `TestScheduler`
has a database of its own and a virtual clock. `job_context()` is for unit tests that call a job function.

The pytest plugin ``pg_scheduler_plugins.pytest`` is active wherever the library is installed. Its fixtures
are ``scheduler_server``, ``scheduler_dsn``, ``scheduler_clock`` and ``test_scheduler``. `EmbeddedPostgres` is
the private server of `pg_scheduler.embedded`.
"""

from pg_scheduler.embedded import EmbeddedPostgres
from pg_scheduler.testing.async_kit import AsyncTestKit
from pg_scheduler.testing.context import job_context
from pg_scheduler.testing.scheduler import TestScheduler
from pg_scheduler.testing.sync_kit import TestKit
from pg_scheduler.testing.transaction import DrainResult

__all__ = ["AsyncTestKit", "DrainResult", "EmbeddedPostgres", "TestKit", "TestScheduler", "job_context"]

for _thing in (AsyncTestKit, DrainResult, TestKit, TestScheduler, job_context):
    _thing.__module__ = __name__  # tracebacks and docs name the module that users import from
