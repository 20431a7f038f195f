"""When a failed try is tried again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pg_scheduler.errors import ConfigurationError

__all__ = ["DEFAULT_RETRY_POLICY", "RetryPolicy"]

LONGEST: Final = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with jitter.

    The delay before retry ``n`` (from 0) is ``base * factor**n``, moved by up to ``jitter`` of itself
    either way so that jobs that failed together do not come back together, and never above ``maximum``.

    Example:
        >>> RetryPolicy(jitter=0).delay(2, spread=0.0)
        datetime.timedelta(seconds=240)
    """

    base: timedelta = timedelta(seconds=60)
    factor: float = 2.0
    maximum: timedelta = timedelta(seconds=300)
    jitter: float = 0.1

    def __post_init__(self) -> None:
        if not timedelta(0) < self.base <= self.maximum <= LONGEST:
            raise ConfigurationError(
                f"RetryPolicy needs 0 < base <= maximum <= {LONGEST.days} days, "
                f"not base={self.base}, maximum={self.maximum}"
            )
        if not self.factor >= 1 or not 0 <= self.jitter < 1:
            raise ConfigurationError(
                f"RetryPolicy needs factor >= 1 and 0 <= jitter < 1, not {self.factor} and {self.jitter}"
            )

    def delay(self, retry_count: int, *, spread: float) -> timedelta:
        """How long to wait before the next try.

        Args:
            retry_count: Retries made so far.
            spread: A number from -1 to 1 that picks the point within the jitter.
        """
        most = self.maximum.total_seconds()
        try:
            seconds = min(self.base.total_seconds() * float(self.factor) ** retry_count, most)
        except OverflowError:
            seconds = most
        return timedelta(seconds=min(seconds * (1 + self.jitter * spread), most))


DEFAULT_RETRY_POLICY: Final = RetryPolicy()
