"""The guide's job that applies messages in order, per key; ``KILL`` lets its process die at a statement."""

from __future__ import annotations

import sys
from types import ModuleType

from tests.cluster import completing  # lets the process die at a statement of a job
from tests.docs.snippets import ROOT, Snippet, snippets_of

__all__ = ["TABLES", "completing", "define"]

PAGE = ROOT / "docs" / "guides" / "unique.md"


def block(kind: str, text: str) -> Snippet:
    """Return the only block of the page that is of this kind and contains the text."""
    (found,) = [each for each in snippets_of(PAGE) if each.kind == kind and text in each.code]
    return found


def define(module: ModuleType) -> None:
    """Define the job and its functions in a module."""
    snippet = block("python", "async def drain_inbox")
    exec(compile(snippet.code, str(snippet.page), "exec", dont_inherit=True), module.__dict__)


TABLES = block("sql", "CREATE TABLE inbox").code
define(sys.modules[__name__])
