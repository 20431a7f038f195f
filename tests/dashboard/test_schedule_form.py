"""Preview, add and edit schedules by a form, and read the triggers that people write in it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from html.parser import HTMLParser
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access
from pg_scheduler.dashboard.pages.schedule_form import DEFAULTS
from pg_scheduler.triggers import At, CalendarInterval, Cron, During, Every, FixedDelay, Trigger
from tests.dashboard.client import App, Page, request, send
from tests.dashboard.test_actions import as_role, records
from tests.dashboard.test_hostile import check
from tests.support.codecs import KeyedCodec
from tests.support.hostile_texts import HOSTILE, LONG
from tests.support.world import HOUR, World

ADD = "/actions/schedules/add"
UPDATE = "/actions/schedules/update?id=mine"
FIELDS = {
    "task": "board.mail",
    "schedule_id": "mine",
    "kind": "cron",
    "cron": "0 8 * * 1-5",
    "timezone": "Europe/Berlin",
}
EVERY = {"kind": "interval", "interval": "5m", "version": "1"}


@pytest.fixture
async def admin(build: Callable[..., App], world: World) -> App:
    await world.worker(names=["board.mail", "billing.invoice"])
    return as_role(build, "admin")


class Fields(HTMLParser):
    """The fields of a form with their values, and the texts of what is wrong by field."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.values: dict[str, str] = {}
        self.wrong: dict[str, str] = {}
        self._select = self._text = self._wrong = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name = given.get("name") or ""
        if tag == "input" and (given.get("type") != "radio" or "checked" in given):
            self.values[name] = given.get("value") or ""
        elif tag == "textarea":
            self._text = name
            self.values[name] = ""
        elif tag == "select":
            self._select = name
        elif tag == "option" and self._select and (self._select not in self.values or "selected" in given):
            self.values[self._select] = given.get("value") or ""
        elif tag == "p" and (given.get("id") or "").startswith("wrong-"):
            self._wrong = str(given["id"]).removeprefix("wrong-")
            self.wrong[self._wrong] = ""

    def handle_endtag(self, tag: str) -> None:
        self._select, self._text, self._wrong = (
            "" if tag == end else name
            for end, name in (("select", self._select), ("textarea", self._text), ("p", self._wrong))
        )

    def handle_data(self, data: str) -> None:
        if self._text:
            self.values[self._text] += data.removeprefix("\n")
        if self._wrong:
            self.wrong[self._wrong] += data


def entered(html: str) -> dict[str, Any]:
    return Fields(html).values


# -- the form ------------------------------------------------------------------------------------------


async def test_schedule_is_previewed_added_and_edited(
    admin: App, scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    assert "add-schedule" in {
        each.get("id") for each in Page((await request(admin, "/schedules")).text).all("a")
    }
    page = Page((await request(admin, "/schedule-form")).text)
    options = [option.get("value") for option in page.all("option")][:3]
    assert options == ["", "billing.invoice", "board.mail"], "no task is chosen by chance"
    assert "/schedules" in [link["href"] for link in page.all("a") if link.get("class") == "button"], (
        "cancels"
    )
    unchosen = await send(admin, ADD, {**FIELDS, "task": ""})
    assert Fields(unchosen.text).wrong["task"] == "choose a task that a live worker claims"
    shown = Page((await send(admin, "/actions/schedules/preview", FIELDS)).text)
    assert "At 08:00 on Monday to Friday" in shown.text
    assert shown.text.count("08:00:00 CE") == 20
    assert await scheduler.schedules.get("mine") is None
    fields = {**FIELDS, "kwargs": '{"tenant": 7}', "max_runs": "5", "end": "2099-01-01T00:00"}
    answer = await send(admin, ADD, fields)
    assert (answer.headers["location"], answer.did) == ("/schedule?id=mine", "schedule_added")
    schedule = await scheduler.schedules.get("mine")
    assert schedule is not None
    assert schedule.trigger == Cron("0 8 * * 1-5", timezone="Europe/Berlin")
    assert (schedule.task, schedule.kwargs, schedule.max_runs) == ("board.mail", {"tenant": 7}, 5)
    edit = await request(admin, "/schedule-form?id=mine")
    assert entered(edit.text)["cron"] == "0 8 * * 1-5"
    changed = {
        **entered(edit.text),
        "kind": "interval",
        "interval": "15m",
        "task": "billing.invoice",
    }
    answer = await send(admin, UPDATE, changed)
    assert (answer.headers["location"], answer.did) == ("/schedule?id=mine", "schedule_updated")
    after = await scheduler.schedules.get("mine")
    assert after is not None
    assert (after.trigger, after.end, after.max_runs) == (Every(minutes=15), schedule.end, 5)
    assert (after.task, after.kwargs) == ("board.mail", {"tenant": 7}), (
        "the task is not edited, and the arguments were not changed"
    )
    stale = await send(admin, UPDATE, changed)
    assert stale.status == 409
    assert "changed meanwhile" in stale.text
    assert entered(stale.text)["interval"] == "15m", "what was entered is kept"
    assert await records(pool) == [
        ("ada", "dashboard", "add_schedule", "mine"),
        ("ada", "dashboard", "update_schedule", "mine"),
    ]


@pytest.mark.parametrize(
    ("kind", "trigger"),
    [
        ("cron", Cron("30 2 * * *", "Europe/Berlin")),
        ("interval", Every(hours=1, minutes=30)),
        ("after", FixedDelay(timedelta(minutes=10))),
        ("instants", At(datetime(2031, 1, 1, 8, tzinfo=UTC), datetime(2031, 1, 2, 8, 0, 1, tzinfo=UTC))),
        ("calendar", CalendarInterval(months=3, at=time(9, 30), timezone="Europe/Berlin")),
        ("calendar", CalendarInterval(weeks=2, at=time(9), first=date(2031, 1, 31), missing_day="skip")),
        ("json", CalendarInterval(months=1, days=1)),
        ("json", Every(timedelta(milliseconds=1500))),
        ("json", Every(hours=1) - During(weekdays="sun")),
    ],
    ids=itertools.count(),
)
async def test_form_of_each_kind_keeps_its_trigger(
    kind: str, trigger: Trigger, admin: App, scheduler: Scheduler
) -> None:
    added = await scheduler.schedules.add("board.mail", trigger, schedule_id="mine")
    fields = entered((await request(admin, "/schedule-form?id=mine")).text)
    assert fields["kind"] == kind
    assert (await send(admin, UPDATE, {**fields, "max_runs": "9"})).status == 303
    new = {**fields, "task": "board.mail", "schedule_id": "other", "kwargs": ""}
    assert (await send(admin, ADD, new)).status == 303
    for schedule_id in ("mine", "other"):
        schedule = await scheduler.schedules.get(schedule_id)
        assert schedule is not None
        assert schedule.trigger == added.trigger


async def test_all_errors_are_shown_at_once(admin: App) -> None:
    wrong = {"task": "", "timezone": "Berlin", "kwargs": "[]", "start": "soon", "max_runs": "x"}
    answer = await send(admin, ADD, {**FIELDS, **wrong})
    assert answer.status == 400
    assert set(Fields(answer.text).wrong) == {"task", "timezone", "kwargs", "start", "max_runs"}
    shown = await send(admin, "/actions/schedules/preview", {**FIELDS, "kwargs": "[]"})
    assert (shown.status, set(Fields(shown.text).wrong)) == (200, {"kwargs"})
    assert "At 08:00 on Monday to Friday" in Page(shown.text).text, "the trigger is right"


async def test_preview_marks_clock_changes(admin: App) -> None:
    fields = {**FIELDS, "cron": "30 2 * * *", "start": "2031-03-25T00:00"}
    shown = Page((await send(admin, "/actions/schedules/preview", fields)).text)
    assert "02:30 does not exist on 2031-03-30 in Europe/Berlin" in shown.text


async def test_unchanged_fields_keep_their_exact_values(
    admin: App, scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    await scheduler.schedules.add("board.mail", Every(HOUR) | Cron("0 8 * * *"), schedule_id="mine")
    await pool.execute("UPDATE scheduler_schedules SET start_at = '2020-01-01T00:00:00.123456Z'")
    before = await scheduler.schedules.get("mine")
    fields = entered((await request(admin, "/schedule-form?id=mine")).text)
    assert (await send(admin, UPDATE, {**fields, "max_runs": "9"})).status == 303
    after = await scheduler.schedules.get("mine")
    assert before is not None
    assert after is not None
    assert (after.trigger, after.start, after.next_fire_at) == (
        before.trigger,
        before.start,
        before.next_fire_at,
    )
    assert after.max_runs == 9


@pytest.mark.parametrize(
    ("fields", "wrong", "text"),
    [
        ({"cron": ""}, "cron", "enter a trigger"),
        ({"cron": "every minute"}, "cron", "write a length"),
        ({"cron": "61 * * * *"}, "cron", "61"),
        ({"timezone": "Nowhere/City"}, "timezone", "Nowhere"),
        ({"timezone": "Berlin"}, "timezone", "such as 'Europe/Berlin'"),
        ({"kind": "interval", "interval": "soon"}, "interval", "write a length"),
        ({"kind": "after", "after": ""}, "after", "write a length"),
        ({"kind": "instants", "instants": "2031-01-01\nsoon"}, "instants", "'soon'"),
        ({"kind": "calendar", "calendar": "0"}, "calendar", "no interval"),
        ({"kind": "calendar", "calendar": "x"}, "calendar", "whole number"),
        ({"kind": "calendar", "unit": "moons"}, "calendar", "choose one of days"),
        ({"kind": "calendar", "time": "25:00"}, "time", "such as 09:00"),
        ({"kind": "calendar", "first": "soon"}, "first", "such as 2027-01-31"),
        ({"kind": "json", "json": "{}"}, "json", "kind"),
        ({"kind": "moon"}, "kind", "choose one of cron"),
        ({"start": "soon"}, "start", "start must be a time"),
        ({"start": "2031-01-02", "end": "2031-01-01"}, "", "end"),
        ({"max_runs": "0"}, "", "max_runs"),
        ({"max_runs": "-1"}, "max_runs", "whole number"),
    ],
)
async def test_wrong_definition_is_rejected_with_what_was_entered(
    fields: dict[str, str], wrong: str, text: str, admin: App, scheduler: Scheduler
) -> None:
    answer = await send(admin, ADD, {**FIELDS, **fields})
    assert answer.status == 400
    page = Page(answer.text)
    assert "problem" in {each.get("id") for each in page.all("p")}
    found = Fields(answer.text).wrong
    assert text in (found[wrong] if wrong else page.text)
    if wrong and wrong != "kind":
        (invalid,) = [
            each
            for tag in ("input", "select", "textarea")
            for each in page.all(tag)
            if each.get("aria-invalid") == "true"
        ]
        assert (invalid["name"], invalid["aria-describedby"]) == (wrong, f"wrong-{wrong}")
    assert entered(answer.text)["schedule_id"] == "mine"
    assert await scheduler.schedules.get("mine") is None
    await scheduler.schedules.add("board.mail", Every(HOUR), schedule_id="mine")
    version = {"version": "1", "kind": "interval", "interval": "1h"}
    assert (await send(admin, UPDATE, {**version, **FIELDS, **fields})).status == 400
    schedule = await scheduler.schedules.get("mine")
    assert schedule is not None
    assert schedule.version == 1


@pytest.mark.parametrize(
    "kwargs", ["[]", "7", "{", '{"a":' * 20_000, '{"a": "' + "x" * 100_001 + '"}', '{"a": NaN}']
)
async def test_wrong_arguments_are_rejected(kwargs: str, admin: App, scheduler: Scheduler) -> None:
    assert (await send(admin, ADD, {**FIELDS, "kwargs": kwargs})).status == 400
    assert await scheduler.schedules.get("mine") is None


async def test_arguments_must_fit_the_task(admin: App, scheduler: Scheduler) -> None:
    async def mail(tenant: int) -> None: ...

    scheduler.register(mail, name="board.mail")
    answer = await send(admin, ADD, {**FIELDS, "kwargs": json.dumps({"wrong": 1})})
    assert answer.status == 400
    assert "tenant" in answer.text


async def test_new_schedule_has_a_claimed_visible_task(
    admin: App, build: Callable[..., App], scheduler: Scheduler
) -> None:
    limited = as_role(build, "admin", names=("billing.*",))
    page = Page((await request(limited, "/schedule-form")).text)
    assert "billing.invoice" in {each.get("value") for each in page.all("option")}
    assert "board.mail" not in {each.get("value") for each in page.all("option")}
    for app, task in ((limited, "board.mail"), (admin, "board.unknown"), (admin, "")):
        assert (await send(app, ADD, {**FIELDS, "task": task})).status == 400
    await scheduler.schedules.add("board.mail", Every(HOUR), schedule_id="mine")
    for url in (UPDATE, "/actions/schedules/preview?id=mine"):
        assert (await send(limited, url, EVERY)).status == 404
    assert (await request(limited, "/schedule-form?id=mine")).status == 404
    taken = await send(admin, ADD, FIELDS)
    assert taken.status == 409
    assert "exists" in taken.text


async def test_schedule_of_code_is_not_edited(admin: App, scheduler: Scheduler, pool: asyncpg.Pool) -> None:
    await scheduler.schedules.add("board.mail", Every(HOUR), schedule_id="mine")
    await pool.execute("UPDATE scheduler_schedules SET owner = 'code'")
    assert "schedule-form" not in (await request(admin, "/schedule?id=mine")).text
    answer = await send(admin, UPDATE, EVERY)
    assert answer.status == 409
    schedule = await scheduler.schedules.get("mine")
    assert schedule is not None
    assert schedule.trigger == Every(HOUR)


@pytest.mark.parametrize("text", [*HOSTILE, LONG], ids=range(len(HOSTILE) + 1))
async def test_hostile_text_of_the_form_is_shown_as_text(text: str, admin: App, scheduler: Scheduler) -> None:
    await scheduler.schedules.add("board.mail", Every(HOUR), schedule_id="mine")
    for url in (ADD, UPDATE, "/actions/schedules/preview", "/actions/schedules/preview?id=mine"):
        answer = await send(admin, url, dict.fromkeys(DEFAULTS, text))
        assert answer.status == (200 if "preview" in url else 400)
        assert Fields(answer.text).wrong
        check(answer.text)


# -- fields for the parameters of a task ---------------------------------------------------------------


async def report(world: World, parameters: object, worker_id: str = "signs") -> None:
    settings = json.dumps({"parameters": parameters})
    await world.worker(worker_id, names=["board.mail", "billing.invoice"], settings=settings)


PARAMETERS = {"board.mail": [["to", True], ["copies", False]], "billing.invoice": [["tenant", True]]}


async def test_parameters_of_the_task_are_fields(admin: App, scheduler: Scheduler, world: World) -> None:
    await report(world, PARAMETERS)
    form = await request(admin, "/schedule-form?task=board.mail")
    assert [name for name in entered(form.text) if name.startswith("arg.")] == ["arg.to", "arg.copies"]
    assert 'copies</code> <span class="note">optional</span>' in form.text
    fields_of_none = entered((await request(admin, "/schedule-form")).text)
    assert not [name for name in fields_of_none if name.startswith("arg.")], "no task is chosen"
    fields = {**FIELDS, "arg.to": "ada@example.org", "arg.copies": "3", "kwargs": '{"tags": ["x"]}'}
    assert (await send(admin, ADD, fields)).did == "schedule_added"
    schedule = await scheduler.schedules.get("mine")
    assert schedule is not None
    assert schedule.kwargs == {"to": "ada@example.org", "copies": 3, "tags": ["x"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", 7),
        ("-0.5", -0.5),
        ("true", True),
        ("null", None),
        ('"7"', "7"),
        ("[1, 2]", [1, 2]),
        ('{"a": "b"}', {"a": "b"}),
        ("ada", "ada"),
        ("007", "007"),
        ("NaN", "NaN"),
        ("-Infinity", "-Infinity"),
        ("{broken", "{broken"),
        ("[" * 50_000, "[" * 50_000),
        ("<b>&", "<b>&"),
    ],
)
async def test_value_of_a_field_is_json_or_a_text(
    text: str, expected: Any, admin: App, scheduler: Scheduler, world: World
) -> None:
    await report(world, PARAMETERS)
    answer = await send(admin, ADD, {**FIELDS, "arg.to": text})
    assert answer.did == "schedule_added", answer.text[:500]
    schedule = await scheduler.schedules.get("mine")
    assert schedule is not None
    assert schedule.kwargs == {"to": expected}


async def test_wrong_fields_are_named_and_kept(admin: App, scheduler: Scheduler, world: World) -> None:
    await report(world, PARAMETERS)
    missing = await send(admin, ADD, {**FIELDS, "arg.copies": "2"})
    assert (missing.status, Fields(missing.text).wrong) == (400, {"arg.to": "enter a value"})
    assert entered(missing.text)["arg.copies"] == "2"
    twice = await send(admin, ADD, {**FIELDS, "arg.to": "ada", "kwargs": '{"to": "bob"}'})
    assert "remove one of them" in Fields(twice.text).wrong["arg.to"]
    other = await send(admin, ADD, {**FIELDS, "task": "billing.invoice", "arg.to": "ada"})
    assert Fields(other.text).wrong == {"arg.tenant": "enter a value"}
    other = await send(admin, ADD, {**FIELDS, "task": "billing.invoice", "arg.to": "x", "arg.tenant": "7"})
    assert "has the parameter 'to'" in Fields(other.text).wrong["kwargs"]
    shown = await send(admin, "/actions/schedules/preview", {**FIELDS, "task": "billing.invoice"})
    assert Fields(shown.text).wrong == {}, "nothing was entered yet"
    assert "arg.tenant" in entered(shown.text), "those of the chosen task"
    assert await scheduler.schedules.list() == []
    assert (await send(admin, ADD, {**FIELDS, "kwargs": '{"to": "bob"}'})).did == "schedule_added"


async def test_parameters_follow_the_rights(build: Callable[..., App], world: World) -> None:
    await report(world, PARAMETERS)
    url = "/schedule-form?task=board.mail"
    for arguments, names in (
        ({"sees_arguments": False}, []),
        ({"names": ("billing.*",)}, []),
        ({"names": ("board.*",)}, ["arg.to", "arg.copies"]),
    ):
        app = as_role(build, "admin", **arguments)
        found = entered((await request(app, url)).text)
        assert [name for name in found if name.startswith("arg.")] == names, arguments


@pytest.mark.parametrize(
    "parameters",
    [None, 7, [], {"board.mail": "to"}, {"board.mail": [7, ["to"], ["to", 1], ["a", True, 2], [None, True]]}],
)
async def test_report_that_is_none_gives_no_fields(parameters: object, admin: App, world: World) -> None:
    await report(world, parameters)
    answer = await request(admin, "/schedule-form?task=board.mail")
    assert (answer.status, "arg." in answer.text) == (200, False)
    assert (await send(admin, ADD, {**FIELDS, "kwargs": '{"to": 1}'})).did == "schedule_added"


async def test_hostile_names_of_parameters_are_shown_as_text(admin: App, world: World) -> None:
    await report(world, {"board.mail": [[text, True] for text in HOSTILE]})
    check((await request(admin, "/schedule-form?task=board.mail")).text)
    check((await send(admin, ADD, {**FIELDS, **{f"arg.{text}": text for text in HOSTILE}})).text)


async def test_newest_worker_counts_and_dead_ones_do_not(
    admin: App, pool: asyncpg.Pool, world: World
) -> None:
    await report(world, {"board.mail": [["old", True]]}, "a")
    await report(world, {"board.mail": [["new", True]]}, "b")
    await report(world, {"board.mail": [["dead", True]]}, "c")
    await pool.execute(
        "UPDATE scheduler_workers SET lease_until = now() - interval '1 h' WHERE worker_id = 'c'"
    )
    found = entered((await request(admin, "/schedule-form?task=board.mail")).text)
    assert [name for name in found if name.startswith("arg.")] == ["arg.new"]


# -- the arguments of a schedule -----------------------------------------------------------------------


async def add_mine(scheduler: Scheduler, **kwargs: Any) -> None:
    await scheduler.schedules.add("board.mail", Every(HOUR), schedule_id="mine", kwargs=kwargs)


async def kwargs_of(scheduler: Scheduler) -> Any:
    schedule = await scheduler.schedules.get("mine")
    assert schedule is not None
    return schedule.kwargs


async def test_encoded_arguments_of_a_schedule_are_kept_without_the_codec(
    admin: App, scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    codec = KeyedCodec("k1")
    await add_mine(Scheduler(pool, codec=codec), to="ada@example.org")
    page = (await request(admin, "/schedule-form?id=mine")).text
    assert "ada@example.org" not in page
    fields = entered(page)
    assert "kwargs" not in fields
    answer = await send(admin, UPDATE, {**fields, "max_runs": "7"})
    assert answer.did == "schedule_updated", answer.text
    found = await Scheduler(pool, codec=codec).schedules.get("mine")
    assert found is not None
    assert (found.max_runs, found.kwargs) == (7, {"to": "ada@example.org"})


@pytest.mark.parametrize("has_report", [True, False])
async def test_arguments_of_a_schedule_are_edited(
    has_report: bool, admin: App, scheduler: Scheduler, world: World
) -> None:
    if has_report:
        await report(world, PARAMETERS)
    before = {"copies": 3, "tags": ["x"], "to": "007"}
    await add_mine(scheduler, **before)
    fields = entered((await request(admin, "/schedule-form?id=mine")).text)
    if has_report:
        assert (fields["arg.to"], fields["arg.copies"]) == ("007", "3")
        assert json.loads(fields["kwargs"]) == {"tags": ["x"]}
    else:
        assert json.loads(fields["kwargs"]) == before
    answer = await send(admin, UPDATE, fields)
    assert answer.did == "schedule_updated", answer.text
    assert await kwargs_of(scheduler) == before
    fresh = {**entered((await request(admin, "/schedule-form?id=mine")).text), "kwargs": '{"to": "ada"}'}
    if has_report:
        fresh |= {"arg.to": "", "arg.copies": "true"}
    answer = await send(admin, UPDATE, fresh)
    assert answer.did == "schedule_updated", answer.text
    assert await kwargs_of(scheduler) == ({"to": "ada", "copies": True} if has_report else {"to": "ada"})
    stale = await send(admin, UPDATE, {**fresh, "kwargs": '{"to": "bob"}'})
    assert stale.status == 409
    assert entered(stale.text)["kwargs"].strip() == '{"to": "bob"}'


async def test_number_and_truth_value_differ(admin: App, scheduler: Scheduler) -> None:
    await add_mine(scheduler, copies=1)
    fields = entered((await request(admin, "/schedule-form?id=mine")).text)
    assert (await send(admin, UPDATE, {**fields, "kwargs": '{"copies": true}'})).did == "schedule_updated"
    assert (await kwargs_of(scheduler))["copies"] is True


async def test_wrong_arguments_of_a_schedule_change_nothing(
    admin: App, build: Callable[..., App], scheduler: Scheduler, pool: asyncpg.Pool, world: World
) -> None:
    await report(world, PARAMETERS)
    await add_mine(scheduler, to="ada")
    fields = entered((await request(admin, "/schedule-form?id=mine")).text)
    for changed, name, text in (
        ({"kwargs": "[1]"}, "kwargs", "JSON object"),
        ({"kwargs": "{"}, "kwargs", "JSON object"),
        ({"arg.to": ""}, "arg.to", "enter a value"),
        ({"kwargs": '{"to": 1}'}, "arg.to", "remove one of them"),
    ):
        answer = await send(admin, UPDATE, {**fields, **changed})
        assert (answer.status, text in Fields(answer.text).wrong[name]) == (400, True), changed
    await pool.execute("DELETE FROM scheduler_workers WHERE worker_id = 'signs'")
    fresh = as_role(build, "admin")  # the names of workers are kept for some seconds
    answer = await send(fresh, UPDATE, {**fields, "arg.to": "bob"})
    assert "as before" in Fields(answer.text).wrong["kwargs"]
    assert json.loads(entered(answer.text)["kwargs"]) == {"to": "ada"}
    assert await kwargs_of(scheduler) == {"to": "ada"}


@pytest.mark.parametrize(
    "arguments", [{"authorize": lambda _: Access("ada", "admin", sees_arguments=False)}, {"redact": ["to"]}]
)
async def test_hidden_arguments_are_neither_shown_nor_changed(
    arguments: dict[str, Any], build: Callable[..., App], scheduler: Scheduler, world: World
) -> None:
    await report(world, PARAMETERS)
    await add_mine(scheduler, to="hunter2", copies=1)
    app = build(**{"authorize": lambda _: Access("ada", "admin"), **arguments})
    form = await request(app, "/schedule-form?id=mine")
    assert "hunter2" not in form.text
    assert not {"kwargs", "arg.to", "arg.copies"} & entered(form.text).keys()
    sent = {**entered(form.text), "kwargs": "{}", "max_runs": "7"}
    answer = await send(app, UPDATE, sent)
    assert answer.did == "schedule_updated", answer.text
    schedule = await scheduler.schedules.get("mine")
    assert schedule is not None
    assert (schedule.max_runs, schedule.kwargs) == (7, {"to": "hunter2", "copies": 1})
    assert (await send(app, UPDATE, {**sent, "arg.to": "x"})).status == 409
    assert await kwargs_of(scheduler) == {"to": "hunter2", "copies": 1}


async def test_positional_arguments_of_a_schedule_stay(
    admin: App, build: Callable[..., App], scheduler: Scheduler, world: World
) -> None:
    await report(world, PARAMETERS)
    await scheduler.schedules.add(
        "board.mail", Every(HOUR), schedule_id="mine", args=("ada",), kwargs={"copies": 1}
    )
    html = (await request(admin, "/schedule-form?id=mine")).text
    fields = entered(html)
    assert "arg.copies" not in fields
    assert 'Positional arguments (kept): "ada"' in " ".join(Page(html).text.split())
    settings = json.dumps({"parameters": PARAMETERS, "positional": {"board.mail": 1}})
    await world.worker("names", names=["board.mail"], settings=settings)
    html = (await request(build(authorize=lambda _: Access("ada", "admin")), "/schedule-form?id=mine")).text
    assert "Positional arguments (kept): to=ada" in " ".join(Page(html).text.split())
    assert (await send(admin, UPDATE, {**fields, "kwargs": '{"copies": 2}'})).did == "schedule_updated"
    schedule = await scheduler.schedules.get("mine")
    assert schedule is not None
    assert (schedule.args, schedule.kwargs) == (("ada",), {"copies": 2})
