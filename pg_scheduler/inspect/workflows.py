"""The jobs that steps connect: the children of a job, and the job whose child it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pg_scheduler.base.status import JobStatus
from pg_scheduler.inspect.base import tables_of
from pg_scheduler.inspect.inspector import Inspector
from pg_scheduler.inspect.steps import StepState
from pg_scheduler.inspect.store.workflows import MAX_CHILDREN, ChildRow, OwnerRow
from pg_scheduler.jobs.step_values import CHILD

RESULT: Final = "result"
RESULTS_OF_CHILDREN: Final = ("child:", "again:", "kept:", "next:")
"""How the names of the results of children begin. The library chooses these names."""


@dataclass(frozen=True, slots=True)
class Family:
    """The jobs that steps connect with a job, as far as a person may see them."""

    children: Mapping[str, Sequence[ChildRow]] = field(default_factory=dict)
    """The children by the name of their step, at most 1,000 in all."""
    has_more_children: bool = False
    """Whether there are further children, or hidden ones."""
    cut_step: str | None = None
    """The step of which only some children were read, because the job has too many; None for none."""
    owner: OwnerRow | None = None
    """The job whose step has started this one; None if no step did, or the job is hidden."""

    @property
    def open_children(self) -> list[ChildRow]:
        """The children that exist and have not ended."""
        rows = (row for children in self.children.values() for row in children)
        return [row for row in rows if row.job_name is not None and row.finished_at is None]

    @property
    def has_failed_children(self) -> bool:
        """Whether a child exists that has failed, expired or was cancelled."""
        rows = (row for children in self.children.values() for row in children)
        return any(
            row.job_name is not None and row.finished_at is not None and row.state != JobStatus.COMPLETED
            for row in rows
        )


async def read_family(
    inspector: Inspector, job_id: str, steps: Sequence[StepState], sees_name: Callable[[str], bool]
) -> Family:
    """Return the children and the owner of a job, without jobs of hidden names.

    A job that does not exist has no name, so it is shown only to a person who may see all names.
    """
    reads = tables_of(inspector).reads.workflows
    owner = await reads.owner(job_id)
    # Only a job with a step of this kind has children.
    has_children = any(step.kind == CHILD for step in steps)
    rows = await reads.children(job_id) if has_children else []
    children: dict[str, list[ChildRow]] = {}
    visible_rows = [row for row in rows if sees_name(row.job_name or "")][:MAX_CHILDREN]
    for row in visible_rows:
        children.setdefault(row.step, []).append(row)
    is_owner_visible = owner is not None and sees_name(owner.job_name or "")
    return Family(
        children,
        has_more_children=len(visible_rows) < len(rows),
        # One row more than is shown was read. Further children belong to its step, or to later ones.
        cut_step=rows[-1].step if len(rows) > MAX_CHILDREN else None,
        owner=owner if is_owner_visible else None,
    )


async def count_family(
    inspector: Inspector, job_id: str, sees_name: Callable[[str], bool], *, for_retry: bool = False
) -> int:
    """Return how many visible jobs are cancelled with a job and its children, or retried with them.

    The job itself does not count. At most 10,000 jobs of the family are examined.
    """
    counts = await tables_of(inspector).reads.workflows.family(job_id, for_retry=for_retry)
    return sum(count.jobs for count in counts if sees_name(count.job_name))


def is_result_of_child(step: StepState) -> bool:
    """Return whether a row is only the result of a child, whose own step has another row."""
    return step.kind == RESULT and step.name.startswith(RESULTS_OF_CHILDREN)
