"""Triggers as JSON: round trips, kinds of other modules, and hostile input."""

from __future__ import annotations

import json
import pickle
import time as clock
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from pg_scheduler.triggers import (
    At,
    CalendarInterval,
    Cron,
    During,
    DuringSet,
    Every,
    FixedDelay,
    SearchLimitError,
    Trigger,
    UnknownKindError,
    serialization,
    trigger_kind,
)
from pg_scheduler.triggers.serialization import kinds_of
from tests.support.cases import each_case
from tests.support.triggers import INSTANTS, delays, own_kinds, sets, triggers

START = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def clean_kinds() -> Iterator[None]:
    with own_kinds():
        yield


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(trigger=triggers | delays, anchor=INSTANTS, instant=INSTANTS)
def test_round_trip_is_equal_and_fires_at_the_same_times(
    trigger: Trigger, anchor: datetime, instant: datetime
) -> None:
    stored = json.dumps(trigger.to_json(), allow_nan=False)
    copies = [
        Trigger.from_json(stored),
        Trigger.from_json(json.loads(stored)),
        pickle.loads(pickle.dumps(trigger)),
    ]
    for copy in copies:
        assert copy == trigger
        assert hash(copy) == hash(trigger)
        assert str(copy) == str(trigger)
        assert copy.to_json() == trigger.to_json()
    try:
        expected = trigger.upcoming(3, after=instant, anchor=anchor)
        assert copies[0].upcoming(3, after=instant, anchor=anchor) == expected
        assert trigger.upcoming(3, after=instant, anchor=anchor) == expected, "one value in two schedules"
    except SearchLimitError:
        return


@settings(max_examples=100, deadline=None)
@given(which=sets)
def test_round_trip_of_a_set_is_equal(which: DuringSet) -> None:
    assert DuringSet.from_json(json.dumps(which.to_json())) == which


def test_triggers_are_frozen_values() -> None:
    values = [
        Every(hours=1),
        FixedDelay(timedelta(hours=1)),
        Cron("@daily"),
        At(START),
        CalendarInterval(days=1),
        During(weekdays="mon"),
        Every(hours=1) | Cron("@daily"),
    ]
    assert len(set(values)) == len(values)
    for value in values:
        for attribute in ("kind", "every", "timezone", "triggers", "_zone"):
            with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
                setattr(value, attribute, None)


@pytest.mark.parametrize(
    ("trigger", "stored"),
    [
        (
            Cron("0 3 * * *", timezone="Europe/Berlin"),
            {"kind": "cron", "expression": "0 3 * * *", "timezone": "Europe/Berlin"},
        ),
        (Every(hours=2), {"kind": "every", "every": "PT2H"}),
        (FixedDelay(timedelta(seconds=1.5)), {"kind": "fixed_delay", "delay": "PT1.5S"}),
        (At(START), {"kind": "at", "instants": ["2024-01-01T00:00:00Z"]}),
        (
            CalendarInterval(months=1, at=time(9), first=date(2024, 1, 31)),
            {
                "kind": "calendar_interval",
                "years": 0,
                "months": 1,
                "weeks": 0,
                "days": 0,
                "at": "09:00:00",
                "timezone": "UTC",
                "first": "2024-01-31",
                "missing_day": "last",
            },
        ),
        (
            (Every(hours=1) | Every(hours=5)) & ~During(weekdays="mon", since=date(2024, 1, 1)),
            {
                "kind": "within",
                "trigger": {
                    "kind": "or",
                    "triggers": [{"kind": "every", "every": "PT1H"}, {"kind": "every", "every": "PT5H"}],
                },
                "during": {
                    "kind": "not",
                    "during": {"kind": "during", "weekdays": "mon", "since": "2024-01-01", "timezone": "UTC"},
                },
            },
        ),
        (
            (Every(hours=1) & Cron("@daily")) - (During(months=1) | During(months=2) & During(start=time(9))),
            {
                "kind": "except",
                "trigger": {
                    "kind": "and",
                    "triggers": [
                        {"kind": "every", "every": "PT1H"},
                        {"kind": "cron", "expression": "@daily", "timezone": "UTC"},
                    ],
                },
                "during": {
                    "kind": "union",
                    "sets": [
                        {"kind": "during", "months": "jan", "timezone": "UTC"},
                        {
                            "kind": "intersection",
                            "sets": [
                                {"kind": "during", "months": "feb", "timezone": "UTC"},
                                {"kind": "during", "start": "09:00:00", "timezone": "UTC"},
                            ],
                        },
                    ],
                },
            },
        ),
    ],
)
def test_json_has_the_documented_form(trigger: Trigger, stored: dict[str, Any]) -> None:
    """Rows of running databases have it, so a change needs a migration."""
    assert trigger.to_json() == stored
    assert Trigger.from_json(stored) == trigger


def test_defaults_may_be_left_out_of_the_json() -> None:
    assert Trigger.from_json({"kind": "cron", "expression": "@daily"}) == Cron("@daily")
    assert Trigger.from_json({"kind": "calendar_interval", "days": 1}) == CalendarInterval(days=1)


EVERY = {"kind": "every", "every": "PT1H"}
DURING = {"kind": "during", "weekdays": "mon"}


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = EVERY
    for _ in range(levels):
        value = {"kind": "within", "trigger": value, "during": DURING}
    return value


@each_case(
    ("value", "reason"),
    [
        (None, "must be an object with a 'kind', not None"),
        ([], r"must be an object with a 'kind', not \[\]"),
        ({}, r"must be an object with a 'kind', not \{\}"),
        ({"kind": None}, "must be an object with a 'kind'"),
        ({"kind": ["every"]}, "must be an object with a 'kind'"),
        ({"kind": "x" * 10**5}, r"unknown trigger kind 'x{64}'; import the module"),
        ({"kind": "__class__"}, "unknown trigger kind"),
        ({"kind": "os.system", "command": "true"}, "unknown trigger kind 'os.system'"),
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"kind":' * 20_000, "is not JSON"),
        ("1" * 10_000, "is not JSON|must be an object"),
        (" " * 300_000, "has 300000 characters; the limit is 262144"),
        (b"\xff", "is not JSON"),
        ({"kind": "every"}, "every.every: Field required"),
        ({**EVERY, "cron": "* * * * *"}, "every.cron: Extra inputs are not permitted"),
        ({**EVERY, "_fields": 1}, "every._fields: Extra inputs are not permitted"),
        ({"kind": "every", "every": timedelta(hours=1)}, "every: Object of type timedelta is not JSON"),
        ({"kind": "at", "instants": ["0001-01-01T00:00:00+14:00"]}, "is out of range: its date in UTC"),
        ({"kind": "every", "every": 60}, "every.every: Input should be a valid duration|every.every"),
        ({"kind": "every", "every": "PT0S"}, "every must be a positive timedelta"),
        ({"kind": "every", "every": "P9999999999D"}, "every.every|at most 3660 days"),
        ({"kind": "cron", "expression": 5}, "cron.expression: Input should be a valid string"),
        ({"kind": "cron", "expression": "61 * * * *"}, "has '61' as minute"),
        ({"kind": "cron", "expression": "* * * * *", "timezone": "../../etc/passwd"}, "Invalid timezone"),
        ({"kind": "cron", "expression": "* * * * *", "timezone": "\ud800"}, "cron"),
        ({"kind": "at", "instants": []}, "At has 0 instants"),
        ({"kind": "at", "instants": ["2024-01-01T00:00:00"]}, "has no time zone"),
        ({"kind": "at", "instants": ["2024-01-01T00:00:00Z"] * 1001}, "At has 1001 instants"),
        ({"kind": "at", "instants": 10**400}, "at.instants"),
        ({"kind": "at", "instants": [1e308]}, "at.instants.0"),
        (
            {"kind": "calendar_interval", "days": "1"},
            "calendar_interval.days: Input should be a valid integer",
        ),
        ({"kind": "calendar_interval", "days": 10**30}, "calendar_interval.days|at most 100 years"),
        ({"kind": "calendar_interval", "days": 1, "missing_day": "x"}, "calendar_interval.missing_day"),
        ({"kind": "during", "weekdays": "mon"}, "kind 'during' is a During, not a Trigger"),
        ({"kind": "or", "triggers": []}, "AnyOf has no triggers"),
        ({"kind": "or", "triggers": [EVERY, DURING]}, "or.triggers.1: kind 'during' .*not a Trigger"),
        (
            {"kind": "or", "triggers": [EVERY, {"kind": "fixed_delay", "delay": "PT1S"}]},
            "combines with During only",
        ),
        (
            {"kind": "within", "trigger": EVERY, "during": EVERY},
            "within.during: kind 'every' .*not a DuringSet",
        ),
        (
            {"kind": "within", "trigger": EVERY, "during": {"kind": "during"}},
            "within.during: .* no condition",
        ),
        (
            {"kind": "within", "trigger": {"kind": "every"}, "during": DURING},
            "within.trigger: every.every: Field",
        ),
        (
            {"kind": "or", "triggers": [{**EVERY, "every": f"PT{n}S"} for n in range(1, 200)]},
            "more than 100 parts",
        ),
        ({"kind": "or", "triggers": [EVERY] * 30_000}, "is too large; the limits are 100 parts"),
        (nested(17), "nested deeper than 16 levels"),
        (nested(40), "is too large"),
        (nested(5000), "is too large"),
        ({"kind": "during", "dates": ["2024-01-01"] * 19_000 + ["x"]}, "during.dates.19000"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_from_json_raises_in_bounded_time_when_the_value_is_not_a_trigger(value: Any, reason: str) -> None:
    began = clock.process_time()
    with pytest.raises(ValueError, match=reason) as caught:
        Trigger.from_json(value)
    assert clock.process_time() - began < 2
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | st.just("PT1H"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["kind", "every", "trigger", "triggers", "during", "sets", "expression", "dates", "at"]
            ),
            inner | st.sampled_from([EVERY, DURING]),
            max_size=3,
        )
    ),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(sorted(serialization.registered_kinds)),
    fields=st.dictionaries(st.text(max_size=5), JSON_VALUES) | JSON_VALUES,
    cut=st.integers(0, 200),
)
def test_from_json_returns_a_trigger_or_raises_value_error(kind: str, fields: Any, cut: int) -> None:
    value = {**fields, "kind": kind} if isinstance(fields, dict) else fields
    for given_value in (value, json.dumps(value)[:cut]):
        try:
            assert isinstance(Trigger.from_json(given_value), Trigger)
        except ValueError:
            continue


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(trigger=triggers, data=st.data())
def test_from_json_rejects_or_accepts_a_damaged_trigger(trigger: Trigger, data: st.DataObject) -> None:
    """Replace one value anywhere in a valid trigger."""
    value = trigger.to_json()
    place: Any = value
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
            place = place[key]
        else:
            place[key] = data.draw(JSON_VALUES)
            break
    try:
        found = Trigger.from_json(value)
    except ValueError:
        return
    assert Trigger.from_json(found.to_json()) == found


# -- kinds of other modules ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lunar(Trigger):
    """Fires at full moon."""

    days_late: int = 0
    json: tuple[Decimal, ...] = ()
    inner: Trigger | None = None

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime:
        month = timedelta(days=29, hours=12, minutes=44, seconds=3)
        full = datetime(2000, 1, 21, 4, 41, tzinfo=UTC) + timedelta(days=self.days_late)
        return full + ((instant - full) // month + 1) * month


def test_custom_trigger_combines_and_has_json() -> None:
    trigger_kind("lunar")(Lunar)
    trigger = Lunar(1, (Decimal("1.5"),), Every(hours=1)) & During(weekdays="fri")
    stored = json.dumps(trigger.to_json())
    assert json.loads(stored)["trigger"] == {
        "kind": "lunar",
        "days_late": 1,
        "json": ["1.5"],
        "inner": {"kind": "every", "every": "PT1H"},
    }
    assert Trigger.from_json(stored) == trigger
    assert kinds_of(trigger) == {"within", "lunar", "during", "every"}
    assert [fire.weekday() for fire in trigger.upcoming(3, after=START)] == [4, 4, 4]
    with pytest.raises(ValueError, match=r"lunar\.phase: Extra inputs are not permitted"):
        Trigger.from_json({"kind": "lunar", "phase": "new"})


def test_unknown_kind_is_reported_when_it_is_nested() -> None:
    trigger_kind("lunar")(Lunar)
    stored = (Every(hours=1) | Lunar()) & During(weekdays="fri")
    value = stored.to_json()
    del serialization._KINDS["lunar"]
    with pytest.raises(
        UnknownKindError, match="unknown trigger kind 'lunar'; import the module that registers"
    ) as caught:
        Trigger.from_json(value)
    assert caught.value.kind == "lunar"
    with pytest.raises(ValueError, match=r"Lunar has no kind; register it with @trigger_kind"):
        Lunar().to_json()


def test_kind_can_be_registered_again_when_its_module_is_reloaded() -> None:
    trigger_kind("lunar")(Lunar)
    again: Any = dataclass(frozen=True)(
        type("Lunar", (Trigger,), {"__module__": __name__, "next_after": Lunar.next_after})
    )
    assert trigger_kind("lunar")(again) is again
    assert type(Trigger.from_json({"kind": "lunar"})) is again


def unregistrable() -> Iterator[tuple[str, Any, str]]:
    class Plain(Trigger):
        def next_after(self, instant: datetime, *, anchor: datetime) -> datetime:
            return instant

    @dataclass
    class Mutable(Trigger):
        def next_after(self, instant: datetime, *, anchor: datetime) -> datetime:
            return instant

    @dataclass(frozen=True)
    class Abstract(Trigger):
        pass

    @dataclass(frozen=True)
    class Alien:
        pass

    @dataclass(frozen=True)
    class HasKind(Trigger):
        kind: str = "x"  # type: ignore[misc]

        def next_after(self, instant: datetime, *, anchor: datetime) -> datetime:
            return instant

    @dataclass(frozen=True)
    class Lost(Trigger):
        what: "Missing" = field()  # type: ignore[name-defined]  # noqa: F821, UP037

        def next_after(self, instant: datetime, *, anchor: datetime) -> datetime:
            return instant

    yield "lunar", Plain, r"Plain is not a frozen dataclass; put @dataclass\(frozen=True\) below"
    yield "lunar", Mutable, "Mutable is not a frozen dataclass"
    yield "lunar", type("Derived", (Lunar,), {}), "Derived is not a frozen dataclass"
    yield "lunar", Abstract, r"Abstract is abstract; define next_after\(\)"
    yield "lunar", Alien, "Alien is not a trigger; derive it from pg_scheduler.triggers.Trigger"
    yield "lunar", HasKind, "has a field 'kind', which is a key of the JSON; rename it"
    yield "lunar", Lost, "has a field of an unknown type: name 'Missing' is not defined; import it"
    yield "cron", Lunar, "kind 'cron' already belongs to .*Cron; choose another for .*Lunar"
    yield "Lunar", Lunar, "kind 'Lunar' is invalid; write 1 to 64 lower-case letters"
    yield "", Lunar, "kind '' is invalid"
    yield "x" * 65, Lunar, "is invalid"
    yield None, Lunar, "kind None is invalid"  # type: ignore[misc]


@each_case(("kind", "cls", "reason"), [*unregistrable()], ids=lambda value: getattr(value, "__name__", ""))
def test_trigger_kind_raises_when_the_class_is_unsuitable(kind: str, cls: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        trigger_kind(kind)(cls)


class Thing:
    """No pydantic type."""


@dataclass(frozen=True)
class Opaque(Trigger):
    """Has a field that JSON cannot carry."""

    what: Thing | None = None

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime:
        return instant + timedelta(days=1)


def test_field_that_json_cannot_carry_is_reported() -> None:
    trigger_kind("opaque")(Opaque)
    with pytest.raises(
        ValueError, match=r"Opaque has a field that JSON cannot carry: .*; use types that pydantic"
    ):
        Opaque().to_json()


@dataclass(frozen=True)
class Doubling(Trigger):
    """Computes with its fields, and does not check them."""

    exponent: int
    unit: int | None = None

    def __post_init__(self) -> None:
        timedelta(days=2**self.exponent, seconds=self.unit)  # type: ignore[arg-type] # it is not checked

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime:
        return instant + timedelta(days=2**self.exponent)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"exponent": 64, "unit": 1}, "doubling: .*too large"), ({"exponent": 1}, "doubling: .*NoneType")],
)
def test_error_of_a_constructor_that_checks_nothing_is_reported_as_an_invalid_value(
    fields: dict[str, int], reason: str
) -> None:
    trigger_kind("doubling")(Doubling)
    assert Trigger.from_json({"kind": "doubling", "exponent": 3, "unit": 1}) == Doubling(3, 1)
    with pytest.raises(ValueError, match=reason):
        Trigger.from_json({"kind": "doubling", **fields})


class Request(BaseModel):
    """A request of a web application."""

    trigger: Trigger
    hours: DuringSet | None = None


def test_pydantic_models_accept_and_produce_triggers() -> None:
    request = Request.model_validate_json('{"trigger": {"kind": "cron", "expression": "@daily"}}')
    assert request.trigger == Cron("@daily")
    assert Request(trigger=Cron("@daily"), hours=During(weekdays="mon")).model_dump(mode="json") == {
        "trigger": {"kind": "cron", "expression": "@daily", "timezone": "UTC"},
        "hours": {"kind": "during", "weekdays": "mon", "timezone": "UTC"},
    }
    with pytest.raises(ValidationError, match="has '61' as minute"):
        Request.model_validate({"trigger": {"kind": "cron", "expression": "61 * * * *"}})
    with pytest.raises(ValidationError, match="not a Trigger"):
        Request.model_validate({"trigger": {"kind": "during", "weekdays": "mon"}})
    schema = Request.model_json_schema()["properties"]["trigger"]
    assert schema["required"] == ["kind"]
