"""Mute findings of the doctor and groups of errors: what leaves the numbers, for how long, and who may."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from pg_scheduler.dashboard import Access
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.audit import read_mutes
from tests.dashboard.client import JSON, Answer, App, Page, follow, request, send
from tests.dashboard.test_actions import as_role
from tests.dashboard.test_doctor import add_late_jobs
from tests.dashboard.test_errors import add_job, fingerprint_of
from tests.dashboard.test_hostile import check
from tests.support.hostile_texts import HOSTILE
from tests.support.world import World

LATE = "NAME-UNKNOWN muted.mail"
MUTE = f"/actions/doctor/mute?id={quote(LATE)}"
UNMUTE = f"/actions/doctor/unmute?id={quote(LATE)}"


@pytest.fixture
def admin(build: Callable[..., App]) -> App:
    return as_role(build, "admin")


async def codes(app: App, *, is_muted: bool) -> list[str]:
    found = (await request(app, "/doctor", headers=JSON)).data["findings"]
    return [each["mute_id"] for each in found if each["is_muted"] is is_muted]


async def count(app: App) -> int:
    """Return the number of findings that the side bar shows."""
    page = Page((await request(app, "/about")).text)
    (item,) = [attrs for _, attrs in page.elements if "data-findings" in attrs]
    return int(str(item["title"]).split()[0])


async def mute(app: App, url: str = MUTE, **fields: object) -> Answer:
    return await send(app, url, {"days": 7, "note": "fix on Monday", **fields})


async def test_overview_states_that_all_findings_are_muted(world: World, admin: App) -> None:
    await add_late_jobs(world, "muted.mail")
    assert (await mute(admin)).did == "mute_finding"
    data = (await request(admin, "/", headers=JSON)).data
    assert data["problems"] == []
    assert (data["sentence"], data["is_well"]) == ("No unmuted finding, 1 muted; jobs wait late.", False)
    text = Page((await request(admin, "/")).text).text
    assert "No unmuted finding, 1 muted; jobs wait late" in text
    assert "All is well" not in text
    assert "nothing late" not in text


async def test_muted_finding_is_folded_and_leaves_the_numbers(world: World, admin: App) -> None:
    await add_late_jobs(world, "muted.mail", "muted.other")
    before = await count(admin)
    answer = await mute(admin, note="see https://example.org/issues/7 <b>")
    assert (answer.status, answer.did) == (303, "mute_finding")
    page = Page((await follow(admin, answer)).text)
    assert "the finding is muted" in page.text
    assert "see https://example.org/issues/7 <b>" in page.text
    assert "https://example.org/issues/7" in page.links()
    assert await codes(admin, is_muted=True) == [LATE]
    assert "NAME-UNKNOWN muted.other" in await codes(admin, is_muted=False)
    assert await count(admin) == before - 1
    overview = (await request(admin, "/", headers=JSON)).data
    assert LATE not in {each["mute_id"] for each in overview["problems"]}
    assert (
        "muted.mail" not in Page((await request(admin, "/")).text).text.partition("need attention")[2][:400]
    )
    assert (await send(admin, UNMUTE)).did == "unmute_finding"
    assert await codes(admin, is_muted=True) == []
    assert await count(admin) == before
    audit = " ".join(Page((await request(admin, "/audit")).text).text.split())
    assert f"ada muted the finding {LATE} until 20" in audit
    assert f"ada unmuted the finding {LATE}" in audit
    assert "History" in Page((await request(admin, "/doctor")).text).text


async def test_mute_ends_at_its_time(pool: asyncpg.Pool, world: World, admin: App) -> None:
    await add_late_jobs(world, "muted.mail")
    await mute(admin)
    await pool.execute(
        "UPDATE scheduler_audit SET details = details || jsonb_build_object('until', $1::text)",
        (datetime.now().astimezone() - timedelta(seconds=1)).isoformat(),
    )
    assert await codes(admin, is_muted=True) == []


@pytest.mark.parametrize(
    "until", ["null", '"soon"', '"2030-01-01"', "7", "[]", '"99999-01-01T00:00:00+00:00"']
)
async def test_record_written_by_hand_without_a_time_mutes_nothing(
    until: str, pool: asyncpg.Pool, world: World, admin: App
) -> None:
    await add_late_jobs(world, "muted.mail")
    await mute(admin)
    await pool.execute(f'UPDATE scheduler_audit SET details = \'{{"until": {until}, "note": 7}}\'')
    assert await codes(admin, is_muted=True) == []
    for url in ("/doctor", "/audit"):
        assert (await request(admin, url)).status == 200


@pytest.mark.parametrize("days", ["", "0", "91", "-1", "x"])
async def test_number_of_days_is_checked(days: str, world: World, admin: App) -> None:
    await add_late_jobs(world, "muted.mail")
    assert (await mute(admin, days=days)).status == 400
    assert await codes(admin, is_muted=True) == []


async def test_mute_needs_its_right_and_a_visible_finding(world: World, build: Any, admin: App) -> None:
    await add_late_jobs(world, "muted.mail")
    viewer = as_role(build, "viewer")
    assert (await mute(viewer)).status == 403
    assert "/actions/doctor" not in (await request(viewer, "/doctor")).text
    assert (await mute(as_role(build, "operator", names=("other.*",)))).status == 404
    assert (await mute(admin, "/actions/doctor/mute?id=NAME-UNKNOWN%20no.such")).status == 404
    assert (await send(admin, MUTE, {"days": 7}, headers={"sec-fetch-site": "cross-site"})).status == 403
    assert await codes(admin, is_muted=True) == []
    assert (await mute(as_role(build, "operator", names=("muted.*",)))).did == "mute_finding"
    assert await codes(admin, is_muted=True) == [LATE]


async def test_request_for_other_names_does_not_see_who_muted_what(
    world: World, build: Any, admin: App
) -> None:
    await add_late_jobs(world, "muted.mail")
    await mute(admin, note="the secret of muted.mail")
    other = build(authorize=lambda _: Access("bob", "operator", names=("other.*",)))
    for url in ("/doctor", "/"):
        for headers in ({}, JSON):
            text = (await request(other, url, headers=headers)).text
            assert "muted.mail" not in text
            assert "secret" not in text


async def test_hostile_names_and_notes_of_mutes_are_escaped(world: World, admin: App) -> None:
    name = "".join(HOSTILE)[:200]
    await add_late_jobs(world, name)
    (found,) = [each for each in await codes(admin, is_muted=False) if each.startswith("NAME-UNKNOWN")]
    answer = await mute(admin, f"/actions/doctor/mute?id={quote(found, safe='')}", note=name)
    assert answer.did == "mute_finding"
    for url in ("/doctor", "/audit"):
        check((await request(admin, url)).text)
    assert await codes(admin, is_muted=True) == [found]


async def test_pause_of_a_task_with_the_name_of_a_finding_is_no_mute(pool: asyncpg.Pool) -> None:
    inspector = Inspector(pool)
    await inspector.record_action("pause_task", LATE, until="2100-01-01T00:00:00+00:00")
    assert await read_mutes(inspector, "finding", [LATE]) == {}
    await inspector.record_action("mute_finding", LATE, until="2100-01-01T00:00:00+00:00", note="later")
    ((subject, (muted,)),) = (await read_mutes(inspector, "finding", [LATE, "other"])).items()
    assert (subject, muted.note) == (LATE, "later")
    assert await read_mutes(inspector, "error", [LATE]) == {}


# -- groups of errors ----------------------------------------------------------------------------------


async def count_errors(app: App) -> int:
    """Return the number of groups that the side bar shows."""
    page = Page((await request(app, "/about")).text)
    titles = [str(attrs.get("title")) for _, attrs in page.elements if "count" in str(attrs.get("class"))]
    return sum(int(each.split()[0]) for each in titles if "groups of errors" in each)


async def test_muted_group_of_errors_has_its_own_tab_and_leaves_the_numbers(world: World, admin: App) -> None:
    await add_job(world, "a", "ValueError: one")
    await add_job(world, "b", "KeyError: other")
    muted = await fingerprint_of(admin, "one")
    assert await count_errors(admin) == 2
    answer = await mute(admin, f"/actions/errors/mute?id={muted}", note="https://example.org/issues/7")
    page = Page((await follow(admin, answer)).text)
    assert "the group of errors is muted" in page.text
    assert "https://example.org/issues/7" in page.links()
    assert await count_errors(admin) == 1
    failed, folded = [
        (await request(admin, f"/errors?state={state}", headers=JSON)).data for state in ("failed", "muted")
    ]
    assert [each["text"] for each in failed["items"]] == ["KeyError: other"]
    assert [each["fingerprint"] for each in folded["items"]] == [muted]
    assert (failed["counts"]["failed"], failed["counts"]["muted"]) == (1, 1)
    assert "muted until" in Page((await request(admin, "/errors?state=muted")).text).text
    overview = (await request(admin, "/", headers=JSON)).data
    assert [each["text"] for each in overview["errors"]] == ["KeyError: other"]
    audit = Page((await request(admin, "/audit")).text)
    assert f"ada muted the errors {muted} until 20" in " ".join(audit.text.split())
    assert f"/error?id={muted}" in audit.links()
    assert (await send(admin, f"/actions/errors/unmute?id={muted}")).did == "unmute_error"
    assert await count_errors(admin) == 2


async def test_group_of_errors_of_a_hidden_task_cannot_be_muted(world: World, build: Any, admin: App) -> None:
    await add_job(world, "a", "ValueError: one")
    url = f"/actions/errors/mute?id={await fingerprint_of(admin, 'one')}"
    assert (await mute(as_role(build, "viewer"), url)).status == 403
    assert (await mute(as_role(build, "operator", names=("other.*",)), url)).status == 404
    assert await count_errors(admin) == 1
