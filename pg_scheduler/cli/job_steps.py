"""``jobs steps``: the durable steps and signals of a job, as rows of output."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Final

import typer

from pg_scheduler.inspect import Inspector, StepState
from pg_scheduler.inspect.texts import short
from pg_scheduler.text.values import plain

from .commands import Command
from .errors import NotFoundError, hint_at
from .output import Column, Output, Shape, columns

STEP: Final = Shape(
    "step",
    StepState,
    (
        *columns("name", "kind", "state", "until"),
        Column("value", "VALUE", is_long=True),
        *columns("attempt", "started_at", "ended_at", is_wide=True),
    ),
)

NoArguments = Annotated[bool, typer.Option("--no-arguments", help="Omit the values of steps and signals.")]


async def steps(
    command: Command,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a job.")],
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Only this step, with a large value too.")
    ] = None,
    *,
    no_arguments: NoArguments = False,
) -> None:
    """Print the durable steps and signals of a job, the oldest first."""
    async with command.scheduler() as scheduler:
        inspector = Inspector(scheduler)
        found = await inspector.steps(job_id, name=name)
        if name is not None and not found.items:
            known = [each.name for each in (await inspector.steps(job_id)).items]
            raise NotFoundError(f"job {job_id!r} has no step {name!r}{hint_at(name, known)}")
    items = without_values(found.items) if no_arguments else found.items
    command.output.write_list(STEP, items, is_capped=found.is_capped, summary=found.summary)
    command.output.say(found.summary)


def without_values(steps: Iterable[StepState]) -> Sequence[StepState]:
    """Return steps without what may hold personal data."""
    return [replace(each, value=None, no_value_reason=None) for each in steps]


def step_lines(output: Output, steps: Iterable[StepState]) -> Iterator[str]:
    """Yield a line for each step, as people read it."""
    for each in steps:
        until = "" if each.ended_at is not None else f" until {output.when(each.until)}"
        value = "" if each.value is None else f": {short(json.dumps(plain(each.value), ensure_ascii=False))}"
        yield f"{output.when(each.started_at)}  {each.name} ({each.kind}) {each.state}{until}{value}"
