"""The source code of the project as a tree, for the tests that list all places of a kind."""

from __future__ import annotations

import ast
import gc
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=2)
def parsed(path: Path) -> ast.Module:
    """Parse a module.

    Python 3.11.7 raises SystemError if an object is deleted meanwhile whose finalizer prints a traceback,
    such as a task with an error (https://github.com/python/cpython/issues/106905).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        if was_enabled:
            gc.enable()


def calls_of(path: Path, methods: Collection[str]) -> list[ast.Call]:
    """Return the calls of functions and methods with one of these names."""
    return [
        node
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in methods
    ]
