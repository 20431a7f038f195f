"""Detect that the server's clock was set, from the times that heartbeats and claims return.

Sleeps are measured by the monotonic clock. One that ends at a time of the server is wrong once the server's
clock has been set.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Final

from pg_scheduler.worker.signals import Signal

TOLERANCE_S: Final = 0.5
"""Seconds by which the clocks may drift apart before that counts as a step."""


class ServerClock:
    """Compare the server's clock with the monotonic clock of this process."""

    __slots__ = ("_least", "_most", "_stepped")

    def __init__(self, stepped: Signal) -> None:
        self._stepped = stepped
        self._least = float("-inf")
        self._most = float("inf")

    def read(self, now: datetime, requested_at: float) -> None:
        """Compare with a time of the server that was requested at this monotonic time, and received now.

        The server read its clock in between, so every answer bounds the difference of the two clocks. The
        clock was set if the bounds contradict those of earlier answers, however long each answer took.
        """
        server_time = now.timestamp()
        least, most = server_time - time.monotonic(), server_time - requested_at
        if least > self._most + TOLERANCE_S or most < self._least - TOLERANCE_S:
            self._least, self._most = least, most
            self._stepped()
        else:
            self._least, self._most = max(self._least, least), min(self._most, most)
