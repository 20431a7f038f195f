"""Ask before something is changed that cannot be undone, with a page that sends the same form again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

MAX_SHOWN: Final = 10
"""Ids that a question shows."""


@dataclass(frozen=True, slots=True)
class ConfirmPage:
    """A question."""

    question: str
    label: str
    """The text of the button."""
    back: str
    """The path of the page before."""
    rows: Sequence[str] = ()
    """The ids that were selected."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Further fields of the form."""
    number: int | None = None
    """The number that has to be typed; None for none."""
    problem: str | None = None
    """Why the question is asked again; None for the first time."""
    rate: str | None = None
    """The jobs per second that the form proposes, empty for no bound; None if it does not ask for them."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """The parameters of the address, which are those of the page before too."""

    @property
    def shown(self) -> Sequence[str]:
        """The first ids."""
        return self.rows[:MAX_SHOWN]
