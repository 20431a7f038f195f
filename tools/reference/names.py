"""The public names with their signatures, as one text: ``python3 -m tools.reference.names`` writes the file.

A test compares the file ``tests/public_names.txt`` with the source. So a change that removes a name, or a
parameter of one, has to change the file too, and a reviewer sees it there. Each parameter and each field has
a line of its own, so an addition adds lines and changes none.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from typing import Final

from tools.environment import ROOT
from tools.reference.pages import is_property, public_functions
from tools.reference.source import PUBLIC_MODULES, Definition, find, public_names

FILE: Final = ROOT / "tests/public_names.txt"
INDENT: Final = "    "
MAX_LENGTH: Final = 110


def text_of_names() -> str:
    """Return all public names with their signatures."""
    described: dict[tuple[str, str], str] = {}
    blocks = []
    for module in PUBLIC_MODULES:
        lines = [f"# {module}"]
        for name in sorted(public_names(module)):
            definition = find(module, name)
            key = definition.module, definition.name
            # A second module may export the same object, as the package exports its errors.
            if key in described:
                lines.append(f"{name}: that of {described[key]}")
            else:
                described[key] = module
                lines.extend(_lines_of(definition, name))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _lines_of(definition: Definition, name: str) -> Iterator[str]:
    """Yield the lines of a name."""
    node = definition.node
    if isinstance(node, ast.ClassDef):
        yield from _lines_of_class(definition)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield _signature(definition, node)
    else:
        value: ast.expr | None = getattr(node, "value", None)
        # The value of a constant, such as the version, is no promise; that of an alias of types is one.
        if value is None or isinstance(value, ast.Call | ast.Constant):
            yield name
        else:
            yield f"{name} = {definition.source(value)}"


def _lines_of_class(definition: Definition) -> Iterator[str]:
    """Yield the lines of a class: its constructor, its fields, its properties and its methods."""
    bases = f"({', '.join(definition.bases())})" if definition.bases() else ""
    yield f"class {definition.name}{bases}"
    constructor = definition.functions().get("__init__")
    if constructor:
        for node in constructor[:-1] or constructor:
            yield textwrap.indent(_signature(definition, node), INDENT)
    for owner in (definition, *definition.mixins()):
        yield from (f"{INDENT}{_shortened(field.declaration)}" for field in owner.fields())
    for name, (owner, nodes) in public_functions(definition).items():
        if is_property(nodes[-1]):
            returns = nodes[-1].returns
            yield f"{INDENT}{name}: {owner.annotation(returns)}" if returns else f"{INDENT}{name}"
        else:
            for node in nodes[:-1] or nodes:  # the overloads, if there are any
                yield textwrap.indent(_signature(owner, node), INDENT)


def _shortened(declaration: str) -> str:
    """Return the declaration of a field, without a default that is too long to be read."""
    return declaration if len(declaration) <= MAX_LENGTH else declaration.partition(" = ")[0]


def _signature(definition: Definition, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return a signature with a line for each parameter."""
    return definition.signature(node, width=0).replace("(\n)", "()")


if __name__ == "__main__":
    FILE.write_text(text_of_names(), encoding="utf-8")
