"""A request to change something: its form, within bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qs, unquote

from starlette.requests import Request

from pg_scheduler.dashboard.access import Access
from pg_scheduler.dashboard.context import PageRequest, RejectedError, entered_instant
from pg_scheduler.dashboard.job_rows import JobRow
from pg_scheduler.dashboard.messages import Undo
from pg_scheduler.dashboard.operations import Operations
from pg_scheduler.dashboard.pauses import FIELDS, PauseForm
from pg_scheduler.jobs.call_errors import Subject

MAX_BODY_BYTES: Final = 512 * 1024
MAX_FIELDS: Final = 600
MAX_ROWS: Final = 500
"""Rows of a list that one request can select."""

MAX_SHOWN: Final = 10

FIELD_REMEDIES: Final[Mapping[Subject, str]] = {
    "arguments": "enter arguments that fit the signature of the function",
    "bounds": "enter a later end",
    "due time": "choose “now”",
    "named argument": "enter it by its name",
    "size": "store them elsewhere and enter an id or a path",
    "value": "enter another value, or encode it as a text",
}
"""What a person can do in a form about an error of a call. Its other subjects have no fields."""

MEDIA_TYPE: Final = "application/x-www-form-urlencoded"

Form = Mapping[str, Sequence[str]]


class NothingSelectedError(RejectedError):
    """No row was selected in the form of a list. The list is shown again with this message."""


@dataclass(frozen=True, slots=True)
class Redirect:
    """The page to which the browser is sent.

    Attributes:
        path: Its path within the dashboard.
        did: The code of the message; None for none.
        parameters: The parameters of its address.
        undo: The action that restores what was changed; None if nothing does.
        job_id: The job to which the message links; empty for none, as on the page of the job itself.
    """

    path: str
    did: str | None = None
    parameters: Mapping[str, object] | None = None
    undo: Undo | None = None
    job_id: str = ""


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """A page that is the answer itself, such as a form with an error."""

    page: Any
    template: str
    status: int = 200


@dataclass(frozen=True, slots=True)
class ConfirmPage:
    """A page with a question before a change that cannot be undone. Its button sends the same form again."""

    question: str
    label: str
    back: str
    rows: Sequence[str] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    number: int | None = None
    """The number that has to be typed; None for none."""
    problem: str | None = None
    """Why the question is asked again; None for the first time."""
    rate: str | None = None
    """The jobs per second that the form proposes, empty for no bound; None if it does not ask for them."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """The parameters of the address, which the address of the previous page had too."""
    heading: str = ""
    """What is asked, in a few words; empty for the label of the button."""
    terms: Sequence[str] = ()
    """The terms of the search that finds the jobs; none for selected rows."""
    sample: Sequence[JobRow] = ()
    """The first jobs that the search finds; none for selected rows."""
    choices: Mapping[str, str] = field(default_factory=dict)
    """The choices of jobs, by the value of the field ``take``; the first is the default."""
    children: str = ""
    """The label of the check box ``children``; empty for none."""
    is_with_children: bool = False
    """Whether that box is checked at first."""

    @property
    def shown(self) -> Sequence[str]:
        """The ids of the first rows, which the page lists."""
        return self.rows[:MAX_SHOWN]


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """A request to change something.

    Attributes:
        page: The request, as for a page. Its Inspector is that of the operations, since the pool of the pages
            may lead to a standby; its parameters are those of the address, which name the subject.
        form: The fields of the form.
    """

    page: PageRequest
    form: Form

    @property
    def access(self) -> Access:
        """The rights of the request, which include those to change objects."""
        return self.page.access

    @property
    def operations(self) -> Operations:
        """Makes the change."""
        return self.page.operations

    @property
    def is_confirmed(self) -> bool:
        """Whether this is the answer to a question."""
        return self.text("confirm") == "yes"

    @property
    def is_for_all(self) -> bool:
        """Whether the change concerns all that a search finds, and not only the selected rows."""
        return self.text("all") == "yes"

    @property
    def is_one(self) -> bool:
        """Whether the address names the object. Then the selected rows do not count."""
        return "id" in self.page.parameters

    @property
    def ids(self) -> list[str]:
        """The id in the address, or those of the selected rows."""
        return [self.page.required("id")] if self.is_one else self.rows

    def text(self, name: str) -> str:
        """Return the first value of a field without surrounding space; empty if the field is missing."""
        values = self.form.get(name) or ("",)
        return values[0].strip()

    def number(self, name: str) -> int | None:
        """Return a whole number; None if the field is empty.

        Raises:
            RejectedError: The text is no whole number.
        """
        # Pages write large numbers with commas, and users may repeat these.
        text = self.text(name).replace(",", "")
        if not text:
            return None
        # isdigit() alone accepts digits of other scripts too.
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            raise RejectedError(f"{name} must be a whole number, not {text[:50]!r}")
        return int(text)

    def instant(self, name: str) -> datetime | None:
        """Return an instant; None if the field is empty. The field ``zone`` has the time zone of the text.

        Raises:
            RejectedError: The text is no time, or out of range, or the zone is unknown.
        """
        return entered_instant(name, self.text(name), self.page.now, self.text("zone"))

    @property
    def pause(self) -> PauseForm:
        """The fields of the form of a pause."""
        return PauseForm.of({name: self.text(name) for name in FIELDS})

    @property
    def rows(self) -> list[str]:
        """The ids that were selected in a list; forms have them percent-encoded.

        Raises:
            NothingSelectedError: There are none.
            RejectedError: There are too many.
        """
        rows = [unquote(text, errors="strict") for text in self.form.get("row", ())]
        if not rows:
            raise NothingSelectedError("select a row first")
        if len(rows) > MAX_ROWS:
            raise RejectedError(f"select at most {MAX_ROWS} rows, not {len(rows)}")
        return rows


async def read_form(request: Request) -> Form:
    """Return the fields of an urlencoded form.

    Raises:
        RejectedError: The body has another media type, is too long or not UTF-8, has too many fields, or has
            a NUL character.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != MEDIA_TYPE:
        raise RejectedError(f"the body must be a form of type {MEDIA_TYPE}", 415)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise RejectedError(f"the form has more than {MAX_BODY_BYTES:,} bytes; select fewer rows", 413)
    try:
        form = parse_qs(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"
        )
    except ValueError as error:
        raise RejectedError(f"the form must be UTF-8 with at most {MAX_FIELDS} fields") from error
    if any("\0" in text for texts in form.values() for text in texts):
        raise RejectedError("a field must not contain a NUL character")
    return form
