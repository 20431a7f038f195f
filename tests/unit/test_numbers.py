"""Numbers with nouns, and without scientific notation."""

from __future__ import annotations

import re

from pg_scheduler.base.text.numbers import counted, exact, plural, two_digits


def test_numbers_never_have_scientific_notation() -> None:
    values = [
        sign * digit * 10.0**power for sign in (1, -1) for digit in (1, 1.5, 9.96) for power in range(-3, 9)
    ]
    texts = [text for value in values for text in (two_digits(value), exact(value))]
    assert [text for text in texts if "e" in text] == []
    assert all(re.fullmatch(r"-?[\d,]+(\.\d+)?", text) for text in texts)


def test_two_digits_rounds() -> None:
    assert [two_digits(value) for value in (0, 0.0123, 9.94, 9.96, 99.6, 100, 123_456)] == [
        "0",
        "0.012",
        "9.9",
        "10",
        "100",
        "100",
        "120,000",
    ]


def test_noun_follows_its_number() -> None:
    assert [counted(number, "job") for number in (0, 1, 2, 1200)] == [
        "0 jobs",
        "1 job",
        "2 jobs",
        "1,200 jobs",
    ]
    assert counted(1, "job", is_capped=True) == "1+ jobs"
    assert (plural(1.0, "second"), plural(0.5, "second")) == ("second", "seconds")
