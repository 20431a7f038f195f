"""Libraries that may be absent: the lock of lowest versions leaves them out."""

from __future__ import annotations

from typing import Final

LEFT_OUT: Final = ("mcp", "mcp_types", "pydantic_ai")
"""The modules of the extras ``[mcp]`` and ``[pydantic-ai]``, which need newer libraries than others do."""


def is_left_out(error: ImportError) -> bool:
    """Return whether an import has failed because the lock of lowest versions leaves the library out."""
    return isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in LEFT_OUT
