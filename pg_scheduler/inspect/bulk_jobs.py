"""The action and the jobs of a bulk run, as its row contains them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, get_args

from pg_scheduler.inspect.bulk import Progress
from pg_scheduler.inspect.errors import ErrorGroup, fingerprint_of
from pg_scheduler.inspect.inspector import Inspector

BulkAction: TypeAlias = Literal["cancel", "retry", "delete", "move"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkJobs:
    """The action and the jobs of a bulk run.

    Attributes:
        verb: The action.
        where: The search; empty for all jobs of the group.
        names: The names to which it is restricted; None for all.
        rate: Jobs per second; None for no limit.
        to: When moved jobs are due, as ISO 8601.
        group: A group of errors to retry: its name, its text, and when its first and its last job ended.
    """

    verb: BulkAction
    where: str
    names: tuple[str, ...] | None = None
    rate: float | None = None
    to: str | None = None
    group: tuple[str, str, str, str] | None = None

    @classmethod
    def of(cls, details: Mapping[str, Any]) -> BulkJobs | None:
        """Return what the row of a run contains; None if it was written by hand."""
        try:
            found = {each.name: details[each.name] for each in fields(cls)}
            for name in ("names", "group"):
                found[name] = None if found[name] is None else tuple(map(str, found[name]))
            jobs = cls(**found)
            is_valid = jobs.verb in get_args(BulkAction) and isinstance(jobs.where, str)
            is_valid = is_valid and isinstance(jobs.rate, int | float | None)
            if jobs.to is not None:
                datetime.fromisoformat(jobs.to)
            if jobs.group is not None:
                _group(*jobs.group)
        except (KeyError, TypeError, ValueError):
            return None
        return jobs if is_valid else None

    def steps(
        self,
        inspector: Inspector,
        *,
        is_dry: bool = False,
        run_id: str | None = None,
        after: str | None = None,
    ) -> AsyncGenerator[Progress, None]:
        """Return the steps of the Inspector."""
        call: Any = getattr(inspector, f"{self.verb}_jobs")
        arguments: dict[str, Any] = {}
        if self.to is not None:
            arguments["to"] = datetime.fromisoformat(self.to)
        if self.group is not None:
            arguments["group"] = _group(*self.group)
        steps: AsyncGenerator[Progress, None] = call(
            where=self.where,
            names=self.names,
            rate=self.rate,
            dry_run=is_dry,
            after=after,
            tz=UTC,
            run_id=run_id,
            **arguments,
        )
        return steps


def _group(job_name: str, text: str, first_at: str, last_at: str) -> ErrorGroup:
    """Return a group by what identifies it and its jobs."""
    first, last = datetime.fromisoformat(first_at), datetime.fromisoformat(last_at)
    return ErrorGroup(fingerprint_of(job_name, text), job_name, text, 0, first, last, "", "")
