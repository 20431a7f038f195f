"""An error about a value says what to do with it, and no code changes the text of a finished message."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import pg_scheduler
from pg_scheduler.errors import PayloadError
from pg_scheduler.jobs.result import kept_value
from pg_scheduler.jobs.step_values import step_text
from tests.support.source import parsed

PACKAGE: Final = Path(pg_scheduler.__file__).parent
CHANGING: Final = {"replace", "removeprefix", "removesuffix", "partition", "rpartition", "split", "strip"}
KEY: Final = "ask; pass on; and return an id"


FOREIGN: Final = {"database/faults.py": "the server"}
"""Modules that shorten texts of others, whose parts they do not make."""


def test_keys_of_a_value_are_in_its_error_as_they_are() -> None:
    reason = kept_value(60, {KEY: object()}, None).no_value_reason
    assert reason is not None
    assert KEY in reason
    assert reason.endswith("; return None, bool, int, float, str, list or dict")


@pytest.mark.parametrize("verb", ["return", "send"])
def test_error_of_a_step_says_what_to_do_with_its_value(verb: str) -> None:
    with pytest.raises(PayloadError) as caught:
        step_text("a", {KEY: object()}, None, verb=verb)
    assert KEY in str(caught.value)
    assert str(caught.value).endswith(f"; {verb} None, bool, int, float, str, list or dict")
    with pytest.raises(PayloadError, match=f"store it elsewhere and {verb} an id or a path"):
        step_text("a", "x" * 100, 10, verb=verb)


def changes_of_finished_texts() -> Iterator[str]:
    """Yield the modules where a method that changes text is called on the text of an exception."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(parsed(path)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            calls = [inner for inner in ast.walk(node.func.value) if isinstance(inner, ast.Call)]
            texts = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "str"]
            names = [inner.id for text in texts for inner in ast.walk(text) if isinstance(inner, ast.Name)]
            if node.func.attr in CHANGING and {"error", "fault", "exception"} & {*names}:
                yield path.relative_to(PACKAGE).as_posix()


def test_no_code_changes_the_text_of_an_exception() -> None:
    assert {*changes_of_finished_texts()} == FOREIGN.keys()
