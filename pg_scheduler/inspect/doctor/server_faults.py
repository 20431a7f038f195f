"""Faults of minor releases of PostgreSQL that matter to a scheduler, and the releases that correct them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pg_scheduler.base.text.remedies import AFTERWARDS, RemedyStep, execute, joined


@dataclass(frozen=True, slots=True)
class ServerFault:
    """A fault of some minor releases."""

    corrected_in: tuple[tuple[int, int], ...]
    """For each major version that had the fault, the first release without it, as major and minor version."""

    effect: str
    """The effect of the fault on tables or results, in words."""

    repair: tuple[RemedyStep, ...] = ()
    """What remains to be done after the upgrade."""

    def correction(self, major: int, minor: int) -> str | None:
        """Return the release that corrects the fault, such as ``14.4``.

        None if the release with these numbers does not have the fault.
        """
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
