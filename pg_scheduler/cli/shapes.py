"""``shapes``: the JSON schemas of what commands write, made from the types of their objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from .commands import Command
from .errors import NotFoundError, hint_at
from .output import SHAPE_VERSION, Shape
from .schema import object_schema, source_of

MODULES: Final = (
    "about", "adopt", "bulk", "doctor", "health", "imports", "job_show", "jobs",
    "limits", "migrate", "runs", "schedule_options", "schedule_times", "schedules", "sequences", "status",
    "tasks", "vacuum", "workers",
)  # fmt: skip
"""The modules of commands that write objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListDocument:
    """A list of objects as -o json writes it; some commands add further keys."""

    items: Sequence[Mapping[str, Any]]
    """The objects, each with the shape of its kind."""
    next: str | None
    """The --after of the following page; null at the end."""
    is_capped: bool
    """Whether counting stopped at a bound, so that there may be more."""
    summary: str
    """The numbers searched, counted and found, as text."""


LIST: Final = Shape("list", ListDocument, identity="items")
SHAPES: Final[Mapping[str, Shape[Any]]] = {LIST.name: LIST} | {
    shape.name: shape
    for module in MODULES
    for variable, shape in vars(import_module(f".{module}", __package__)).items()
    if isinstance(shape, Shape) and not variable.startswith("_")
}
"""The shapes by their names. Shapes with private names are of tables only."""


def shapes(
    command: Command,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Shape to print.")] = None,
) -> None:
    """Print the JSON schema of what commands write; without a name, the names of the shapes."""
    if name is None:
        command.output.write_text("".join(f"{key}\n" for key in sorted(SHAPES)))
        return
    if name not in SHAPES:
        raise NotFoundError(f"no shape is named {name!r}{hint_at(name, sorted(SHAPES), title='shapes')}")
    command.output.write_text(f"{json.dumps(shape_schema(SHAPES[name]), indent=2)}\n")
    # The descriptions of the keys are docstrings below fields, which byte code does not have.
    if source_of(SHAPES[name].kind) is None:
        command.output.say("without descriptions, which are in the source files: this installation has none")


def shape_schema(shape: Shape[Any]) -> dict[str, Any]:
    """Return the JSON schema of the objects of a shape, with the key ``v`` that each of them has."""
    schema = object_schema(shape.kind, shape.keys)
    schema["properties"] = {"v": {"const": SHAPE_VERSION}} | schema["properties"]
    schema["required"] = ["v", *schema["required"]]
    if shape is LIST:  # the other keys are those of some commands only
        schema |= {"required": ["v", "items"], "additionalProperties": True}
    # The title is the first line of the docstring.
    title = (shape.kind.__doc__ or "").partition("\n")[0].removesuffix(".")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title} | schema
