"""Turn pages into HTML or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from jinja2.runtime import Context
from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from pg_scheduler.dashboard import texts
from pg_scheduler.dashboard.answers import JsonAnswer, document_of
from pg_scheduler.dashboard.charts import small_bars, small_line
from pg_scheduler.dashboard.context import PageRequest, View
from pg_scheduler.dashboard.findings import by_code, needs_attention, title_of_many
from pg_scheduler.dashboard.gantt import state_of
from pg_scheduler.dashboard.job_rows import share_done
from pg_scheduler.dashboard.json_tree import arguments_of
from pg_scheduler.dashboard.messages import job_of, message_of, undo_of
from pg_scheduler.dashboard.navigation import read_counts
from pg_scheduler.dashboard.pages import (
    LIVE_PARAMETERS,
    PAGES,
    audit,
    errors,
    groups_of,
    history,
    item_of,
    job_new,
    jobs,
    schedule_form,
    tasks,
    workers,
)
from pg_scheduler.dashboard.search_bar import STATES
from pg_scheduler.dashboard.snapshot import Snapshot
from pg_scheduler.dashboard.team_views import team_views
from pg_scheduler.dashboard.tracebacks import blocks_of, highlighted
from pg_scheduler.inspect.limits import limit_counts, use_count
from pg_scheduler.inspect.search.parser import FIELDS
from pg_scheduler.inspect.tasks import describe_waiting
from pg_scheduler.inspect.texts import count, counted, estimated, length, rounded, term
from pg_scheduler.jobs.keys import readable
from pg_scheduler.triggers.zones import zone_names
from pg_scheduler.version import __version__

MEDIA_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

FIRST_SCRIPT: Final = "theme.js"
"""The script that runs before the page is painted; the others are modules."""


LIVE: Final = "live_"
"""The prefix of the blocks that are parts of a page."""

UNAVAILABLE: Final = 503


OF_REQUEST: Final = (
    "access", "may", "settings", "url", "search_url", "source_url", "now", "standby_lag_s", "is_compact",
)  # fmt: skip
"""The attributes of the request to which templates refer by the same names."""

FILTERS: Final = (
    texts.ago, texts.initials, texts.json_text, texts.linked, texts.marked, texts.sentence, texts.short,
    texts.timed, texts.took, texts.unbroken, texts.utc, count, counted, describe_waiting, rounded, share_done,
    small_bars, small_line, needs_attention, by_code, title_of_many, audit.verb_of, errors.error_text,
    errors.retrying, errors.title_of, limit_counts, use_count, workers.grouped,
)  # fmt: skip
"""Functions that templates apply under their names."""


class StaticFile(NamedTuple):
    """A stylesheet, a script or icons."""

    content: bytes
    media_type: str


@cache
def static_files() -> dict[str, StaticFile]:
    """Return the files of ``static/`` by name."""
    directory = files("pg_scheduler.dashboard") / "static"
    return {
        path.name: StaticFile(path.read_bytes(), MEDIA_TYPES[path.name.rpartition(".")[2]])
        for path in directory.iterdir()
        if path.name.rpartition(".")[2] in MEDIA_TYPES
    }


@cache
def static_version() -> str:
    """Return a part of the addresses of static files, which changes with their content."""
    content = b"\0".join(static_files()[name].content for name in sorted(static_files()))
    return sha256(content).hexdigest()[:12]


async def render(
    page: Any, template: str, request: PageRequest, path: str, *, is_json: bool, status: int = 200
) -> Response:
    """Return the answer with a page.

    Args:
        page: A `View`, or a dataclass.
        template: The name of its template, without ``.html``.
        request: The request.
        path: The path of the page.
        is_json: Whether the data itself is the answer.
        status: The status of the answer.
    """
    vary = {"vary": "accept"}
    if is_json:
        # The document states how old its data is.
        age = {
            "at": request.now,
            "oldest_s": request.cache.oldest_s,
            "standby_lag_s": request.standby_lag_s,
        }
        data = page
        if isinstance(page, View):
            data = {name: value for name, value in vars(page).items() if not name.startswith("_")}
        document = {**document_of(template, texts.plain(data)), "read": texts.plain(age)}
        return JsonAnswer(document, status_code=status, headers=vary)
    # While the database is unavailable, a read of the counts would only delay the answer.
    counts = {} if status == UNAVAILABLE else await read_counts(request)
    names = _names(page, request, path) | {"counts": counts}
    page_template = _environment().get_template(f"{template}.html")
    # The error of a page has another template than the page, and is not updated.
    is_live = path in PAGES and PAGES[path].is_live and PAGES[path].template == template
    # The parts of the page that event streams update are rendered by themselves, as for an update. So the
    # page has the same versions of its parts as an update, which need not send them again.
    parts = _render_blocks(page_template, names)
    names |= {"versions": Snapshot(parts, "", request.now).versions, "is_live": is_live}
    context = page_template.new_context(names)
    # In the whole page, each of these blocks is replaced by a function that returns the HTML of the part.
    context.blocks |= {f"{LIVE}{name}": [partial(_yield, html)] for name, html in parts.items()}
    html = "".join(page_template.root_render_func(context))
    return HTMLResponse(html, status_code=status, headers=vary)


async def render_parts(page: Any, template: str, request: PageRequest, path: str) -> Snapshot:
    """Return the parts of a page that change, and when they were read."""
    names = _names(page, request, path)
    read = _environment().get_template("_read.html").render(names)
    names["counts"] = await read_counts(request)
    parts = _render_blocks(_environment().get_template(f"{template}.html"), names)
    return Snapshot(parts, read, request.now)


def _render_blocks(template: Template, names: Mapping[str, Any]) -> dict[str, str]:
    """Return the HTML of the parts of a page, by their names.

    A part is a block of the template whose name begins with ``live_``. It is rendered without the rest of the
    template, so it sees no variables that other blocks set.
    """
    context = template.new_context(dict(names))
    # Each template extends base.html, and may replace its blocks.
    blocks = _environment().get_template("base.html").blocks | template.blocks
    return {
        name.removeprefix(LIVE): "".join(render_block(context))
        for name, render_block in blocks.items()
        if name.startswith(LIVE)
    }


def _yield(html: str, _context: Context) -> Iterator[str]:
    """Act as the function of a block: yield the HTML with which the block was rendered before."""
    yield html


def _names(page: Any, request: PageRequest, path: str) -> dict[str, Any]:
    """Return the variables of a template. ``show`` has the macros, which use the other variables."""
    undo = undo_of(request.did)
    live_parameters = {name: request.parameters.get(name) for name in LIVE_PARAMETERS}
    names: dict[str, Any] = {name: getattr(request, name) for name in OF_REQUEST}
    names |= {
        "page": page,
        "message": message_of(request.did),
        "message_job": job_of(request.did),
        "undo": undo if undo is not None and request.may(undo.right) else None,
        "team_views": partial(team_views, request),
        "oldest_s": request.cache.oldest_s,
        "path": path,
        "is_page": path in PAGES,
        "here": request.url(path, **request.parameters).removeprefix(request.base),
        "live_url": request.url("/live", page=path, **live_parameters),
        "groups": groups_of(request.access),
        "item": item_of(path),
        "static": lambda name: request.url(f"/static/{static_version()}/{name}"),
    }
    names["show"] = _environment().get_template("macros.html").make_module(names)
    return names


@cache
def _environment() -> Environment:
    """Return the templates, with the functions and values that they all use."""
    environment = Environment(
        loader=PackageLoader("pg_scheduler.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "columns": list(jobs.COLUMNS.values()),
        "documentation": texts.DOCUMENTATION,
        "modules": [name for name in sorted(static_files()) if name.endswith(".js") and name != FIRST_SCRIPT],
        "navigation": {path: page.label for path, page in PAGES.items() if page.label},
        "ranges": list(history.RANGES),
        "runbook": texts.RUNBOOK,
        "search_fields": [f"{field}:{value}" for field, value in FIELDS.items()],
        "spans": list(errors.SPANS),
        "states": STATES,
        "task_badges": tasks.BADGES,
        "job_delays": job_new.DELAYS,
        "job_priorities": job_new.PRIORITIES,
        "task_ranges": list(tasks.RANGES),
        "term": term,
        "trigger_kinds": schedule_form.KINDS,
        "units": schedule_form.UNITS,
        "version": __version__,
        "zones": zone_names,
    }
    environment.filters |= {function.__name__: function for function in FILTERS} | {
        "attempt_state": state_of,
        "frames": blocks_of,
        "jobs_of_group": errors.search_of,
        "estimated": estimated,
        "length_of": length,
        "number": lambda number: f"{number:,}",
        "percent": lambda text: quote(text, safe=""),
        "python": highlighted,
        "readable": readable,
        "arguments_of": arguments_of,
    }
    return environment


def _finalize(value: Any) -> Any:
    """Return what a template writes for a value.

    A text gets escapes for characters that reorder or hide text. HTML stays as it is.
    """
    if isinstance(value, Markup):
        return value
    return texts.visible(value) if isinstance(value, str) else value
