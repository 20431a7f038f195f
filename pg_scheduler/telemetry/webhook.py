"""Send the findings of the doctor to a webhook: a message when one appears, and one when it is gone.

Any process with a Scheduler can do this: a worker, the exporter, or the web application with the dashboard.
If several do, one of them holds an advisory lock and examines the cluster. Another one follows when it ends.
The audit has what was sent, so a restart repeats no message. A database role that cannot read and write it is
refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias, get_args
from urllib.parse import urlsplit

from pg_scheduler.base.foreign import call_in_daemon, class_name
from pg_scheduler.database.faults import RECORD_REFUSALS
from pg_scheduler.errors import ConfigurationError, DatabaseUnavailableError, SchedulerError
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.inspect import Finding, FindingCode, Inspector, Severity
from pg_scheduler.inspect.audit import finding_id, read_muted
from pg_scheduler.inspect.base import tables_of
from pg_scheduler.inspect.doctor.examination import read_codes
from pg_scheduler.inspect.texts import counted
from pg_scheduler.jobs.validation import check_kind, check_text
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.tools import check_scheduler
from pg_scheduler.version import __version__

__all__ = ["DoctorWebhook"]

WebhookFormat: TypeAlias = Literal["json", "slack"]

ACTION: Final = "notify_findings"
"""The action of the records that have what was sent."""

SLACK_HOST: Final = "hooks.slack.com"
MAX_OPEN: Final = 200
"""Findings that a webhook remembers; further ones are not sent."""

MAX_LINES: Final = 30
"""Findings that a message for Slack names."""

MAX_TEXT_LENGTH: Final = 500
"""Characters of the evidence and of the remedy that are sent."""

TIMEOUT_S: Final = 10.0
PAUSES_S: Final = (1.0, 5.0)
"""The pauses between the attempts to send a message. If all fail, the next examination sends it."""

LONGEST_PAUSE_S: Final = 900.0
"""The maximum number of seconds between two examinations while messages cannot be sent."""

TRANSIENT: Final = frozenset({408, 425, 429})
"""Statuses below 500 after which a message is sent again after a pause, as after each status from 500 on."""

SHOWN_TO_FEW: Final = frozenset({FindingCode.XMIN_HELD})
"""Findings whose evidence is not sent, because it contains a statement of another session."""


@dataclass(frozen=True, slots=True)
class _Response:
    """The result of an attempt to send a message: the status of the response, or why there was none."""

    status: int = 0
    problem: str = ""

    @property
    def is_delivered(self) -> bool:
        """Whether the message has arrived."""
        return 200 <= self.status < 300

    @property
    def is_transient(self) -> bool:
        """Whether a further attempt may succeed: there was no response, or the server may recover."""
        return self.status == 0 or self.status >= 500 or self.status in TRANSIENT

    def __str__(self) -> str:
        """Return the problem or the status, for the log."""
        return self.problem or f"status {self.status}"


class DoctorWebhook:
    """Examines the cluster once a minute within its ``async with`` block, and sends what has changed.

    A message names the findings of the doctor that have appeared, and those that are gone. A finding is gone
    when two examinations in a row have not found it. A finding that is muted in the dashboard is not sent.
    Several processes may have a webhook with the same ``name``: one of them sends.

    A JSON message has the lists ``appeared`` and ``gone``. A finding in them has ``id``, ``code``, ``title``
    and ``since``, a time in ISO 8601. One that has appeared also has ``severity``, ``subject``, ``meaning``,
    ``evidence`` and ``remedy``, the last two with at most 500 characters.

    Args:
        scheduler: The Scheduler, started or not. The process that sends holds one connection of its pool.
        url: The URL that gets the messages, by POST. It is a secret, so no log record, error or page has it.
        format: ``"slack"`` for an incoming webhook of Slack, ``"json"`` for JSON. None for Slack if the host
            is ``hooks.slack.com``, else for JSON.
        name: The name of the webhook, by default ``"doctor"``. Webhooks with different names each send every
            message.
        only: The codes of findings to send, as text or `FindingCode`; empty for all, the default.
        severity: The lowest severity to send, by default warnings.
        interval: The time between two examinations, a second or more, by default a minute. While messages
            cannot be sent, it grows to 15 minutes.
        link: The URL of the dashboard, to which messages link; None for no link.

    Raises:
        ConfigurationError: The pool cannot spare a connection, and there is no ``direct_dsn``. Or, at the
            begin of the block, the database role may not read and write the audit; the roles of workers and
            operators may.
        TypeError: An argument has the wrong type.
        ValueError: ``url`` is not one of HTTP, or another argument is invalid.

    Example::

        from pg_scheduler.telemetry.webhook import DoctorWebhook

        url = "https://alerts.example.org/hook"
        async with DoctorWebhook(scheduler, url, only=["WORKER-NONE", "LATE"]):
            ...  # serve the application
    """

    def __init__(
        self,
        scheduler: Scheduler,
        url: str,
        *,
        format: WebhookFormat | None = None,  # noqa: A002 - what it is
        name: str = "doctor",
        only: Iterable[str] = (),
        severity: Severity = Severity.WARNING,
        interval: timedelta = timedelta(minutes=1),
        link: str | None = None,
    ) -> None:
        host = _host_of(url)
        if format is not None and format not in get_args(WebhookFormat):
            raise ValueError(f"format must be one of {', '.join(get_args(WebhookFormat))}, not {format!r}")
        if not check_kind("interval", interval, timedelta) >= timedelta(seconds=1):
            raise ValueError(f"interval must be a second or more, not {interval!r}")
        self._inspector = Inspector(check_scheduler(scheduler))
        self._tables = tables_of(self._inspector).writes
        if not self._tables.statements.connections.can_spare_one:
            raise ConfigurationError(
                "the pool is too small to hold a connection for a webhook; give it max_size of 4 or more, or "
                "pass direct_dsn="
            )
        self._url = url
        is_slack = host == SLACK_HOST if format is None else format == "slack"
        self._write = _slack if is_slack else _json
        self._name = check_text("name", name)
        self._codes = read_codes([only] if isinstance(only, str) else only)
        self._severity = check_kind("severity", severity, Severity)
        self._interval_s = interval.total_seconds()
        self._link = None if link is None else check_text("link", link)
        self._task: asyncio.Task[None] | None = None
        self._sent_findings: dict[str, dict[str, Any]] | None = None
        """What was sent and is not gone, by the ids of findings; None before it was read."""
        self._absent_ids: set[str] = set()
        """The open findings that the last examination did not find."""
        self._failures = 0
        """How many examinations in a row could not send their message, at most 10."""

    async def __aenter__(self) -> Self:
        """Check the privileges of the database role, and start the task that examines the cluster."""
        try:
            await self._check_role()
        except ConfigurationError:
            raise
        except SchedulerError:
            # The tables may come later, and the database too. The task waits for them.
            pass
        self._task = asyncio.create_task(self._run(), name="pg_scheduler webhook of the doctor")
        self._task.add_done_callback(self._ended)
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Stop the task, and wait for its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        """Examine the cluster again and again while this process holds the lock of the webhook.

        Only one process holds it. The others ask for it after each interval.
        """
        # The last problem that was logged, so that each one is logged once.
        problem = ""
        while True:
            try:
                await self._check_role()
                key = _lock_key(await self._tables.schema(), self._name)
                loss = asyncio.Event()
                async with self._tables.locks.advisory_lock(key, loss.set) as is_held:
                    if is_held:
                        await self._lead(loss)
            except SchedulerError as error:
                if str(error) != problem:
                    problem = str(error)
                    text = "the webhook %r waits: %s"
                    logger.warning(text, self._name, error, extra=record_fields())
            else:
                problem = ""
            await asyncio.sleep(self._interval_s)

    async def _check_role(self) -> None:
        """Raise ConfigurationError if the database role cannot record what was sent."""
        if not await self._tables.audit_records.is_writable():
            raise ConfigurationError(
                "the database role may not read and write the table scheduler_audit, which has what a "
                "webhook has sent; connect as the role of the workers or of an operator, whose privileges "
                "pg-scheduler doctor --grants prints"
            )

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Log an error that ended the task, which is a bug."""
        if not task.cancelled() and (error := task.exception()) is not None:
            text = "the webhook %r has ended by an error"
            logger.error(text, self._name, exc_info=error, extra=record_fields())

    async def _lead(self, loss: asyncio.Event) -> None:
        """Examine the cluster at intervals until the lock is lost, which sets the event ``loss``."""
        # Another process may have sent messages since this one led last, so what was sent is read again.
        self._sent_findings = None
        self._absent_ids = set()
        while not loss.is_set():
            await self.run_once()
            # Each failure doubles the pause, up to its maximum.
            pause_s = min(self._interval_s * 2**self._failures, max(self._interval_s, LONGEST_PAUSE_S))
            try:
                async with asyncio.timeout(pause_s):
                    await loss.wait()
            except TimeoutError:
                continue

    async def run_once(self) -> None:
        """Examine the cluster once, and send what has changed since the last message."""
        now = datetime.now(UTC)
        if self._sent_findings is None:
            self._sent_findings = await self._read_open()
        diagnosis = await self._inspector.doctor(only=self._codes)
        findings = {finding_id(finding): finding for finding in diagnosis.findings}
        muted_ids = await read_muted(self._inspector, "finding", findings, now)
        unsent_findings = []
        for found_id, finding in findings.items():
            is_known = found_id in self._sent_findings or found_id in muted_ids
            if not is_known and finding.severity.rank >= self._severity.rank:
                unsent_findings.append(finding)
        # The number of findings that are remembered is bounded, so further ones are not sent.
        room = max(MAX_OPEN - len(self._sent_findings), 0)
        new_findings = unsent_findings[:room]
        # The findings of a check that was not made may still be there.
        absent_ids = {
            sent_id
            for sent_id, entry in self._sent_findings.items()
            if sent_id not in findings and entry.get("code") in diagnosis.made
        }
        # A finding is gone when two examinations in a row have not found it: one may miss it by chance.
        gone_ids = absent_ids & self._absent_ids
        self._absent_ids = absent_ids
        gone_findings = [entry for sent_id, entry in self._sent_findings.items() if sent_id in gone_ids]
        if not (new_findings or gone_findings):
            return
        message = self._write(self._name, now, new_findings, gone_findings, self._link)
        # A message that has not arrived is sent by the next examination, which finds the same changes.
        if await self._deliver(message):
            open_findings = {
                sent_id: entry for sent_id, entry in self._sent_findings.items() if sent_id not in gone_ids
            }
            for finding in new_findings:
                open_findings[finding_id(finding)] = _sent(finding, now)
            self._sent_findings = open_findings
            await self._record(new_findings, gone_findings)

    async def _read_open(self) -> dict[str, dict[str, Any]]:
        """Return what was sent and is not gone, by the ids of findings, from the newest record.

        People may have written the record by hand, so what it contains is checked.
        """
        records = await self._tables.audit_records.newest_records([self._name], [ACTION], 1)
        open_findings = records[0].details.get("open") if records else None
        if not isinstance(open_findings, list):
            return {}
        entries = [entry for entry in open_findings if isinstance(entry, dict)]
        return {str(entry.get("id")): entry for entry in entries[:MAX_OPEN]}

    async def _record(
        self, new_findings: Sequence[Finding], gone_findings: Sequence[Mapping[str, Any]]
    ) -> None:
        """Record what was sent, so that no restart sends it again."""
        details = {
            "appeared": [finding_id(finding) for finding in new_findings],
            "gone": [entry.get("id") for entry in gone_findings],
            "open": list((self._sent_findings or {}).values()),
        }
        try:
            await self._inspector.record_action(ACTION, self._name, **details)
        except (DatabaseUnavailableError, *RECORD_REFUSALS) as error:
            text = "what the webhook %r has sent was not recorded, so a restart may send it again: %s"
            logger.warning(text, self._name, error, extra=record_fields())

    async def _deliver(self, message: Mapping[str, Any]) -> bool:
        """Send a message, at most three times if errors are transient; return whether it has arrived."""
        body = json.dumps(message).encode()
        response = await self._post(body)
        for pause_s in PAUSES_S:
            if response.is_delivered or not response.is_transient:
                break
            await asyncio.sleep(pause_s)
            response = await self._post(body)
        if response.is_delivered:
            self._failures = 0
            return True
        text = "the webhook %r refused a message: %s; the next examination sends it again"
        # Of several failures in a row, the first one is logged.
        if not self._failures:
            logger.warning(text, self._name, response, extra=record_fields())
        # After ten failures the pause has its maximum, even with the shortest interval.
        self._failures = min(self._failures + 1, 10)
        return False

    async def _post(self, body: bytes) -> _Response:
        """Send a body once, in a thread, so that the event loop is not blocked."""
        future = call_in_daemon(lambda: _post(self._url, body), "pg_scheduler webhook")
        try:
            async with asyncio.timeout(2 * TIMEOUT_S):
                response, error = await asyncio.wrap_future(future)
        except TimeoutError:
            return _Response(problem="no answer in time")
        if response is not None:
            return response
        # The thread has raised an error, whose text may have the URL, so only its class is named.
        return _Response(problem=class_name(error))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Treats a redirection as a response, because another host must not get the message."""

    def redirect_request(self, *_: Any) -> None:
        """Return None, so that no request follows the redirection."""
        return


def _post(url: str, body: bytes) -> _Response:
    """Send a body by POST, and return the status of the response."""
    headers = {"Content-Type": "application/json", "User-Agent": f"pg_scheduler/{__version__}"}
    request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310 - checked before
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S) as response:
            return _Response(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return _Response(error.code)
    except (OSError, http.client.HTTPException, ValueError) as error:
        # Only the class is named, because the text may have the URL. The reason of a URLError may be a text.
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, BaseException):
            return _Response(problem=class_name(reason))
        return _Response(problem="no connection")


def _host_of(url: object) -> str:
    """Return the host of a URL.

    Raises:
        ValueError: It is no URL of HTTP. The message does not have it, because it is a secret.
    """
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
    except ValueError:
        parts = None
    if parts is None or parts.scheme not in {"https", "http"} or not parts.hostname:
        raise ValueError("url must begin with https:// or http:// and a host (it is not shown here)")
    return parts.hostname


def _lock_key(schema: str, name: str) -> int:
    """Return the key of the advisory lock of a webhook, which is an integer of 64 bits."""
    digest = hashlib.sha256(f"pg_scheduler webhook {schema} {name}".encode()).digest()
    return int.from_bytes(digest[:8], signed=True)


def _sent(finding: Finding, now: datetime) -> dict[str, Any]:
    """Return what a record keeps of a finding that was sent."""
    return {
        "id": finding_id(finding),
        "code": finding.code.value,
        "title": finding.title,
        "since": now.isoformat(timespec="seconds"),
    }


def _json(
    name: str,
    now: datetime,
    new_findings: Sequence[Finding],
    gone_findings: Sequence[Mapping[str, Any]],
    link: str | None,
) -> dict[str, Any]:
    """Return a message as an object for programs."""
    return {
        "source": "pg_scheduler",
        "webhook": name,
        "at": now.isoformat(timespec="seconds"),
        "link": link,
        "appeared": [
            {
                **_sent(finding, now),
                "severity": finding.severity.value,
                "subject": finding.subject,
                "meaning": finding.meaning,
                "evidence": _evidence_of(finding),
                "remedy": None if finding.remedy is None else finding.remedy[:MAX_TEXT_LENGTH],
            }
            for finding in new_findings
        ],
        "gone": [dict(entry) for entry in gone_findings],
    }


def _slack(
    name: str,
    _now: datetime,
    new_findings: Sequence[Finding],
    gone_findings: Sequence[Mapping[str, Any]],
    link: str | None,
) -> dict[str, Any]:
    """Return a message for an incoming webhook of Slack."""
    lines = []
    for finding in new_findings:
        explanation = _escaped(_evidence_of(finding) or finding.meaning)
        line = f":red_circle: *{_escaped(finding.title)}* ({finding.code.value}): {explanation}"
        if finding.remedy:
            line += f"\n> {_escaped(finding.remedy[:MAX_TEXT_LENGTH])}"
        lines.append(line)
    lines += [f":white_check_mark: Gone: {_escaped(str(entry.get('title')))}" for entry in gone_findings]
    # A line with their number takes the place of further changes.
    if len(lines) > MAX_LINES:
        lines[MAX_LINES:] = [f"and {counted(len(lines) - MAX_LINES, 'other change')}"]
    if link is not None:
        lines.append(f"<{_escaped(link)}|Open the dashboard>")
    return {"text": "\n".join([f"pg_scheduler, {_escaped(name)}", *lines])}


def _evidence_of(finding: Finding) -> str:
    """Return the evidence of a finding, shortened; an empty text if it is not for everyone to read."""
    if finding.code in SHOWN_TO_FEW:
        return ""
    return finding.evidence[:MAX_TEXT_LENGTH]


def _escaped(text: str) -> str:
    """Return a text without the characters with which Slack marks links and mentions."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
