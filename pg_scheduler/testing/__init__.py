"""Tests with the real Scheduler and the real SQL.

`AsyncTestKit` and `TestKit` look at jobs in the transaction of a test, and run them there. `TestScheduler`
has a database of its own and a virtual clock. `crash_everywhere()` runs a job with a crash at each of its
statements. `job_context()` is for unit tests that call a job function.

The pytest plugin ``pg_scheduler_plugins.pytest`` is active wherever the library is installed. Its fixtures
are ``scheduler_server``, ``scheduler_dsn``, ``scheduler_clock``, ``test_scheduler`` and ``crash_everywhere``.
`EmbeddedPostgres` is the private server of `pg_scheduler.embedded`.
"""

from pg_scheduler.embedded import EmbeddedPostgres
from pg_scheduler.testing.async_kit import AsyncTestKit
from pg_scheduler.testing.context import job_context
from pg_scheduler.testing.crashes import CrashDifference, CrashReport, crash_everywhere
from pg_scheduler.testing.scheduler import TestScheduler
from pg_scheduler.testing.sync_kit import TestKit
from pg_scheduler.testing.transaction import DrainResult

__all__ = [
    "AsyncTestKit",
    "CrashDifference",
    "CrashReport",
    "DrainResult",
    "EmbeddedPostgres",
    "TestKit",
    "TestScheduler",
    "crash_everywhere",
    "job_context",
]

_PUBLIC = (
    AsyncTestKit,
    CrashDifference,
    CrashReport,
    DrainResult,
    TestKit,
    TestScheduler,
    crash_everywhere,
    job_context,
)
for _public_object in _PUBLIC:
    _public_object.__module__ = __name__  # tracebacks and docs name the module that users import from
