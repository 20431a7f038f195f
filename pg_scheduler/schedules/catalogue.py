"""The catalogue of all periodic functions of this process."""

from __future__ import annotations

from typing import Final

from pg_scheduler.jobs.registry import catalogue
from pg_scheduler.schedules.model import PeriodicJobConfig

__all__ = ["periodic_catalogue"]


class PeriodicCatalogue:
    """All periodic functions of the process, by dedup key; every Scheduler reads it."""

    def __init__(self) -> None:
        self._configs: dict[str, PeriodicJobConfig] = {}
        self.version = 0

    def add(self, config: PeriodicJobConfig) -> None:
        """Make a config known; the same function may come again, another one may not take its key.

        Raises:
            ValueError: Another function has the key.
        """
        known = self._configs.get(config.dedup_key)
        if known and known.function != config.function:
            raise ValueError(
                f"dedup_key {config.dedup_key!r} is {known.function}'s and cannot be {config.function}'s too"
            )
        # Periodic functions share a default name when their modules differ: it is a loose one. A name that
        # was given is exact, and refused if it is another function's.
        catalogue.register(
            config.func,
            aliases=[config.job_name] if config.named else [],
            loose=[] if config.named else [config.job_name],
        )
        self._configs[config.dedup_key] = config
        self.version += 1

    def configs(self) -> dict[str, PeriodicJobConfig]:
        """A copy, by dedup key."""
        return dict(self._configs)

    def clear(self) -> None:
        """Forget everything. For tests."""
        self._configs.clear()
        self.version += 1


periodic_catalogue: Final = PeriodicCatalogue()
