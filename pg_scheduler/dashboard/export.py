"""Send every job of a search, or every record of the audit, as CSV or JSON lines, page by page."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from starlette.responses import Response, StreamingResponse

from pg_scheduler.dashboard.context import PageRequest, RejectedError
from pg_scheduler.dashboard.job_rows import row_of, tags_of
from pg_scheduler.dashboard.pages import audit
from pg_scheduler.dashboard.texts import plain
from pg_scheduler.inspect import AuditPage, SearchPage
from pg_scheduler.jobs.model import Job

PAGE_LENGTH: Final = 500

COLUMNS: Final = (
    "job_id", "name", "status", "due", "priority", "attempt", "max_attempts", "created_at", "started_at",
    "finished_at", "worker", "schedule", "error", "tags", "progress",
)  # fmt: skip
CLOSED_COLUMNS: Final = ("args", "kwargs", "metadata")
"""Columns of requests that may see arguments."""

FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""Starts of texts that spreadsheets execute."""


AUDIT_COLUMNS: Final = ("id", "at", "actor", "via", "action", "subject", "details")


class _Table(NamedTuple):
    """The rows of a file.

    Attributes:
        name: The name of the file without an ending.
        columns: Its columns.
        first: The first page, which is read before the answer starts.
        read: Reads the page at a position.
        row_of: Returns an item of a page as a row.
    """

    name: str
    columns: Sequence[str]
    first: SearchPage | AuditPage
    read: Callable[[str], Awaitable[SearchPage | AuditPage]]
    row_of: Callable[[Any], dict[str, Any]]


async def export(request: PageRequest, *, is_head: bool) -> Response:
    """Return the jobs of a search, or the records of the audit (``page=audit``), in a file.

    Raises:
        RejectedError: The search, a filter or the format is invalid, or the request may not read the audit.
    """
    form = request.choice("format", FORMATS, "jsonl")
    media_type, write = FORMATS[form]
    table = await (_records(request) if request.parameters.get("page") == "audit" else _jobs(request))
    headers = {"content-disposition": f'attachment; filename="{table.name}.{form}"'}
    if is_head:
        return Response(media_type=media_type, headers=headers)

    async def body() -> AsyncIterator[str]:
        if form == "csv":
            yield write([dict(zip(table.columns, table.columns, strict=True))])
        page: SearchPage | AuditPage | None = table.first
        while page is not None:
            if page.items:
                yield write(map(table.row_of, page.items))
            page = None if page.next is None else await table.read(page.next)

    return StreamingResponse(body(), media_type=media_type, headers=headers)


async def _jobs(request: PageRequest) -> _Table:
    q = request.parameters.get("q", "")
    read = partial(request.search_jobs, q, PAGE_LENGTH)
    try:
        request.check_search(q)
        first = await read(None)
    except ValueError as error:  # a SearchError
        raise RejectedError(str(error)) from error
    columns = [*COLUMNS, *(CLOSED_COLUMNS if request.access.sees_arguments else ())]
    return _Table("jobs", columns, first, read, partial(_row, request))


async def _records(request: PageRequest) -> _Table:
    read = partial(audit.read, request, PAGE_LENGTH)
    return _Table(
        "audit",
        AUDIT_COLUMNS,
        await read(None),
        read,
        lambda record: plain(audit.visible(record, request)),
    )


def _row(request: PageRequest, job: Job) -> dict[str, Any]:
    """Return a job with what the request may see."""
    listed = row_of(job, request, with_arguments=False)
    row = {name: getattr(listed, name) for name in COLUMNS}
    row |= {"error": job.error_message, "tags": tags_of(job, request)}  # a list shortens them
    if request.access.sees_arguments:
        hide = request.settings.redaction.values
        row |= {"args": hide(job.args), "kwargs": hide(job.kwargs), "metadata": hide(job.metadata)}
    shown: dict[str, Any] = plain(row)
    return shown


def _json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(f"{json.dumps(row, ensure_ascii=True, allow_nan=False)}\n" for row in rows)


def _csv(rows: Iterable[Mapping[str, Any]]) -> str:
    lines = io.StringIO()
    csv.writer(lines).writerows([_cell(each) for each in row.values()] for row in rows)
    return lines.getvalue()


def _cell(value: Any) -> Any:
    """Return a value as a cell, with an apostrophe before texts that a spreadsheet would execute."""
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
    return f"'{text}" if isinstance(text, str) and text.startswith(FORMULA) else text


FORMATS: Final[Mapping[str, tuple[str, Callable[[Iterable[Mapping[str, Any]]], str]]]] = {
    "jsonl": ("application/jsonl", _json_lines),
    "csv": ("text/csv; charset=utf-8", _csv),
}
