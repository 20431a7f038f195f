"""The group ``sequences``."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from pg_scheduler.inspect import SequenceState

from .commands import Command, Group, watched
from .errors import NotFoundError, UsageError
from .output import Column, Shape, columns


@dataclass(frozen=True, slots=True)
class SequenceChange:
    """The result of a change of a sequence."""

    job_id: str
    """The job that was skipped, or moved to the front."""
    result: str
    """``skipped`` or ``moved``."""


SEQUENCE: Final = Shape(
    "sequence",
    SequenceState,
    (
        *columns("name", "key", "state", "waiting", "head", "stopped_at"),
        Column("head_name", is_wide=True),
    ),
    identity="key",
)
CHANGE: Final = Shape(
    "sequence_change",
    SequenceChange,
    (Column("job_id", "ID", is_id=True), Column("result")),
)


async def list_sequences(command: Command) -> None:
    """Print the keys of sequences, the job that is first, and how many wait behind it; stopped ones first."""
    async with command.inspector() as inspector:
        sequences = await inspector.sequences()
    is_capped = sequences.is_capped or sequences.is_waiting_capped
    command.output.write_list(SEQUENCE, sequences.items, is_capped=is_capped, summary=sequences.summary)
    command.output.say(sequences.summary)


async def skip(
    command: Command,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a sequence.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="Its key.")],
    job: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Skip this job only. If it has not ended, it is cancelled."),
    ] = None,
    running: Annotated[
        bool, typer.Option("--running", help="Skip the first job also if it has not ended: cancel it.")
    ] = False,
) -> None:
    """Continue behind the first job of a sequence, at which it has stopped."""
    if job is not None and running:
        raise UsageError("give either --job or --running: --job ID cancels that job also while it runs")
    async with command.inspector() as inspector:
        job_id = await inspector.skip_head(name, key, job_id=job, running=running)
        sequence = None if job_id is not None else await inspector.sequence(name, key)
    if job_id is None:
        raise NotFoundError(_not_skipped(f"sequence {name!r} with the key {key!r}", sequence, job))
    command.output.write_one(CHANGE, SequenceChange(job_id, "skipped"))


def _not_skipped(subject: str, sequence: SequenceState | None, job: str | None) -> str:
    """Return why no job was skipped, and what to do."""
    head = None if sequence is None else sequence.head
    if head is None:
        return f"no job of the {subject} is first"
    if job is not None and head != job:
        return f"the job {job!r} is not first in the {subject}, but {head!r} is; nothing was changed"
    if job is not None:
        return f"the job {job!r} has just ended in another way; nothing was changed"
    return (
        f"the {subject} has not stopped: its first job {head!r} has not ended; to cancel that job, "
        f"give --job {shlex.quote(head)}"
    )


async def front(
    command: Command,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a waiting job.")],
) -> None:
    """Make a job that waits in a sequence the next one."""
    async with command.inspector() as inspector:
        is_moved = await inspector.move_to_front(job_id)
    if not is_moved:
        raise NotFoundError(f"job {job_id!r} does not wait in a sequence")
    command.output.write_one(CHANGE, SequenceChange(job_id, "moved"))


COMMANDS: Final = Group(
    "Inspect sequences, and change which job is next.",
    {"list": watched(list_sequences), "skip": skip, "front": front},
)
