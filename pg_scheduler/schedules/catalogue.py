"""The catalogue of the periodic functions of this process."""

from __future__ import annotations

from typing import Final

from pg_scheduler.errors import NameConflictError
from pg_scheduler.jobs.registry import captures_same, catalogue
from pg_scheduler.schedules.declared import PeriodicJobConfig


class PeriodicCatalogue:
    """The periodic functions by dedup key. Every Scheduler of the process reads it."""

    def __init__(self) -> None:
        self._configs: dict[str, PeriodicJobConfig] = {}
        self.version = 0

    def add(self, config: PeriodicJobConfig) -> None:
        """Add a config, or replace the one of the same function and key.

        Raises:
            ValueError: Another function has the key, or its given job name.
            NameConflictError: The function has another key with other captured values or another object.
        """
        known = self._configs.get(config.dedup_key)
        if known and known.function != config.function:
            raise ValueError(
                f"dedup_key {config.dedup_key!r} already belongs to {known.function}; "
                f"pass another dedup_key= for {config.function}"
            )
        for key, other in self._configs.items():
            if key != config.dedup_key and not _may_share_name(config, other):
                raise NameConflictError(
                    f"{config.function} already has the schedule {key!r} as a method of another object or "
                    "with other captured values, and a row stores the name only; "
                    "decorate a function of another name"
                )
        # Default job names are loose, since functions of different modules share them; given names are exact.
        catalogue.register(
            config.func,
            aliases=[config.job_name] if config.named else [],
            loose=[] if config.named else [config.job_name],
        )
        self._configs[config.dedup_key] = config
        self.version += 1

    def configs(self) -> dict[str, PeriodicJobConfig]:
        """Return a copy of the configs by dedup key."""
        return dict(self._configs)

    def clear(self) -> None:
        """Remove every config, for tests."""
        self._configs.clear()
        self.version += 1


def _may_share_name(one: PeriodicJobConfig, other: PeriodicJobConfig) -> bool:
    return one.function != other.function or captures_same(one.func, other.func)


periodic_catalogue: Final = PeriodicCatalogue()
