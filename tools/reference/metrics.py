"""The tables of the metrics, from the calls that export them.

A comment names what they are of: ``<!-- metrics: process -->`` or ``<!-- metrics: cluster -->``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from tools.reference.source import tree_of

MODULES: Final = {
    "process": ("pg_scheduler.telemetry.prometheus", "pg_scheduler.telemetry.process_metrics"),
    "cluster": ("pg_scheduler.telemetry.cluster",),
}
_COMMENT = re.compile(r"^<!-- metrics: (?P<of>\w+) -->$", re.MULTILINE)
_KINDS = {"gauge": "", "counter": "_total", "histogram": "", "single": "_total"}


class Family(NamedTuple):
    """A family of metrics, without the prefix of its name."""

    name: str
    labels: tuple[str, ...]
    text: str


def with_metrics(page: str) -> str:
    """Return a page with a table in the place of each comment."""
    return _COMMENT.sub(lambda comment: _table(comment["of"]), page)


def families(of: str) -> list[Family]:
    """Return the families that the modules of a kind export, in the order of the calls."""
    return [family for module in MODULES[of] for family in _families(tree_of(module))]


def _families(tree: ast.Module) -> Iterator[Family]:
    """Yield the families whose name is in the call; their text is there, or in the assignment before it."""
    text = ""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.Call)]
    for node in sorted(nodes, key=lambda node: node.lineno):
        match node:
            case ast.Assign(targets=[ast.Name("text")], value=ast.Constant(str(text))):
                pass
            case ast.Call(
                func=ast.Attribute(attr=kind) | ast.Name(kind), args=[ast.Constant(str(name)), about, *rest]
            ) if kind in _KINDS:
                labels = tuple(str(each.value) for each in rest if isinstance(each, ast.Constant))
                found = about.value if isinstance(about, ast.Constant) else text
                yield Family(name + _KINDS[kind], labels, str(found))


def _table(of: str) -> str:
    rows = [
        f"| `{name}` | {', '.join(f'`{label}`' for label in labels)} | {text.removesuffix('.')} |"
        for name, labels, text in families(of)
    ]
    return "\n".join(["| Family | Labels | Value |", "|---|---|---|", *rows])
