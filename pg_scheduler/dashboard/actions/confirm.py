"""Ask before something is changed that cannot be undone, with a page that sends the same form again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pg_scheduler.dashboard.actions.request import ActionRequest, Shown

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
    parameters: Mapping[str, str]
    """The parameters of both addresses."""
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

    @property
    def shown(self) -> Sequence[str]:
        """The first ids."""
        return self.rows[:MAX_SHOWN]


def ask(
    request: ActionRequest,
    question: str,
    label: str,
    back: str,
    *,
    rows: Sequence[str] = (),
    fields: Mapping[str, str] | None = None,
    number: int | None = None,
    problem: str | None = None,
    rate: str | None = None,
) -> Shown:
    """Return the page with a question; `ConfirmPage` describes the parameters."""
    page = ConfirmPage(
        question, label, back, request.page.parameters, rows, fields or {}, number, problem, rate
    )
    return Shown(page, "confirm")
