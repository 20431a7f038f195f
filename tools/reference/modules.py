"""The table of the public modules, in the place of a comment."""

from __future__ import annotations

from typing import Final

from tools.reference.source import PUBLIC_MODULES, module_docstring

COMMENT: Final = "<!-- modules -->"
"""A page has the table of the public modules in the place of this comment."""


def with_modules(page: str) -> str:
    """Return a page with the table of the public modules, if it has the comment for it."""
    purposes = {module: module_docstring(module).summary.removesuffix(".") for module in PUBLIC_MODULES}
    rows = [f"| `{module}` | {purpose.replace('``', '`')} |" for module, purpose in purposes.items()]
    return page.replace(COMMENT, "\n".join(["| Module | Purpose |", "|---|---|", *rows]))
