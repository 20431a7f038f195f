"""Who may send which action, from where, and in which form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args
from urllib.parse import quote

import asyncpg
import pytest

from pg_scheduler.dashboard import Access
from pg_scheduler.dashboard.access import Right, Role
from pg_scheduler.dashboard.actions import ACTIONS
from pg_scheduler.dashboard.messages import code_of, message_of
from pg_scheduler.dashboard.pages.schedule_form import DEFAULTS
from tests.dashboard.client import FORM, JSON, App, Page, request, send
from tests.dashboard.test_hostile import check
from tests.dashboard.test_security import METHODS, check_headers
from tests.support.cases import each_case
from tests.support.hostile_texts import HOSTILE, LONG
from tests.support.world import DAY, World

OPERATOR = {
    "cancel",
    "retry",
    "move",
    "signal",
    "task_pause",
    "schedule_pause",
    "schedule_trigger",
    "backfill",
    "drain",
    "mute",
    "look",
}
OWN = {"sec-fetch-site": "same-origin", "content-type": FORM}
CANCEL = "/actions/jobs/cancel?id=job"


async def insert(world: World, job_id: str = "job", name: str = "board.mail") -> None:
    await world.job(job_id, name, due=DAY)


async def status(pool: asyncpg.Pool, job_id: str = "job") -> str | None:
    found: str | None = await pool.fetchval("SELECT status FROM scheduled_jobs WHERE job_id = $1", job_id)
    return found


async def records(pool: asyncpg.Pool) -> list[tuple[str, str, str, str | None]]:
    rows = await pool.fetch("SELECT actor, via, action, subject FROM scheduler_audit ORDER BY id")
    return [tuple(row) for row in rows]


def as_role(build: Callable[..., App], role: str, **arguments: Any) -> App:
    return build(authorize=lambda _: Access("ada", role, **arguments))  # type: ignore[arg-type]


@pytest.fixture
def admin(build: Callable[..., App]) -> App:
    return as_role(build, "admin")


# -- rights --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [*get_args(Role), None])
async def test_each_action_needs_its_right_and_post(
    role: Role | None, build: Any, pool: asyncpg.Pool
) -> None:
    app = build(authorize=lambda _: None if role is None else Access("ada", role))
    for path, action in ACTIONS.items():
        for method in METHODS:
            answer = await request(app, f"{path}?id=x", method=method, headers=OWN)
            may = role == "admin" or (role == "operator" and bool(action.rights & OPERATOR))
            if method != "POST":
                assert (answer.status, answer.headers["allow"]) == (405, "POST")
            elif may:
                assert answer.status in {303, 400, 404}, (path, answer.text)
            else:
                assert answer.status == 403, (path, answer.text)
            check_headers(answer)
    assert await records(pool) == []


@pytest.mark.parametrize("right", get_args(Right))
async def test_single_right_permits_its_actions_only(right: Right, build: Any) -> None:
    app = as_role(build, "viewer", can={right})
    for path, action in ACTIONS.items():
        answer = await request(app, f"{path}?id=x", method="POST", headers=OWN)
        assert (answer.status == 403) is (right not in action.rights), path


async def test_read_only_dashboard_accepts_no_action_and_shows_no_button(
    build: Any, pool: asyncpg.Pool, world: World
) -> None:
    await insert(world)
    app = build(authorize=lambda _: Access("ada", "admin"), read_only=True)
    for path in ACTIONS:
        assert (await send(app, f"{path}?id=job")).status == 405
    for url in ("/jobs", "/job?id=job"):
        for viewer in (app, as_role(build, "viewer")):
            html = (await request(viewer, url)).text
            assert [each["action"] for each in Page(html).all("form") if each["method"] == "post"] == [
                "/density"
            ]
            assert "/actions/" not in html
    assert await status(pool) == "pending"


def test_access_checks_its_rights() -> None:
    assert Access("ada").rights == frozenset()
    assert Access("ada", "operator").rights == OPERATOR
    assert Access("ada", "admin").rights == set(get_args(Right))
    assert Access("ada", "admin", can={"retry"}).rights == {"retry"}
    with pytest.raises(ValueError, match="unknown: 'fly'"):
        Access("ada", can={"fly"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not a str"):
        Access("ada", can="retry")  # type: ignore[arg-type]


# -- requests of other sites ---------------------------------------------------------------------------

TRUSTED = "https://Admin.example.org"


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"sec-fetch-site": ""}, False),
        ({"sec-fetch-site": "same-origin", "origin": "https://evil.example"}, True),
        ({"sec-fetch-site": "cross-site", "origin": "http://test"}, False),
        ({"sec-fetch-site": "cross-site", "origin": "https://admin.example.org"}, True),
        ({"sec-fetch-site": "cross-site", "authorization": "Bearer x"}, False),
        ({"origin": "http://test"}, True),
        ({"origin": "https://TEST"}, True),
        ({"origin": "http://test:80"}, False),
        ({"origin": "http://test.evil.example"}, False),
        ({"origin": "http://evil.example/test"}, False),
        ({"origin": "http://evil.example#//test"}, False),
        ({"origin": "ftp://test"}, False),
        ({"origin": "test"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": "https://admin.example.org"}, True),
        ({"origin": "http://admin.example.org"}, False),
        ({"origin": "https://evil.example", "authorization": "Bearer x"}, False),
        ({"authorization": "Bearer x"}, True),
        ({"referer": "http://test/jobs"}, False),
        ({"cookie": "session=1"}, False),
        ({}, False),
    ],
)
async def test_action_is_accepted_from_own_pages_only(
    headers: dict[str, str], passes: bool, build: Any, pool: asyncpg.Pool, world: World
) -> None:
    await insert(world)
    app = build(authorize=lambda _: Access("ada", "admin"), trusted_origins=(TRUSTED,))
    answer = await request(app, CANCEL, method="POST", headers={**headers, "content-type": FORM})
    assert answer.status == (303 if passes else 403), answer.text
    assert await status(pool) == ("cancelled" if passes else "pending")
    check_headers(answer)


async def test_other_sites_are_refused_before_the_decision(build: Callable[..., App]) -> None:
    def decide(_request: object) -> Access:
        raise AssertionError

    answer = await request(build(authorize=decide), CANCEL, method="POST", headers={"content-type": FORM})
    assert answer.status == 403


@pytest.mark.parametrize(
    "origin", ["example.org", "https://example.org/", "ftp://a", "https://a b", "null", 7]
)
def test_trusted_origins_are_checked(origin: Any, build: Callable[..., App]) -> None:
    with pytest.raises(ValueError, match="each of trusted_origins must be"):
        build(trusted_origins=(origin,))
    with pytest.raises(TypeError, match="not a str"):
        build(trusted_origins="https://example.org")


# -- forms ---------------------------------------------------------------------------------------------


@each_case(
    ("body", "media_type", "code"),
    [
        (b"row=a", "application/json", 415),
        (b"row=a", "multipart/form-data; boundary=x", 415),
        (b"row=" + b"x" * 600_000, FORM, 413),
        (b"&".join([b"a=1"] * 700), FORM, 400),
        (b"row=%ff", FORM, 400),
        (b"row=\xff", FORM, 400),
        (b"row=%00", FORM, 400),
        (b"row=%2500", FORM, 400),
        (b"row=%25ff", FORM, 400),
        (b"&".join(b"row=%d" % n for n in range(501)), FORM, 400),
        (b"row=a", f"{FORM}; charset=utf-8", 303),
    ],
)
async def test_form_is_read_within_bounds(body: bytes, media_type: str, code: int, admin: App) -> None:
    headers = {**OWN, "content-type": media_type}
    answer = await request(admin, "/actions/jobs/cancel", method="POST", headers=headers, body=body)
    assert answer.status == code, answer.text
    refused = await request(
        admin, "/actions/jobs/cancel", method="POST", headers={**headers, **JSON}, body=body
    )
    assert refused.status == code
    if code != 303:
        assert refused.data["status"] == code


@pytest.mark.slow
@pytest.mark.parametrize("text", [*HOSTILE, LONG, "a\x00b"], ids=range(len(HOSTILE) + 2))
async def test_hostile_text_in_each_field_changes_nothing_and_is_shown_as_text(
    text: str, admin: App, pool: asyncpg.Pool, world: World
) -> None:
    await insert(world)
    names = [
        *("row", "to", "until", "note", "q", "found", "typed", "confirm", "rate"),
        *("since", "group", "name", "value", *DEFAULTS),
    ]
    for path in ACTIONS:
        for url in (path, f"{path}?id=job-{len(text)}", f"{path}?q={quote(text)}&group={quote(text)}"):
            answer = await send(admin, url, dict.fromkeys(names, text))
            is_preview = path == "/actions/schedules/preview"  # a question, which is answered
            assert answer.status in {303, 400, 404, 409, 200 if is_preview else 400}, (url, answer.text)
            check_headers(answer)
            assert "\n" not in answer.headers.get("location", "")
            if answer.headers.get("content-type", "").startswith("text/html"):
                check(answer.text)
    assert await status(pool) == "pending"
    assert "script" not in "".join(str(each) for each in await records(pool))


@pytest.mark.parametrize(
    "code",
    ["", "nonsense.1", "cancel", "cancel.1", "cancel.1.2.3.4.5", "cancel.x.0.0", "<b>", "cancel.1.0.0\n"],
)
async def test_unknown_message_is_not_shown(code: str, admin: App, world: World) -> None:
    assert message_of(code) is None
    await insert(world)
    cookie = str((await send(admin, CANCEL)).headers["set-cookie"]).partition("=")[0]
    answer = await request(admin, "/jobs", headers={"cookie": f"{cookie}={quote(code)}"})
    assert 'id="message"' not in answer.text


def test_message_states_what_was_done() -> None:
    assert message_of(code_of("cancel", 1, 0, 0)) == "1 job cancelled"
    assert message_of(code_of("move", 1200, 0, 2)) == "1,200 jobs moved, 2 not found"
    assert (
        message_of(code_of("cancel", 0, 1, 0))
        == "0 jobs cancelled, 1 refused (only pending and running jobs can be cancelled)"
    )


async def test_message_is_shown_on_the_next_page(admin: App, world: World) -> None:
    await insert(world)
    answer = await send(admin, CANCEL)
    assert (answer.status, answer.headers["location"], answer.did) == (303, "/job?id=job", "cancel.1.0.0")
    cookie = {"cookie": answer.headers["set-cookie"].partition(";")[0]}
    for url, headers in (("/job?id=job", JSON), ("/static/dashboard.css", {}), ("/live?page=/nothing", {})):
        assert "set-cookie" not in (await request(admin, url, headers=headers | cookie)).headers, url
    page = await request(admin, answer.headers["location"], headers=cookie)
    assert "1 job cancelled" in Page(page.text).text
    assert "Max-Age=0" in page.headers["set-cookie"]
    assert 'id="message"' not in (await request(admin, "/job?id=job&did=cancel.1.0.0")).text


async def test_message_over_https_is_in_a_cookie_of_this_host(admin: App, world: World) -> None:
    await insert(world)
    found = []
    for root, scheme in (("", "https"), ("/mount", "https"), ("/mount", "http")):
        answer = await send(admin, f"{root}{CANCEL}", root_path=root, scheme=scheme)
        name, _, attributes = answer.headers["set-cookie"].partition("=")
        assert name.startswith("__Host-") == ("; Secure" in attributes) == (scheme == "https")
        assert "; Path=/;" in attributes
        found.append(name)
    assert len(set(found)) == len(found), "dashboards of a host have cookies of their own"
