"""Refuse a request, with the reason as text, as JSON, or as a page that shows nothing of the dashboard."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

SHAPE_VERSION: Final = 1

PUBLIC_STYLE: Final = "/static/refusal.css"
"""The path of the stylesheet of these pages, the only address for which ``authorize=`` is not called."""

PAGE: Final = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title}</title>
<link rel="stylesheet" href="{style}"></head>
<body><main>
<svg viewBox="0 0 16 16" aria-hidden="true"><path d="M4 7.5h8v6H4zM5.5 7.5V5a2.5 2.5 0 0 1 5 0v2.5"/></svg>
<h1>{title}</h1>
{body}
</main></body>
</html>
"""

STEPS: Final[Mapping[int, tuple[str, str]]] = {
    401: ("Sign in", "Reload the page, and enter your user name and your password."),
    403: ("Not permitted", "Ask the people who run this service for access, or sign in as another user."),
    405: ("Not possible", "Go back, open the page again, and repeat what you did."),
    503: ("Not ready", "Reload the page in a moment."),
}
"""The heading of a refusal, and what to do, by its status."""
FAILED: Final = "Error", "Reload the page. If that does not help, ask the people who run this service."
"""The heading, and what to do, for every other status."""


class JsonAnswer(JSONResponse):
    """Indented JSON in ASCII."""

    def render(self, content: Any) -> bytes:
        """Return the body of the answer."""
        text = json.dumps(content, ensure_ascii=True, allow_nan=False, indent=2)
        return text.encode() + b"\n"


def document_of(template: str, data: Any) -> dict[str, Any]:
    """Return the JSON document of a page: its data, with its name and the version of the format."""
    return {"v": SHAPE_VERSION, "beta": True, "page": template, "data": data}


def wants_json(request: Request) -> bool:
    """Return whether the ``Accept`` header names JSON, and does not name HTML before it."""
    accepted = ",".join(request.headers.getlist("accept")).lower()
    json_at, html_at = accepted.find("application/json"), accepted.find("text/html")
    return json_at >= 0 and (html_at < 0 or json_at < html_at)


def refusal(request: Request, status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response of an error with its reason, as JSON, HTML or text."""
    headers = {**(headers or {}), "vary": "accept"}
    if wants_json(request):
        document = document_of("error", {"status": status, "text": text})
        return JsonAnswer(document, status_code=status, headers=headers)
    if "text/html" in request.headers.get("accept", "").lower():
        title, step = STEPS.get(status, FAILED)
        body = f'<p>{escape(text[:1].upper() + text[1:])}.</p>\n<p class="step">{escape(step)}</p>'
        return public_page(request, title, body, status, headers)
    return PlainTextResponse(f"{text}\n", status, headers)


def public_page(
    request: Request, title: str, body: str, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a page with a heading and HTML.

    The address of its stylesheet is relative, so that it is valid behind a proxy with any prefix.
    """
    root = str(request.scope.get("root_path", "")).rstrip("/")
    path = str(request.scope["path"]).removeprefix(root)
    # One "../" for each folder of the path leads to the root of the dashboard.
    style = "../" * (path.count("/") - 1) + PUBLIC_STYLE.removeprefix("/")
    return HTMLResponse(PAGE.format(title=escape(title), style=style, body=body), status, headers)
