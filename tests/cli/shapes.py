"""The keys of every shape of the command line, as text: a line for each key, with its JSON schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pg_scheduler.cli.shapes import SHAPES, shape_schema


def keys_of_shapes() -> str:
    """Return the text of the golden file."""
    return "".join(
        f"{line}\n" for name in sorted(SHAPES) for line in _lines(name, shape_schema(SHAPES[name]))
    )


def _lines(path: str, found: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each key of a schema, with those of nested objects below it."""
    for key, each in found["properties"].items():
        inner = each.get("items", each)
        own = {name: value for name, value in each.items() if name in {"type", "format", "enum", "const"}}
        items = {} if "properties" in inner or inner is each else {"items": inner}
        yield f"{path}.{key}{'' if key in found['required'] else ' (optional)'} {json.dumps(own | items)}"
        if "properties" in inner:
            yield from _lines(f"{path}.{key}", inner)
