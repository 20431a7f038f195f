"""Use middleware."""

from __future__ import annotations

from collections.abc import Sequence

from pg_scheduler.api.base import SchedulerParts
from pg_scheduler.enqueue.headers import Sender, SendingEnqueuer
from pg_scheduler.jobs.middleware import Middleware, check_middleware


class MiddlewareMethods(SchedulerParts):
    """The part of `Scheduler` that knows its middleware."""

    def _use_middleware(self, middleware: Sequence[Middleware]) -> None:
        """Use this middleware, the outermost first. Attempts have it from the next start on."""
        self._middleware = check_middleware(middleware)
        sender = Sender(self._middleware)
        if sender.is_used:
            inner = self._enqueuer
            if isinstance(inner, SendingEnqueuer):
                inner = inner.enqueuer
            self._enqueuer = SendingEnqueuer(inner, sender)
            self._schedule_jobs.sender = sender
