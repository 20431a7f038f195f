"""Send requests to an ASGI application, as a server does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

App = Callable[..., Awaitable[None]]
Message = MutableMapping[str, Any]

FORM = "application/x-www-form-urlencoded"
JSON = {"accept": "application/json"}


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def did(self) -> str | None:
        """The code of the message that the next page shows; None for none."""
        name, _, value = self.headers.get("set-cookie", "").partition(";")[0].partition("=")
        is_message = name.removeprefix("__Host-").startswith("pg_scheduler-")
        return value.partition("~")[0].partition("!")[0] if is_message else None

    @property
    def data(self) -> Any:
        document = json.loads(self.body)
        assert document["beta"] is True
        return document["data"]


def scope_of(
    url: str, method: str, headers: Mapping[str, str], root_path: str, scheme: str = "http"
) -> Message:
    path, _, query = url.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": scheme,
        "path": path,
        "raw_path": path.encode(),
        "root_path": root_path,
        "query_string": query.encode(),
        "headers": [(b"host", b"test"), *((k.lower().encode(), v.encode()) for k, v in headers.items())],
        "client": ("127.0.0.1", 1),
        "server": ("test", 80),
        "state": {},
    }


async def request(
    app: App,
    url: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    root_path: str = "",
    scheme: str = "http",
    body: bytes = b"",
) -> Answer:
    """Return the answer to a request."""
    messages: list[Message] = []
    is_read = False

    async def receive() -> Message:
        nonlocal is_read
        if is_read:
            await asyncio.Event().wait()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        messages.append(message)

    await app(scope_of(url, method, headers or {}, root_path, scheme), receive, send)
    start = messages[0]
    found = [(name.decode(), value.decode()) for name, value in start["headers"]]
    assert len({name for name, _ in found}) == len(found), found
    return Answer(start["status"], dict(found), b"".join(each.get("body", b"") for each in messages))


async def send(
    app: App,
    url: str,
    fields: Mapping[str, object] | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    root_path: str = "",
    scheme: str = "http",
) -> Answer:
    """Return the answer to a form that a page of the dashboard sends."""
    found = {"sec-fetch-site": "same-origin", "content-type": FORM, **(headers or {})}
    return await request(
        app,
        url,
        method="POST",
        headers=found,
        root_path=root_path,
        scheme=scheme,
        body=urlencode(fields or {}, doseq=True).encode(),
    )


async def follow(app: App, answer: Answer) -> Answer:
    """Return the page to which an action sends the browser, with its message."""
    cookie = answer.headers.get("set-cookie", "").partition(";")[0]
    return await request(app, answer.headers["location"], headers={"cookie": cookie} if cookie else {})


@asynccontextmanager
async def stream(
    app: App, url: str, headers: Mapping[str, str] | None = None
) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """Open a stream; yield a function that returns its next chunk, or the empty text at its end."""
    chunks: asyncio.Queue[Message] = asyncio.Queue()

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def run() -> None:
        await app(scope_of(url, "GET", headers or {}, ""), receive, chunks.put)
        await chunks.put({})

    task = asyncio.create_task(run())
    start = await chunks.get()
    assert start["status"] == 200, start

    async def read() -> str:
        return str((await chunks.get()).get("body", b"").decode())

    try:
        yield read
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Page(HTMLParser):
    """The elements of a page, which must be well-formed."""

    VOID = frozenset({"meta", "link", "input", "br", "hr", "img"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), attrs
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag, (tag, self.open)

    def handle_data(self, data: str) -> None:
        self.text += data

    def links(self) -> list[str]:
        return [attrs["href"] or "" for tag, attrs in self.elements if tag == "a" and "href" in attrs]

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for each, attrs in self.elements if each == tag]
