"""The name of the row of a message, and the name that people see, lead to each other."""

from __future__ import annotations

import pytest

from pg_scheduler.jobs.step_values import (
    check_step_name,
    described_signal,
    mailbox_of,
    message_name,
    shown_name,
    stored_name,
)


@pytest.mark.parametrize("mailbox", ["orders", "a:b", "0001:a", "a#3", "two\nlines", "ä" * 90])
@pytest.mark.parametrize("number", [1, 12, 2000])
def test_name_of_a_message_is_reserved_and_shown_with_mailbox_and_number(mailbox: str, number: int) -> None:
    name = message_name(mailbox, number)
    assert mailbox_of(name) == mailbox
    assert shown_name(name) == f"{mailbox}#{number}"
    assert stored_name(shown_name(name)) == name
    assert described_signal(name) == f"message {number} of {mailbox!r}"
    with pytest.raises(ValueError, match="reserved"):
        check_step_name(name)


@pytest.mark.parametrize("name", ["approval", "#", "#3", "a#", "a#x", "a#³", "a#12345", "\x01mail:1:a", ""])
def test_other_names_stay_as_they_are(name: str) -> None:
    assert mailbox_of(name) is None
    assert shown_name(name) == name
    assert stored_name(name) == name
    assert described_signal(name) == f"signal {name!r}"
