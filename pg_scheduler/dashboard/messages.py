"""Say on the next page what an action did.

A cookie carries the message to that page. It has a code and numbers, and no text, so the page can show
nothing but the sentences of this module. If the action changed a single job, the cookie has the id of the
job, for a link. If another action restores what was changed, the cookie has the address and the form fields
of that action. The page offers it as a button, and it needs the same right as if it came from any other page.
The page removes the cookie, so a reload does not repeat the message. No link can make a page show a message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final
from urllib.parse import parse_qs, quote, unquote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from pg_scheduler.dashboard.access import Right
from pg_scheduler.dashboard.texts import visible
from pg_scheduler.inspect.bulk import RULES

MAX_AGE_S: Final = 10
MAX_JOB: Final = 1000
"""Characters of the id of a job."""

MAX_UNDO: Final = 2000
"""Characters of the action that restores."""

MAX_LENGTH: Final = 4096
"""Characters of a cookie that a browser keeps. A request with a longer one has not got it from here."""

INVERSES: Final[Mapping[str, Right]] = {
    "/actions/jobs/move": "move",
    "/actions/tasks/pause": "task_pause",
    "/actions/tasks/resume": "task_pause",
    "/actions/schedules/pause": "schedule_pause",
    "/actions/schedules/resume": "schedule_pause",
}
"""The actions that can restore what another action has changed, and the right that each of them needs."""

_CODE: Final = re.compile(r"([a-z_]{1,40})((?:\.[0-9]{1,9}){0,4})")

_MANY: Final[Mapping[str, tuple[str, str, str]]] = {
    "cancel": ("job", "cancelled", RULES["cancel"]),
    "retry": ("job", "will run again", RULES["retry"]),
    "run": ("job", "moved to now", RULES["move"]),
    "move": ("job", "moved", RULES["move"]),
    "delete": ("job", "deleted", RULES["delete"]),
    "schedules_pause": ("schedule", "paused", "paused before"),
    "schedules_resume": ("schedule", "resumed", "not paused before"),
    "schedules_trigger": ("schedule", "triggered", "an unfinished job has the unique key of the task"),
}
"""By action on the rows of a list: what a row is, what was done to it, and why some rows stay as they are."""

_TEXTS: Final[Mapping[str, str]] = {
    "nothing_selected": "nothing was changed: select rows first",
    "job_added": "this new job was added; the other one stays as it was",
    "job_new": "this job was added",
    "job_changed": "the job was changed",
    "job_kept": "the job does not expire any more",
    "job_skipped": "the sequence continues behind the job",
    "job_in_front": "the job is the next one of its sequence",
    "job_not_kept": "nothing was changed: the job cannot expire, or is not pending any more",
    "signal_sent": "the signal was sent",
    "sleep_ended": "the sleep has ended; the job continues",
    "stack_requested": "the worker was requested to show the stack of the job",
    "run_stopped": "the run stops after the batch in progress",
    "run_resumed": "the run continues",
    "task_paused": "the task is paused; waiting jobs that would expire during the pause: {:,}",
    "task_paused_capped": "the task is paused; waiting jobs that would expire during the pause: {:,}+",
    "task_paused_suspending": "the task is paused; its jobs do not expire during the pause",
    "task_paused_uncounted": "the task is paused; jobs that would expire during the pause were not counted",
    "task_resumed": "the task is resumed",
    "task_not_paused": "the task was not paused",
    "schedule_added": "the schedule was added",
    "schedule_updated": "the schedule was changed",
    "schedule_paused": "the schedule is paused",
    "schedule_resumed": "the schedule is resumed",
    "schedule_triggered": "one job of the schedule was enqueued",
    "schedule_backfilled": "{:,} jobs of the schedule were enqueued",
    "schedule_removed": "the schedule was removed",
    "mute_finding": "the finding is muted",
    "unmute_finding": "the finding is no longer muted",
    "mute_error": "the group of errors is muted",
    "unmute_error": "the group of errors is no longer muted",
    "worker_drained": "the worker was requested to drain",
    "worker_resumed": "the worker was requested to claim jobs again",
}


@dataclass(frozen=True, slots=True)
class Undo:
    """The action that restores what another one has changed.

    Attributes:
        path: Its path.
        parameters: The parameters of its address.
        fields: The fields of its form.
    """

    path: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def right(self) -> Right:
        """The right that the undo needs."""
        return INVERSES[self.path]


def _written(code: str, undo: Undo | None, job_id: str) -> str:
    """Return a message as the text of its cookie: ``<code>!<job id>~<undo>``.

    The id and the undo are optional. They are left out if they are too long for a cookie. So is an undo with
    a field that a page would show with escapes, because its form would then send another text.
    """
    # quote() leaves a tilde as it is, but in the cookie a tilde begins the undo.
    quoted_id = quote(job_id, safe="").replace("~", "%7E")
    message = code
    if quoted_id and len(quoted_id) <= MAX_JOB:
        message = f"{message}!{quoted_id}"
    if undo is None or any(visible(text) != text for texts in undo.fields.values() for text in texts):
        return message
    undo_text = f"{undo.path}?{urlencode(undo.parameters)}#{urlencode(undo.fields, doseq=True)}"
    if len(undo_text) > MAX_UNDO:
        return message
    return f"{message}~{quote(undo_text, safe='')}"


def undo_of(message: str) -> Undo | None:
    """Return the undo in the text of a cookie, which restores what was changed; None if it has none."""
    _, _, undo_text = message.partition("~")
    path, _, query = unquote(undo_text).partition("?")
    # The cookie may have been made by hand, so only actions that are undos are accepted.
    if path not in INVERSES:
        return None
    parameters_text, _, fields_text = query.partition("#")
    parameters = {name: texts[0] for name, texts in parse_qs(parameters_text).items()}
    return Undo(path, parameters, parse_qs(fields_text))


def job_of(message: str) -> str:
    """Return the id of the job in the text of a cookie; empty if the message is about none, or several."""
    without_undo, _, _ = message.partition("~")
    _, _, quoted_id = without_undo.partition("!")
    return unquote(quoted_id)


def code_of(action: str, *numbers: int) -> str:
    """Return the code of a message: the action and its numbers, such as ``cancel.3.0.0``."""
    return ".".join((action, *map(str, numbers)))


def message_of(message: str) -> str | None:
    """Return the sentence for the text of a cookie; None for a code that no action makes.

    The text is a code with numbers, such as ``jobs_retried.5.0.1``. It may be followed by ``!`` and details,
    and by ``~`` and what "Undo" needs, which are left out here.
    """
    without_undo, _, _ = message.partition("~")
    code, _, _ = without_undo.partition("!")
    match = _CODE.fullmatch(code)
    if match is None:
        return None
    action, numbers = match[1], [int(number) for number in match[2].split(".")[1:]]
    # The numbers of changed, refused and missing rows, and of failed ones, if there are any.
    if action in _MANY and len(numbers) in {3, 4}:
        return _many_message(action, *numbers)
    text = _TEXTS.get(action)
    if text is None:
        return None
    # A cookie that was made by hand may lack numbers that the text needs, so zeros follow.
    return text.format(*numbers, *[0] * 3)


def _many_message(action: str, changed: int, refused: int, missing: int, failed: int = 0) -> str:
    """Return the sentence about an action on rows of a list, with the numbers of rows by their outcome."""
    noun, past, rule = _MANY[action]
    parts = [f"{changed:,} {noun if changed == 1 else f'{noun}s'} {past}"]
    if refused:
        parts.append(f"{refused:,} {'refused' if noun == 'job' else 'left as they are'} ({rule})")
    if missing:
        parts.append(f"{missing:,} not found")
    if failed:
        parts.append(f"{failed:,} failed (their own pages state why, if you do it there)")
    return ", ".join(parts)


def _name(request: Request, base: str) -> str:
    """Return the name of the cookie, which differs between the dashboards of a host.

    With the prefix, browsers accept it over HTTPS only, and not from another host of the domain.
    """
    prefix = "__Host-" if request.url.scheme == "https" else ""
    return f"{prefix}pg_scheduler-{sha256(base.encode()).hexdigest()[:8]}"


def add(
    response: Response, request: Request, base: str, code: str, undo: Undo | None, *, job_id: str
) -> None:
    """Let the next page show a message, with the action that restores what was changed, and its job."""
    name, text, is_https = _name(request, base), _written(code, undo, job_id), request.url.scheme == "https"
    response.set_cookie(name, text, MAX_AGE_S, secure=is_https, httponly=True, samesite="strict")


def read(request: Request, base: str) -> str:
    """Return the message for this page; empty if there is none."""
    message = request.cookies.get(_name(request, base), "")
    return message if len(message) <= MAX_LENGTH else ""


def remove(response: Response, request: Request, base: str) -> None:
    """Let no other page show the message."""
    is_https = request.url.scheme == "https"
    response.delete_cookie(_name(request, base), secure=is_https, httponly=True, samesite="strict")
