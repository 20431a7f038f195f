"""Compressed answers: for own requests only, and with the same content."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from tests.dashboard.client import App, request, stream
from tests.support.cases import each_case
from tests.support.patience import PATIENCE

GZIP = {"accept-encoding": "gzip"}


@pytest.mark.parametrize("site", ["same-origin", "none"])
async def test_pages_are_compressed_for_own_requests(site: str, app: App) -> None:
    plain = await request(app, "/about")
    answer = await request(app, "/about", headers={**GZIP, "sec-fetch-site": site})
    assert answer.headers["content-encoding"] == "gzip"
    assert "accept-encoding" in answer.headers["vary"].lower()
    html = gzip.decompress(answer.body).decode()
    assert html.partition('id="read"')[0] == plain.text.partition('id="read"')[0]
    assert len(answer.body) < len(plain.body) / 2


@each_case("site", ["cross-site", "same-site", "", None])
@each_case("path", ["/about", "/jobs?q=guess", "/nothing"])
async def test_pages_are_not_compressed_for_other_sites(site: str | None, path: str, app: App) -> None:
    headers = GZIP if site is None else {**GZIP, "sec-fetch-site": site}
    answer = await request(app, path, headers=headers)
    assert "content-encoding" not in answer.headers
    assert answer.text.startswith("<!doctype html>")


async def test_static_files_are_compressed_for_all(app: App) -> None:
    plain = await request(app, "/static/dashboard.css")
    answer = await request(app, "/static/dashboard.css", headers={**GZIP, "sec-fetch-site": "cross-site"})
    assert gzip.decompress(answer.body) == plain.body


async def test_streams_and_exports_are_not_compressed(app: App) -> None:
    headers = {**GZIP, "sec-fetch-site": "same-origin"}
    async with asyncio.timeout(PATIENCE), stream(app, "/live?page=/workers", headers) as read:
        assert await read() == "retry: 1000\n\n"
    for path in ("/export?format=csv", "/export?format=jsonl", "/jobs"):
        accept = {"accept": "application/json"} if path == "/jobs" else {}
        assert "content-encoding" not in (await request(app, path, headers={**headers, **accept})).headers
