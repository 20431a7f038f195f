"""Count what shows whether the package can still be changed: ``python -m tools.figures [--against REF]``.

The figures are information, to be read by commit and judged over many. Two things are hard: the contracts of
imports (``lint-imports``), and that each module of the package has a place in the table ``[tool.house]`` of
pyproject.toml. Names are resolved to the modules that define them, and statements are read as the loader of
the package completes them, so that a rename or a move changes no figure. What this cannot see is left out.
"""
