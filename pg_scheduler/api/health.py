"""Report the health of a Scheduler."""

from __future__ import annotations

from pg_scheduler.api.base import SchedulerMethods
from pg_scheduler.measure.health import Health, judge
from pg_scheduler.worker.health import facts_about


class HealthMethods(SchedulerMethods):
    """The method of `Scheduler` that reports its health."""

    def health(self) -> Health:
        """Return whether this Scheduler is live, ready and started, with the checks that decide it.

        From memory, without a query. Any thread may call it, also while the event loop is blocked: the answer
        names the job that blocks it. A call in the event loop finds that loop responding.
        """
        return judge(facts_about(self._parts.life))
