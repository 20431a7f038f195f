"""The health of a Scheduler: whether a restart would repair it, and whether it does its work.

``Scheduler.health()`` returns it from memory, without a query, to any thread.
"""

from pg_scheduler.base.health import Health, HealthCheck, Probe, State

__all__ = ["Health", "HealthCheck", "Probe", "State"]

for _class in (Health, HealthCheck):  # tracebacks and docs name the module that users import from
    _class.__module__ = __name__
