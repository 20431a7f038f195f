"""Searches for schedules: each term, and each mistake."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pg_scheduler.inspect import SearchError
from pg_scheduler.inspect.search.schedules import SCHEDULE_FIELDS, parse_schedule_search
from pg_scheduler.schedules.schedule import schedule_from_row
from tests.support.cases import each_case
from tests.support.store import NOW, new_schedule

UTC = NOW.tzinfo
MINUTE = timedelta(minutes=1)
METADATA = json.dumps({"tenant": "acme", "user": {"id": 42}, "flag": True, "nothing": None})
ROW: dict[str, Any] = {"task": "reports.send", "metadata": METADATA, "next_fire_at": NOW + MINUTE}


def matches(text: str, schedule_id: str = "report:7", **values: Any) -> bool:
    schedule = schedule_from_row(new_schedule(schedule_id, **(ROW | values)))
    return parse_schedule_search(text, now=NOW, tz=UTC)(schedule)


@each_case(
    ("text", "expected"),
    [
        ("id:report:7", True),
        ("id:report", False),
        ("id:report:*", True),
        ("id:*:7,other", True),
        ("id:r*t*7", True),
        ("id:report:7*7", False),
        ("id:REPORT:7", False),
        ("id:~PORT", True),
        ('id:"report:*"', False),
        ("task:reports.*", True),
        ("task:reports", False),
        ("-task:reports.*", False),
        ("report", True),
        ("REPORTS.SEND", True),
        ("mail", False),
        ("owner:api", True),
        ("owner:code", False),
        ("owner:code,api", True),
        ("paused:no", True),
        ("paused:yes", False),
        ("next:<+5m", True),
        ("next:<+30s", False),
        ("next:>now", True),
        ("next:now..+2m", True),
        ("metadata.tenant:acme", True),
        ("metadata.tenant:acm", False),
        ("metadata.tenant:~CM", True),
        ("metadata.user.id:42", True),
        ("metadata.user.name:ada", False),
        ("metadata.tenant.x:acme", False),
        ("metadata.flag:true", True),
        ("metadata.nothing:null", False),
        ("metadata.user:~42", True),
        ("task:reports.* -metadata.tenant:acme", False),
        ("task:reports.* metadata.tenant:acme paused:no", True),
    ],
)
def test_schedule_matches_the_terms_of_its_values(text: str, expected: bool) -> None:
    assert matches(text) is expected


def test_schedule_that_is_paused_or_finished_matches() -> None:
    assert matches("paused:yes note:~HOLIDAY", paused_at=NOW, note="summer holiday")
    assert not matches("note:*")
    assert not matches("next:>-1d", next_fire_at=None)
    assert matches("id:100%_\\*", schedule_id="100%_\\7")
    assert not matches("id:100%", schedule_id="1007")


@each_case(
    ("text", "message", "suggestion"),
    [
        ("", "the search for schedules is empty", None),
        ("tasks:a", "unknown field 'tasks:'", "task:"),
        ("task.a:b", "unknown field 'task.a:'", "task:"),
        ("status:failed", "unknown field 'status:'", "task:"),
        ("name:a", "unknown field 'name:'", "task:"),
        ("metadata:a", "write metadata.<name>:<value>", None),
        ("metadata.:a", "unknown field", "metadata."),
        ("owner:apis", "unknown owner 'apis'; write one of api, code", "api"),
        ("paused:maybe", "write one of yes, no", None),
        ("next:soon", "'soon' is no time", None),
        ("id:", "a value is missing", None),
        ("-", "a term is missing", None),
    ],
)
def test_mistake_is_reported_with_what_was_meant(text: str, message: str, suggestion: str | None) -> None:
    with pytest.raises(SearchError, match="at character") as caught:
        parse_schedule_search(text, now=NOW, tz=UTC)
    assert message in str(caught.value)
    assert caught.value.suggestion == suggestion


def test_every_field_is_read() -> None:
    for field, value in SCHEDULE_FIELDS.items():
        parse_schedule_search(f"{field.replace('<name>', 'a')}:{value}", now=NOW, tz=UTC)


@given(st.text(alphabet='abid:task-*~,"\\%_. 7', max_size=30))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    position = 0
    try:
        matches(text)
    except SearchError as error:
        position = error.position
    assert 0 <= position <= len(text)
