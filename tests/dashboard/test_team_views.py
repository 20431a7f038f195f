"""The views of ``dashboard(views=)``: checked at the call, shown to those who may see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pg_scheduler.dashboard import Access
from tests.dashboard.client import App, Page, request
from tests.support.cases import each_case

VIEWS = {
    "Failed <b>mails</b>": "/jobs?q=status:failed+name:mail.*",
    "Account 113": "/jobs?q=arg.account:113",
    "News": "/jobs?q=tag:news",
    "Who did what": "/audit?since=1d",
    "Billing or mail": "/jobs?q=name:billing.*,mail.send",
    "Payroll": "/schedules?task=payroll.run",
    "All but payroll": "/jobs?q=-name:payroll.*",
    "Old errors": "/errors?sort=first",
}


async def shown(app: App, **options: Any) -> dict[str, str]:
    """Return the addresses of the views by their names, each of which must lead to a page."""
    page = (await request(app, f"{options.get('root_path', '')}/jobs", **options)).text
    part = page.partition('<div id="views"')[2].partition("data-own")[0]
    found = {}
    for item in part.split("<li>")[1:]:
        (url,) = Page(item.partition("</li>")[0]).links()
        found[Page(item.partition("</li>")[0]).text] = url
        assert (await request(app, url, **options)).status == 200, url
    assert ('id="views" hidden' in page) is (not found), "without views, the script shows the menu"
    return found


async def test_views_are_shown_with_their_addresses(build: Callable[..., App]) -> None:
    app = build(views=VIEWS)
    assert await shown(app) == VIEWS
    mounted = {name: f"/mount{url}" for name, url in VIEWS.items()}
    assert await shown(app, root_path="/mount") == mounted
    assert await shown(build()) == {}


@pytest.mark.parametrize(
    ("arguments", "hidden"),
    [
        ({"sees_arguments": False}, {"Account 113", "News"}),
        ({"names": ("billing.*",)}, {"Who did what", "Payroll", "Failed <b>mails</b>"}),
        ({"names": ("mail.send", "payroll.*")}, {"Who did what"}),
        ({"names": ("*",)}, {"Who did what"}),
        ({"names": ()}, {"Who did what", "Payroll", "Failed <b>mails</b>", "Billing or mail"}),
    ],
)
async def test_views_are_shown_to_those_who_may_see_them(
    arguments: dict[str, Any], hidden: set[str], build: Callable[..., App]
) -> None:
    app = build(views=VIEWS, authorize=lambda _: Access("bob", **arguments))
    assert set(VIEWS) - set(await shown(app)) == hidden


async def test_view_of_a_redacted_value_is_not_shown(build: Callable[..., App]) -> None:
    assert "Account 113" not in await shown(build(views=VIEWS, redact=["account"]))


@each_case(
    ("views", "error", "text"),
    [
        (["/jobs"], TypeError, "views must be addresses by name, not list; write {"),
        ("/jobs", TypeError, "not str; write {"),
        ({"": "/jobs"}, ValueError, "each name of views must be a str that is not empty, not ''"),
        ({7: "/jobs"}, ValueError, "not 7"),
        (
            {"x": None},
            ValueError,
            "must be the address of a list of this dashboard, not None; write its path",
        ),
        ({"x": "https://evil.example/jobs"}, ValueError, "not 'https://evil.example/jobs'; write its path"),
        ({"x": "//evil.example/jobs"}, ValueError, "views['x'] must be the address of a list"),
        ({"x": "/job?id=7"}, ValueError, "not '/job?id=7'"),
        ({"x": "/actions/jobs/delete"}, ValueError, "must be the address of a list"),
        ({"x": "jobs?q=status:failed"}, ValueError, "must be the address of a list"),
        ({"x": "javascript:alert(1)"}, ValueError, "must be the address of a list"),
        ({"x": "/jobs?q=state:failed"}, ValueError, "the search of views['x'] is invalid: "),
        ({f"x{n}": "/jobs" for n in range(51)}, ValueError, "at most 50 addresses, not 51"),
    ],
)
def test_wrong_views_are_rejected(
    views: Any, error: type[Exception], text: str, build: Callable[..., App]
) -> None:
    with pytest.raises(error) as caught:
        build(views=views)
    assert text in str(caught.value)
