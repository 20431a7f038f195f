"""Applications of web frameworks with another application mounted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from fastapi import FastAPI
from litestar import Litestar, asgi
from quart import Quart
from starlette.applications import Starlette

from tests.dashboard.client import App
from tests.support.transactions import configure_django

__all__ = ["HOSTS"]

Scope = MutableMapping[str, Any]


def starlette(path: str, app: App) -> App:
    host = Starlette()
    host.mount(path, app)
    return host


def fastapi(path: str, app: App) -> App:
    host = FastAPI(openapi_url=None)
    host.mount(path, app)
    return host


def litestar(path: str, app: App) -> App:
    async def handler(scope: Any, receive: Any, send: Any) -> None:
        # Litestar removes its path without naming it in root_path, and adds a slash to the rest.
        whole = {**scope, "root_path": path.rstrip("/"), "path": scope["raw_path"].decode()}
        await app(whole, receive, send)

    return Litestar([asgi(path, is_mount=True, copy_scope=True)(handler)], openapi_config=None)


def quart(path: str, app: App) -> App:
    return dispatch(path, app, Quart(__name__))


def django(path: str, app: App) -> App:
    from django.conf import settings
    from django.core.handlers.asgi import ASGIHandler

    configure_django()
    settings.ROOT_URLCONF, settings.ALLOWED_HOSTS = __name__, ["*"]
    return dispatch(path, app, ASGIHandler())


urlpatterns: Final[list[Any]] = []
"""Of Django, whose own addresses are none."""


def dispatch(path: str, app: App, host: Callable[..., Awaitable[None]]) -> App:
    """Pass requests below a path on to an application, as middleware of ASGI servers does."""
    root = path.rstrip("/")

    async def dispatched(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and (scope["path"] == root or scope["path"].startswith(f"{root}/")):
            await app({**scope, "root_path": scope.get("root_path", "") + root}, receive, send)
        else:
            await host(scope, receive, send)

    return dispatched


HOSTS: Final = {
    "starlette": starlette,
    "fastapi": fastapi,
    "litestar": litestar,
    "quart": quart,
    "django": django,
}
