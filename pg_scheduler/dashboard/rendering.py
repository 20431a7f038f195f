"""Turn pages into HTML or JSON."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from pg_scheduler.dashboard.context import PageRequest, term
from pg_scheduler.dashboard.pages import PAGES
from pg_scheduler.dashboard.texts import ago, json_text, plain, short, utc, visible
from pg_scheduler.inspect.model import rounded
from pg_scheduler.inspect.texts import length
from pg_scheduler.version import __version__

__all__ = ["SHAPE_VERSION", "StaticFile", "render", "render_region", "static_files", "wants_json"]

SHAPE_VERSION: Final = 1

MEDIA_TYPES: Final = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}


class StaticFile(NamedTuple):
    """The stylesheet or the script."""

    content: bytes
    media_type: str


@cache
def static_files() -> dict[str, StaticFile]:
    """Return the files of ``static/`` by name."""
    found = files("pg_scheduler.dashboard") / "static"
    return {
        each.name: StaticFile(each.read_bytes(), MEDIA_TYPES[each.name.rpartition(".")[2]])
        for each in found.iterdir()
        if each.name.rpartition(".")[2] in MEDIA_TYPES
    }


class _JsonResponse(JSONResponse):
    def render(self, content: Any) -> bytes:
        text = json.dumps(content, ensure_ascii=True, allow_nan=False, indent=2)
        return text.encode() + b"\n"


def wants_json(request: Request) -> bool:
    """Return whether the request accepts JSON, and does not prefer HTML."""
    accepted = ",".join(request.headers.getlist("accept")).lower()
    json_at, html_at = accepted.find("application/json"), accepted.find("text/html")
    return json_at >= 0 and (html_at < 0 or json_at < html_at)


def render(
    page: Any, template: str, request: PageRequest, path: str, *, is_json: bool, status: int = 200
) -> Response:
    """Return the answer with a page.

    Args:
        page: The view model, a dataclass.
        template: The name of its template, without ``.html``.
        request: The request.
        path: The path of the page.
        is_json: Whether the data itself is the answer.
        status: The status of the answer.
    """
    vary = {"vary": "accept"}
    if is_json:
        document = {"v": SHAPE_VERSION, "beta": True, "page": template, "data": plain(page)}
        return _JsonResponse(document, status_code=status, headers=vary)
    html = _environment().get_template(f"{template}.html").render(_names(page, request, path))
    return HTMLResponse(html, status_code=status, headers=vary)


def render_region(page: Any, template: str, request: PageRequest, path: str) -> str:
    """Return the HTML of the part of a page that changes."""
    return _environment().get_template(f"_{template}.html").render(_names(page, request, path))


def _names(page: Any, request: PageRequest, path: str) -> dict[str, Any]:
    return {
        "page": page,
        "access": request.access,
        "settings": request.settings,
        "url": request.url,
        "search_url": request.search_url,
        "term": term,
        "now": request.now,
        "path": path,
        "is_live": path in PAGES and PAGES[path].is_live,
        "live_url": request.url("/live", page=path, range=request.parameters.get("range")),
        "navigation": {path: page.label for path, page in PAGES.items() if page.label},
        "version": __version__,
    }


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("pg_scheduler.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "ago": ago,
        "json_text": json_text,
        "length_of": length,
        "number": lambda number: f"{number:,}",
        "rounded": rounded,
        "short": short,
        "utc": utc,
    }
    return environment


def _finalize(value: Any) -> Any:
    """Show every text that is no template with escapes for characters that reorder or hide text."""
    if isinstance(value, Markup):
        return value
    return visible(value) if isinstance(value, str) else value
