"""Which mutants a run tries: drawn by a seed, so that the same commit and seed give the same ones."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from tools.mutants import python, sql
from tools.mutants.mutant import Finder, Mutant

FINDERS: Final[Mapping[str, Finder]] = {".py": python.mutants, ".sql": sql.mutants}
RECENT_SHARE: Final = 0.75
"""How many of the draws take a function that was changed in the last days."""


def all_mutants(root: Path, paths: Iterable[str]) -> list[Mutant]:
    """Return the mutants of all files below these paths, in the order of their places."""
    files = {
        file
        for path in paths
        for file in ([root / path] if (root / path).is_file() else (root / path).rglob("*"))
        if file.suffix in FINDERS
    }
    return [
        mutant
        for file in sorted(files)
        for mutant in FINDERS[file.suffix](file.relative_to(root).as_posix(), file.read_text("utf-8"))
    ]


def draw(
    mutants: Iterable[Mutant], recent_lines: Mapping[str, set[int]], count: int, seed: str
) -> list[Mutant]:
    """Draw different mutants.

    Each draw takes a function, then an operator, then one of the places. So a long function is no more
    likely than a short one, and a lock no less likely than a condition.

    Args:
        mutants: The mutants, in an order that is always the same.
        recent_lines: The lines that were changed in the last days, by file.
        count: The number of mutants to draw.
        seed: What decides the draws.
    """
    by_function: defaultdict[tuple[str, str], list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_function[mutant.path, mutant.function].append(mutant)
    recent = [
        function
        for function, (first, *_) in by_function.items()
        if recent_lines.get(first.path, set()).intersection(first.function_lines)
    ]
    functions = list(by_function)
    chance = random.Random(seed)  # noqa: S311 - not for a secret
    drawn: list[Mutant] = []
    while functions and len(drawn) < count:
        pool = recent if recent and chance.random() < RECENT_SHARE else functions
        function = chance.choice(pool)
        remaining = by_function[function]
        operator = chance.choice(sorted({mutant.operator for mutant in remaining}))
        mutant = chance.choice([mutant for mutant in remaining if mutant.operator == operator])
        remaining.remove(mutant)
        drawn.append(mutant)
        if not remaining:
            functions.remove(function)
            if function in recent:
                recent.remove(function)
    return drawn
