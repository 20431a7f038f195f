"""The progress of a job: what is accepted, and how it is stored."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pg_scheduler.jobs.progress import JobProgress, checked_progress, progress_from, progress_text
from tests.support.cases import each_case


@pytest.mark.parametrize(
    "values", [(0, None, None), (1, 2, "half"), (0.5, 1e300, ""), (10**200, None, "ä\u2028")], ids=str
)
def test_progress_is_read_as_it_was_reported(values: Any) -> None:
    progress = checked_progress(*values)
    assert progress == JobProgress(*values)
    assert progress_from(progress_text(progress)) == progress


def test_note_is_cut_and_made_storable() -> None:
    assert checked_progress(1, None, "x" * 500).note == "x" * 200
    assert checked_progress(1, None, "a\x00b\ud800").note == "a\\x00b\\ud800"


def test_note_is_escaped_for_a_database_that_lacks_its_characters() -> None:
    text = progress_text(JobProgress(1, None, "zł"), in_ascii=True)
    assert progress_from(text) == JobProgress(1, None, "z\\u0142")
    assert progress_text(JobProgress(1), in_ascii=True) == '{"done": 1}'


@each_case(
    ("values", "error", "message"),
    [
        (("1", None, None), TypeError, "done must be an int or a float, not '1'; pass done=int"),
        ((True, None, None), TypeError, "done must be an int or a float, not True"),
        ((None, None, None), TypeError, "done must be an int or a float, not None"),
        ((1, [2], None), TypeError, r"total must be an int or a float, not \[2\]; pass total=int"),
        ((1, 2, 3), TypeError, "note must be a str or None, not 3; pass note=str"),
        ((math.nan, None, None), ValueError, "done must be finite and at most 1e300, not nan"),
        ((1, math.inf, None), ValueError, "total must be finite and at most 1e300, not inf"),
        ((10**400, None, None), ValueError, "done must be finite and at most 1e300, not an int of 1329 bits"),
    ],
)
def test_progress_that_cannot_be_stored_is_refused(values: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        checked_progress(*values)
