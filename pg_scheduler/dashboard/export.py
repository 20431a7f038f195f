"""Send every job of a search, or every record of the audit, as CSV or JSON lines, page by page."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from starlette.responses import Response, StreamingResponse

from pg_scheduler.base.text.values import csv_cell
from pg_scheduler.base.web_server import is_stopping
from pg_scheduler.dashboard.context import PageRequest, RejectedError
from pg_scheduler.dashboard.job_rows import row_of, tags_of
from pg_scheduler.dashboard.pages import audit
from pg_scheduler.dashboard.texts import plain
from pg_scheduler.inspect import AuditPage, AuditRecord, SearchPage
from pg_scheduler.jobs.model import Job

PAGE_LENGTH: Final = 500

COLUMNS: Final = (
    "job_id", "name", "status", "due", "priority", "attempt", "max_attempts", "created_at", "started_at",
    "finished_at", "worker", "schedule", "error", "tags", "progress",
)  # fmt: skip
CLOSED_COLUMNS: Final = ("args", "kwargs", "metadata")
"""Columns of requests that may see arguments."""

AUDIT_COLUMNS: Final = ("id", "at", "actor", "via", "action", "subject", "details")

STOPPED: Final = "the web server stops, so this export is incomplete; export again from the next process"


async def export(request: PageRequest, *, is_head: bool) -> Response:
    """Return the jobs of a search, or the records of the audit (``page=audit``), in a file.

    Raises:
        RejectedError: The search, a filter or the format is invalid, or the request may not read the audit.
    """
    format_name = request.choice("format", FORMATS, "jsonl")
    media_type, write = FORMATS[format_name]
    q, is_audit = request.parameters.get("q", ""), request.parameters.get("page") == "audit"
    # This function returns the page that follows a position; the first one for None.
    read: Callable[[str | None], Awaitable[SearchPage | AuditPage]]
    try:
        if is_audit:
            columns: Sequence[str] = AUDIT_COLUMNS
            read = partial(audit.read, request, PAGE_LENGTH)
        else:
            columns = [*COLUMNS, *(CLOSED_COLUMNS if request.access.sees_arguments else ())]
            request.check_search(q)
            read = partial(request.search_jobs, q, PAGE_LENGTH)
        # The first page is read before the answer starts, so that an error can still set the status.
        first_page = await read(None)
    except ValueError as error:  # A SearchError is a ValueError.
        raise RejectedError(str(error)) from error
    file_name = f"{'audit' if is_audit else 'jobs'}.{format_name}"
    headers = {"content-disposition": f'attachment; filename="{file_name}"'}
    if is_head:
        return Response(media_type=media_type, headers=headers)

    async def body() -> AsyncIterator[str]:
        """Yield the rows of each page. The next page is read when the browser has received the one before."""
        if format_name == "csv":
            # The header is a row whose values are the names of the columns.
            yield write([dict(zip(columns, columns, strict=True))])
        page: SearchPage | AuditPage | None = first_page
        while page is not None:
            if page.items:
                yield write(_row(request, item) for item in page.items)
            # A long export would hold back the end of the web server's process. Only an error ends a response
            # so that the browser takes the file for incomplete.
            if page.next is not None and is_stopping():
                raise RuntimeError(STOPPED)
            page = None if page.next is None else await read(page.next)

    return StreamingResponse(body(), media_type=media_type, headers=headers)


def _row(request: PageRequest, item: Job | AuditRecord) -> dict[str, Any]:
    """Return a job or a record with what the request may see."""
    if isinstance(item, AuditRecord):
        return dict(plain(audit.visible(item, request)))
    item = request.visible_job(item)
    job_row = row_of(item, request, with_arguments=False)
    row = {name: getattr(job_row, name) for name in COLUMNS}
    # A row of a list has these texts shortened.
    row |= {"error": item.error_message, "tags": tags_of(item, request)}
    if request.access.sees_arguments:
        row |= {"args": item.args, "kwargs": item.kwargs, "metadata": item.metadata}
    return dict(plain(row))


def _json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as JSON, one in each line."""
    return "".join(f"{json.dumps(row, ensure_ascii=True, allow_nan=False)}\n" for row in rows)


def _csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as lines of CSV, without a header."""
    lines = io.StringIO()
    csv.writer(lines).writerows([csv_cell(value) for value in row.values()] for row in rows)
    return lines.getvalue()


FORMATS: Final[Mapping[str, tuple[str, Callable[[Iterable[Mapping[str, Any]]], str]]]] = {
    "jsonl": ("application/jsonl", _json_lines),
    "csv": ("text/csv; charset=utf-8", _csv),
}
"""By format, its media type, and the function that writes rows in it."""
