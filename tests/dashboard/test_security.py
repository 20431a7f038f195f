"""Who may read which address by which method, and the headers of every answer."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import Callable
from typing import Any, get_args
from urllib.parse import quote, urljoin

import pytest
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pg_scheduler import Scheduler, Unique
from pg_scheduler.dashboard import (
    Access,
    allow_anyone,
    basic_auth,
    bearer,
    dashboard,
    trusted_header,
)
from pg_scheduler.dashboard.access import Role
from pg_scheduler.dashboard.answers import PUBLIC_STYLE
from pg_scheduler.dashboard.headers import POLICY
from pg_scheduler.dashboard.rendering import static_version
from tests.dashboard.client import JSON, Answer, App, Page, request, stream
from tests.dashboard.conftest import read_all
from tests.dashboard.hosts import HOSTS
from tests.support import inside
from tests.support.inside import dashboard_files, dashboard_pages, dashboard_streams
from tests.support.patience import PATIENCE
from tests.support.stories import NIGHTLY
from tests.support.world import World

STATIC = [f"/static/{part}{name}" for part in ("", f"{static_version()}/") for name in dashboard_files()]
STREAMED = {
    "/live": 404,
    "/live?page=/workers": 200,
    "/export": 200,
    "/complete": 200,
    "/metrics": 200,
    "/value": 400,
}
"""Addresses that are no pages, with the status of their answers."""
ROUTES = [*dashboard_pages(), *STATIC, *STREAMED]
MISSING = ["/static/", "/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/nothing", "//"]
MISSING += ["/static/../dashboard.css", "/static/x/dashboard.css", f"/static/{static_version()}/app.py"]
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get"]
REQUIRED = {"/chart", "/error", "/job", "/signal-form", "/schedule", "/schedule-pause"}
REQUIRED |= {"/worker", "/limit", "/task", "/run"}
"""Pages that need a parameter."""
ERRORS = "/errors?since=all"
DOCUMENTATION = "https://pg-scheduler.github.io/pg-scheduler/"
COOKIE = re.compile(
    r"|pg_scheduler-[0-9a-f]{8}=[a-z_.0-9]+(~[\w%.-]+)?; HttpOnly; Max-Age=10; Path=/; SameSite=strict",
    re.ASCII,
)
"""No cookie, or that of the message about an action."""


def check_headers(answer: Answer, *, is_data: bool = True) -> None:
    headers = answer.headers
    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["x-frame-options"] == "DENY"
    assert COOKIE.fullmatch(headers.get("set-cookie", "")), headers
    assert "no-store" in headers["cache-control"] if is_data else "private" in headers["cache-control"]


def check_policy(html: str) -> None:
    """Check that a page needs nothing that its policy forbids."""
    page = Page(html)
    for tag, attrs in page.elements:
        assert tag not in {"style", "iframe", "object", "embed", "base"}
        assert not any(name.startswith("on") or name == "style" for name in attrs), attrs
        if tag == "script":
            version, name = (attrs["src"] or "").rsplit("/", 2)[1:]
            assert version == static_version()
            assert name in dashboard_files()
        for name in ("src", "href", "action"):
            address = attrs.get(name) or ""
            assert "://" not in address or (tag == "a" and address.startswith(DOCUMENTATION)), attrs
        if tag == "form":
            assert attrs["method"] in {"get", "post"}
    assert all(attrs.get("rel") != "next" or attrs["href"] for attrs in page.all("a"))


@pytest.mark.parametrize("role", [*get_args(Role), None])
async def test_each_role_reads_each_route_by_get_only(
    role: Role | None, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, live_seconds=0.0)
    app = build(authorize=lambda _: None if role is None else Access("ada", role))
    assert {route.partition("?")[0] for route in STREAMED} == set(dashboard_streams())
    for route in [*ROUTES, *MISSING]:
        for method in METHODS:
            answer = await request(app, route, method=method)
            if method not in {"GET", "HEAD"}:
                expected = 405
                assert answer.headers["allow"] == "GET, HEAD"
            elif role is None:
                expected = 200 if route == PUBLIC_STYLE else 403
            elif route in MISSING:
                expected = 200 if route == "//" else 404
            elif route == "/job-form" and role != "admin":
                expected = 403
            else:
                expected = STREAMED.get(route, 400 if route in REQUIRED else 200)
            assert answer.status == expected, (route, method, answer.text)
            check_headers(answer, is_data=route not in STATIC or expected != 200)
            if method == "HEAD":
                assert answer.body == b""
            elif answer.headers["content-type"].startswith("text/html"):
                check_policy(answer.text)


@pytest.mark.parametrize("url", ["/", "/job?id=secret-job", "/actions/jobs/cancel", "/nothing"])
async def test_refusal_is_a_page_that_says_what_to_do_and_nothing_else(
    url: str, scheduler: Scheduler, build: Callable[..., App]
) -> None:
    async def work() -> None: ...

    scheduler.register(work, name="secret.task")
    await scheduler.enqueue("secret.task", job_id="secret-job")
    app = build(authorize=lambda _: None, title="Secret title", environment="secret")
    is_action = url.startswith("/actions")
    own = {"sec-fetch-site": "same-origin", "accept": "text/html"}
    answer = await request(
        app, f"/base{url}", method="POST" if is_action else "GET", headers=own, root_path="/base"
    )
    assert (answer.status, answer.headers["content-type"]) == (403, "text/html; charset=utf-8")
    check_headers(answer)
    page = Page(answer.text)
    assert "Not permitted" in page.text
    assert "Ask the people who run this service" in page.text
    assert "secret" not in answer.text.lower()
    assert static_version() not in answer.text
    (style,) = [str(attrs["href"]) for attrs in page.all("link")]
    assert urljoin(f"https://host/base{url}", style) == f"https://host/base{PUBLIC_STYLE}"
    assert (await request(app, f"/base{PUBLIC_STYLE}", root_path="/base")).status == 200
    assert (await request(app, "/base/static/dashboard.css", root_path="/base")).status == 403
    text = await request(app, "/")
    assert (text.text, text.headers["content-type"]) == (
        "you may not read this dashboard\n",
        "text/plain; charset=utf-8",
    )


@pytest.mark.parametrize("role", get_args(Role))
async def test_metrics_are_for_no_role_that_sees_some_names_only(role: Role, build: Any) -> None:
    app = build(authorize=lambda _: Access("bob", role, names=("billing.*",), sees_arguments=False))
    for route, status in {**STREAMED, "/metrics": 403}.items():
        for method in ("HEAD", "POST"):
            answer = await request(app, route, method=method)
            assert answer.status == (405 if method == "POST" else status), (route, method)
            check_headers(answer)


async def test_job_that_is_cancelled_because_of_a_hidden_one_does_not_show_it(
    scheduler: Scheduler, build: Callable[..., App], app: App
) -> None:
    async def work() -> None: ...

    for name in ("payroll.bonus", "billing.invoice"):
        scheduler.register(work, name=name)
    parent = await scheduler.enqueue("payroll.bonus", job_id="bonus-of-eve", delay=60)
    child = await scheduler.enqueue("billing.invoice", job_id="child", after=[parent])
    await scheduler.cancel_job(parent)
    late = await scheduler.enqueue("billing.invoice", job_id="late", after=[parent])
    restricted = build(authorize=lambda _: Access("bob", "admin", names=("billing.*",)))
    routes = ["/", "/jobs", ERRORS, "/export", "/export?format=csv", "/runs", "/live?page=/jobs"]
    routes += ["/complete?term=name:", "/complete?term=arg."]
    for url in [*routes, *(f"/job?id={each}" for each in (child, late)), f"/live?page=/job&id={child}"]:
        for headers in ({}, JSON):
            if url.startswith("/live"):
                async with asyncio.timeout(PATIENCE), stream(restricted, url) as read:
                    text = await read() + await read()
            else:
                text = (await request(restricted, url, headers=headers)).text
            assert "bonus" not in text, url
            assert "ended as" not in text, url
    for q in ("error:*bonus*", "error:~ended", "-error:*bonus*"):
        found = (await request(restricted, f"/jobs?q={quote(q)}", headers=JSON)).data["items"]
        assert len(found) == (2 if q.startswith("-") else 0), q
    assert (await request(restricted, ERRORS, headers=JSON)).data["items"] == [], "they have not failed"
    for each in (child, late):
        shown = await request(app, f"/job?id={each}", headers=JSON)
        assert "bonus-of-eve" in shown.data["explanation"]["reasons"][0]["text"]
        job = await scheduler.get_job(each)
        assert job is not None
        assert "bonus-of-eve" in (job.errors[-1].message or "")
    await scheduler.retry_job(child)
    await scheduler.cancel_job(child)
    reasons = (await request(app, f"/job?id={child}", headers=JSON)).data["explanation"]["reasons"]
    assert "bonus-of-eve" not in reasons[0]["text"]


@pytest.mark.parametrize(
    ("arguments", "is_shown"),
    [
        ({}, True),
        ({"authorize": lambda _: Access("bob", sees_arguments=False)}, False),
        ({"redact": ["number"]}, False),
        ({"redact": ["other"]}, True),
    ],
)
async def test_unique_key_is_shown_to_those_who_see_all_arguments(
    scheduler: Scheduler, build: Callable[..., App], arguments: dict[str, Any], is_shown: bool
) -> None:
    async def charge(number: int) -> None: ...

    scheduler.register(charge, name="charge")
    job_id = await scheduler.enqueue("charge", kwargs={"number": 4711}, delay=60, unique=Unique())
    job = await scheduler.get_job(job_id)
    assert job is not None
    assert job.unique_key is not None
    for headers in ({}, JSON):
        answer = await request(build(**arguments), f"/job?id={job_id}", headers=headers)
        assert (job.unique_key in answer.text) is is_shown
        assert is_shown or "[hidden]" in answer.text


async def test_nothing_is_read_before_the_decision(scheduler: Scheduler) -> None:
    def source() -> Scheduler:
        raise AssertionError

    app = dashboard(source, authorize=lambda _: None)
    for route in [*ROUTES, *MISSING]:
        expected = 200 if route == PUBLIC_STYLE else 403
        assert (await request(app, route)).status == expected


async def test_response_of_the_host_is_sent_as_it_is(build: Callable[..., App]) -> None:
    async def login(request: Request) -> Response:
        return RedirectResponse(f"/login?next={request.url.path}", headers={"cache-control": "private"})

    answer = await request(build(authorize=login), "/jobs")
    assert (answer.status, answer.headers["location"]) == (307, "/login?next=/jobs")
    assert answer.headers["cache-control"] == "private"
    assert "content-security-policy" not in answer.headers
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("decision", [True, "ada", {"actor": "ada"}, 1])
async def test_wrong_decision_answers_500_without_details(
    decision: Any, build: Callable[..., App], caplog: pytest.LogCaptureFixture
) -> None:
    answer = await request(build(authorize=lambda _: decision), "/jobs")
    assert answer.status == 500
    check_headers(answer)
    assert "must return an Access, a Response or None" in caplog.text
    assert "must return" not in answer.text


@pytest.mark.parametrize(
    ("authorize", "status"),
    [(basic_auth("ada", "secret"), 401), (bearer("secret"), 401), (lambda _: None, 403), (lambda _: 1, 500)],
)
async def test_refusals_are_json_for_those_who_accept_json(
    authorize: Any, status: int, build: Callable[..., App]
) -> None:
    app = build(authorize=authorize)
    answer = await request(app, "/jobs", headers=JSON)
    assert (answer.status, answer.data["status"]) == (status, status)
    assert answer.headers["content-type"] == "application/json"
    assert ("www-authenticate" in answer.headers) == (status == 401)
    text = (await request(app, "/jobs")).text
    assert text == f"{answer.data['text']}\n"


@pytest.mark.parametrize("decision", [None, False, "", 0])
async def test_empty_decision_answers_403(decision: Any, build: Callable[..., App]) -> None:
    assert (await request(build(authorize=lambda _: decision), "/jobs")).status == 403


async def test_error_of_authorize_answers_500_without_details(
    build: Callable[..., App], caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_request: Request) -> Access:
        raise LookupError("hunter2-secret")

    answer = await request(build(authorize=broken), "/jobs")
    assert answer.status == 500
    assert "hunter2" not in answer.text
    assert "hunter2" in caplog.text
    check_headers(answer)


def test_authorize_has_no_default_and_is_checked(scheduler: Scheduler) -> None:
    with pytest.raises(TypeError, match="authorize"):
        dashboard(scheduler)  # type: ignore[call-arg]
    for wrong in (None, "admin", basic_auth, bearer, trusted_header):
        with pytest.raises(TypeError, match="authorize must be"):
            dashboard(scheduler, authorize=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"refresh": 0}, ValueError),
        ({"refresh": float("nan")}, ValueError),
        ({"refresh": "2"}, ValueError),
        ({"redact": "password"}, TypeError),
        ({"redact": [1]}, TypeError),
    ],
)
def test_wrong_arguments_are_rejected(
    arguments: dict[str, Any], error: type[Exception], build: Callable[..., App]
) -> None:
    with pytest.raises(error, match="must be"):
        build(**arguments)


def test_source_is_checked() -> None:
    with pytest.raises(TypeError, match="source must be"):
        dashboard("postgresql://user:secret@host", authorize=read_all)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"actor": ""}, ValueError),
        ({"actor": 7}, TypeError),
        ({"actor": "ada", "role": "root"}, ValueError),
        ({"actor": "ada", "names": "billing.*"}, TypeError),
        ({"actor": "ada", "names": [7]}, TypeError),
        ({"actor": "ada", "names": ["\0"]}, TypeError),
        ({"actor": "ada", "sees_arguments": "no"}, TypeError),
    ],
)
def test_access_checks_its_values(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Access(**arguments)


@pytest.mark.parametrize(
    ("names", "name", "expected"),
    [
        (None, "anything", True),
        ((), "anything", False),
        ((), "", False),
        (("billing.*",), "billing.invoice", True),
        (("billing.*",), "billingXinvoice", False),
        (("billing.*",), "my.billing.invoice", False),
        (("*.invoice", "mail"), "billing.invoice", True),
        (("*.invoice", "mail"), "mail", True),
        (("*.invoice", "mail"), "mails", False),
        (("a%",), "ab", False),
        (("a_",), "ab", False),
        (("[ab]*",), "ab", False),
        (("billing.*",), "billing.\n", True),
    ],
)
async def test_names_match_in_python_as_in_the_database(
    names: tuple[str, ...] | None, name: str, expected: bool, world: World, build: Any
) -> None:
    assert Access("ada", names=names).sees_name(name) is expected
    await world.job("job", name)
    found = await request(build(authorize=lambda _: Access("ada", names=names)), "/jobs", headers=JSON)
    assert bool(found.data["items"]) is expected


def basic(user: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.parametrize(
    ("authorize", "headers", "status"),
    [
        (basic_auth("ada", "a:b"), basic("ada", "a:b"), 200),
        (basic_auth("ada", "ä"), basic("ada", "ä"), 200),
        (basic_auth("ada", "secret"), {}, 401),
        (basic_auth("ada", "secret"), basic("ada", "secreT"), 401),
        (basic_auth("ada", "secret"), basic("eve", "secret"), 401),
        (basic_auth("ada", "secret"), {"authorization": "Basic !"}, 401),
        (basic_auth("ada", "secret"), {"authorization": "Basic"}, 401),
        (basic_auth("ada", "secret"), {"authorization": "Bearer secret"}, 401),
        (bearer("token"), {"authorization": "Bearer token"}, 200),
        (bearer("token"), {"authorization": "bearer token"}, 200),
        (bearer("token"), {"authorization": "Bearer tokens"}, 401),
        (bearer("token"), {"authorization": "Basic token"}, 401),
        (bearer("token"), {}, 401),
        (trusted_header("X-Auth-User"), {"x-auth-user": "ada"}, 200),
        (trusted_header("X-Auth-User"), {"x-auth-user": " "}, 403),
        (trusted_header("X-Auth-User"), {}, 403),
    ],
)
async def test_ready_made_authorization(
    authorize: Any, headers: dict[str, str], status: int, build: Callable[..., App]
) -> None:
    answer = await request(build(authorize=authorize), "/jobs", headers=headers)
    assert answer.status == status
    assert ("www-authenticate" in answer.headers) is (status == 401)
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "create",
    [
        lambda: basic_auth("ada", ""),
        lambda: basic_auth("", "x"),
        lambda: basic_auth("a:b", "x"),
        lambda: bearer(""),
        lambda: bearer(None),  # type: ignore[arg-type]
        lambda: trusted_header(""),
    ],
)
def test_ready_made_authorization_rejects_empty_secrets(create: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="must"):
        create()


async def test_allow_anyone_logs_a_warning(
    build: Callable[..., App], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pg_scheduler"):
        app = build(authorize=allow_anyone)
    assert "lets anyone read all jobs" in caplog.text
    assert (await request(app, "/jobs")).status == 200


# -- where it is mounted -------------------------------------------------------------------------------


@NIGHTLY
@pytest.mark.slow
@pytest.mark.parametrize("framework", HOSTS)
@pytest.mark.parametrize("path", ["/", "/jobs", "/a/b/"])
async def test_links_lead_to_pages_wherever_it_is_mounted(
    framework: str, path: str, app: App, world: World
) -> None:
    await world.job("a/b?c#d&e", "board")
    host, base = HOSTS[framework](path, app), path.rstrip("/")
    queue, seen, kinds = [f"{base}/", f"{base}/jobs?q=board"], set[str](), set[str]()
    while queue:
        url = queue.pop()
        if url in seen:
            continue
        seen.add(url)
        answer = await request(host, url)
        assert answer.status == 200, url
        check_headers(answer, is_data="/static/" not in url)
        if answer.headers["content-type"].startswith("text/html"):
            page = Page(answer.text)
            targets = [*page.links(), *(each["src"] or "" for each in page.all("script"))]
            targets += [each["href"] or "" for each in page.all("link")]
            local = {each for each in targets if each and not each.startswith(("#", "data:", DOCUMENTATION))}
            assert all(each.startswith(f"{base}/") for each in local), local
            for each in local:
                kind = re.sub(r"(%3A|sort=)[^&]*", r"\1", each)  # one search or order of a kind is enough
                if framework != "starlette":  # the pages are the same: one link to each is enough
                    kind = re.sub(r"[?#].*", "", each)
                if kind not in kinds and not re.search(r"(worker|schedule|calendar)\?", each):
                    kinds.add(kind)
                    queue.append(each.partition("#")[0])
    assert {
        f"{base}{each}"
        for each in dashboard_pages()
        if each not in REQUIRED | {"/", "/schedule-form", "/job-form"}
    } <= {url.partition("?")[0] for url in seen}
    assert any(url.startswith(f"{base}/job?id=a%2Fb%3Fc%23d%26e") for url in seen), seen


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("/proxy", "/proxy/mount/jobs"),
        ("/a/b/", "/a/b/mount/jobs"),
        ("//evil.example", "/mount/jobs"),
        ("https://evil.example", "/mount/jobs"),
        ('/"><script>', "/mount/jobs"),
        ("/a/../b c", "/mount/jobs"),
    ],
)
async def test_forwarded_prefix_is_used_if_it_is_trusted_and_a_path(
    prefix: str, expected: str, build: Callable[..., App]
) -> None:
    headers = {"x-forwarded-prefix": prefix}
    for trusts, link in ((True, expected), (False, "/mount/jobs")):
        app = build(trust_forwarded=trusts)
        answer = await request(app, "/mount/jobs", headers=headers, root_path="/mount")
        assert link in Page(answer.text).links()


async def test_scheduler_may_be_made_after_the_application(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    found: Scheduler | None = None
    app = dashboard(lambda: found, authorize=read_all)
    assert (await request(app, "/jobs")).status == 503
    found = scheduler
    assert (await request(app, "/jobs")).status == 200
    wrong = dashboard(lambda: "scheduler", authorize=read_all)  # type: ignore[arg-type]
    assert (await request(wrong, "/jobs")).status == 500
    assert "source must return a Scheduler" in caplog.text


async def test_lifespan_and_websockets_are_answered(app: App) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    await app({"type": "lifespan"}, receive, send)
    await app({"type": "websocket", "path": "/", "headers": []}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]
