"""Answers without a page, as a text or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

SHAPE_VERSION: Final = 1


class JsonAnswer(JSONResponse):
    """Indented JSON in ASCII."""

    def render(self, content: Any) -> bytes:
        """Return the body of the answer."""
        text = json.dumps(content, ensure_ascii=True, allow_nan=False, indent=2)
        return text.encode() + b"\n"


def document_of(template: str, data: Any) -> dict[str, Any]:
    """Return the JSON document of a page."""
    return {"v": SHAPE_VERSION, "beta": True, "page": template, "data": data}


def wants_json(request: Request) -> bool:
    """Return whether the request accepts JSON, and does not prefer HTML."""
    accepted = ",".join(request.headers.getlist("accept")).lower()
    json_at, html_at = accepted.find("application/json"), accepted.find("text/html")
    return json_at >= 0 and (html_at < 0 or json_at < html_at)


def refusal(request: Request, status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer with the reason why there is no page."""
    headers = {**(headers or {}), "vary": "accept"}
    if wants_json(request):
        document = document_of("error", {"status": status, "text": text})
        return JsonAnswer(document, status_code=status, headers=headers)
    return PlainTextResponse(f"{text}\n", status, headers)
