"""The group ``sequences``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import typer

from pg_scheduler.inspect import SequenceState

from .commands import Command, Group, watched
from .errors import NotFoundError
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
) -> None:
    """Continue behind the first job of a sequence: a failed one, or one that is cancelled by this."""
    async with command.inspector() as inspector:
        job_id = await inspector.skip_head(name, key)
    if job_id is None:
        raise NotFoundError(f"no job of the sequence {name!r} with the key {key!r} is first")
    command.output.write_one(CHANGE, SequenceChange(job_id, "skipped"))


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
