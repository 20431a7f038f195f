"""The faults of minor releases of PostgreSQL that matter to a scheduler, and what corrects them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pg_scheduler.base.text.remedies import AFTERWARDS, RemedyStep, execute, joined


@dataclass(frozen=True, slots=True)
class ServerFault:
    """A fault of some minor releases."""

    corrected_in: tuple[tuple[int, int], ...]
    """The first release without it, as major and minor version, of each major version that had it."""

    effect: str
    """What it does to the tables, in words."""

    repair: tuple[RemedyStep, ...] = ()
    """What remains to be done after the upgrade."""

    def correction(self, major: int, minor: int) -> str | None:
        """Return the release that corrects the fault of this one, None if this one does not have it."""
        for fixed_major, fixed_minor in self.corrected_in:
            if fixed_major == major and minor < fixed_minor:
                return f"{fixed_major}.{fixed_minor}"
        return None


SERVER_FAULTS: Final = (
    ServerFault(
        ((14, 4),),
        "an index that is built CONCURRENTLY, as by pg-scheduler migrate indexes, can lack rows",
        (joined(AFTERWARDS, execute("REINDEX INDEX CONCURRENTLY", "each index that was built so")),),
    ),
    ServerFault(((14, 9), (15, 4)), "a hash join inside of a lateral join can lack rows of its result"),
)
