"""Kinds of values, and what becomes of them in each way that a value takes. The documentation has the table,
which ``python3 dev.py renew`` writes.
"""

from __future__ import annotations

import enum
import math
import re
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypeVar
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

from pydantic import (
    VERSION,
    AliasChoices,
    AnyUrl,
    Base64Bytes,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    RootModel,
    SecretBytes,
    SecretStr,
    SerializeAsAny,
    StringConstraints,
    computed_field,
    field_serializer,
    field_validator,
)
from typing_extensions import TypedDict

T = TypeVar("T")
BERLIN = ZoneInfo("Europe/Berlin")

PYDANTIC = tuple(map(int, VERSION.split(".")[:2]))

EQUAL = ""
"""The expectation of a value that arrives as it was sent."""

AS_JSON = "as JSON"
"""The expectation of a signal whose class is no other than JSON has it, as the wait reads it."""

WAYS = ("argument", "result", "step", "signal", "progress")


class Aliased(BaseModel):
    name: str = Field(alias="displayName")


class SerializedBy(BaseModel):
    name: str = Field(default="nobody", serialization_alias="displayName")


class ValidatedBy(BaseModel):
    name: str = Field(default="nobody", validation_alias=AliasChoices("displayName", "name_of"))


class ValidatedByBoth(ValidatedBy):
    model_config = ConfigDict(populate_by_name=True)


class Excluded(BaseModel):
    user: str
    limit: int = Field(default=0, exclude=True)


class Area(BaseModel):
    model_config = ConfigDict(extra="forbid")

    width: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def square(self) -> int:
        return self.width**2


class Patch(BaseModel):
    name: str | None = None
    phone: str | None = None


class Event(BaseModel):
    event_id: UUID = Field(default_factory=uuid4)
    note: str | None = None


class WithDefaultList(BaseModel):
    tags: list[str] = []


class Parsed(BaseModel):
    data: Json[list[int]]


class Base(BaseModel):
    a: int = 1


class Derived(Base):
    b: int = 2


class Holder(BaseModel):
    item: Base


class AsAny(BaseModel):
    item: SerializeAsAny[Base]


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    lives: int = 1


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


class Left(BaseModel):
    size: int = 1


class Right(BaseModel):
    size: int = 1


class Box(BaseModel, Generic[T]):
    item: T


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Text(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: int


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


@dataclass
class Line:
    when: datetime
    amounts: dict[UUID, Decimal] = field(default_factory=dict)


@dataclass
class Computed:
    a: int
    twice: int = field(default=0, init=False)


@dataclass
class Login:
    token: SecretStr


class Blob(BaseModel):
    data: bytes


class Blob64(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    data: bytes


class Delta(BaseModel):
    model_config = ConfigDict(ser_json_timedelta="float")

    delta: timedelta


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    when: datetime
    amount: Decimal


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)

    tags: frozenset[str] = frozenset()


class Measured(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="strings" if PYDANTIC >= (2, 8) else "constants")

    value: float


class Optional(BaseModel):
    value: float | None


class Private(BaseModel):
    a: int
    _note: str = PrivateAttr(default="")


class Locked(BaseModel):
    a: int
    _lock: object = PrivateAttr(default_factory=object)


class Counted(BaseModel):
    """Its validator changes the value whenever it is validated."""

    n: int

    @field_validator("n")
    @classmethod
    def add(cls, n: int) -> int:
        """Return the next number."""
        return n + 1


class Revealed(BaseModel):
    password: SecretStr

    @field_serializer("password")
    def reveal(self, password: SecretStr) -> str:
        """Return the secret."""
        return password.get_secret_value()


class Account(BaseModel):
    password: SecretStr


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


class ByColor(RootModel[dict[int, list[Color]]]): ...


class Opaque:
    """A class without equality."""

    def __init__(self, text: str) -> None:
        self.text = text


OpaqueText = Annotated[
    Opaque, PlainValidator(lambda text: Opaque(str(text))), PlainSerializer(lambda value: value.text)
]


def locked() -> Locked:
    """Return a model with a lock."""
    return Locked(a=1)


def private() -> Private:
    """Return a model with a private attribute that is set."""
    model = Private(a=1)
    model._note = "x"
    return model


def changed_in_place() -> WithDefaultList:
    """Return a model whose default was changed in place."""
    model = WithDefaultList()
    model.tags.append("x")
    return model


def numbers() -> Iterator[int]:
    """Yield two numbers."""
    yield from (1, 2)


@dataclass(frozen=True)
class Kind:
    """A kind of values.

    Attributes:
        name: Its name.
        declared: The type of the parameter, of the return annotation, and of ``kind=``.
        value: A value, or a function that makes it.
        expected: ``EQUAL``, or how the reason of the refusal begins, behind the path of the argument.
        signal: The same for signals, whose declared type the sender does not know; None for ``expected``.
        note: What the table says about it.
        progress: Whether it can be the progress of a job.
        since: The release of pydantic that supports it.
    """

    name: str
    declared: Any
    value: Any
    expected: str = EQUAL
    signal: str | None = None
    note: str = ""
    progress: bool = False
    since: tuple[int, ...] = (2, 7)

    def make(self) -> Any:
        """Return a new value."""
        return self.value() if callable(self.value) else self.value

    def expectation(self, way: str) -> str:
        """Return what is expected of a way."""
        if way == "progress":
            return EQUAL if self.progress else "must be "
        return self.expected if way != "signal" or self.signal is None else self.signal


SECRET = "is a Secret"
KEYS = "has keys of a type that cannot be read from JSON"

KINDS: Sequence[Kind] = (
    Kind("`None`", None, None),
    Kind("`bool`", bool, True),
    Kind("`int`", int, 7, progress=True),
    Kind("`int` of 200 bits", int, 2**200, progress=True),
    Kind("`int` of 5,000 bits", int, 2**5000, "is an int of 5001 bits"),
    Kind("`float`", float, 0.1, progress=True),
    Kind("`float` from 1e16 on", float, 1e23, progress=True, since=(2, 12)),
    Kind(
        "`float` from 1e23 on, as `Any`",
        Any,
        1e23,
        "is a float, and would arrive as a int",
        signal=AS_JSON,
        progress=True,
    ),
    Kind("smallest `float`", float, 5e-324, progress=True),
    Kind("`-0.0`", float, -0.0, note="arrives as `0.0`, which is equal", progress=True),
    Kind("`int` for `float`, up to 2^53", float, 3, note="arrives as `3.0`", progress=True),
    Kind(
        "`int` for `float`, above 2^53",
        float,
        2**53 + 1,
        "is a number that would arrive as 9007199254740992.0",
        signal=AS_JSON,
        progress=True,
        since=(2, 12),
    ),
    Kind("infinity, NaN", float, math.inf, "is inf"),
    Kind("infinity in a model", Optional, Optional(value=math.inf), ".value is inf"),
    Kind('infinity with `ser_json_inf_nan="strings"`', Measured, Measured(value=-math.inf)),
    Kind('NaN with `ser_json_inf_nan="strings"`', Measured, Measured(value=math.nan)),
    Kind("`str`", str, "🧨\u202eabc\u2066"),
    Kind("`str` with NUL", str, "a\x00b", "contains a NUL"),
    Kind("lone surrogate", str, "\ud800", "contains a lone surrogate"),
    Kind("constrained `str`", Annotated[str, StringConstraints(max_length=3)], "abc"),
    Kind("`bytes` of UTF-8", bytes, b"abc"),
    Kind("`bytes` that are not UTF-8", bytes, b"\xff\x00", "is bytes that are not UTF-8"),
    Kind("the same in a model", Blob, Blob(data=b"\xff"), ".data is bytes that are not UTF-8"),
    Kind('the same with `val_json_bytes="base64"`', Blob64, Blob64(data=b"\xff\x00")),
    Kind("`Base64Bytes`", Base64Bytes, b"\xff\x00", signal="is bytes that are not UTF-8"),
    Kind("`Decimal`", Decimal, Decimal("0.10000000000000000000000001")),
    Kind("`Decimal` with zeros", Decimal, Decimal("1.100")),
    Kind("`Fraction`", Fraction, Fraction(1, 3), since=(2, 10)),
    Kind("`complex`", complex, 1 + 2j),
    Kind("`UUID`", UUID, UUID(int=5)),
    Kind("`UUID` for `UUID | str`", UUID | str, UUID(int=5)),
    Kind(
        "text of a UUID for `UUID | str`",
        UUID | str,
        str(UUID(int=5)),
        "is a str, and would arrive as a UUID",
        signal=AS_JSON,
    ),
    Kind("`str` for `int | str`", int | str, "5"),
    Kind("`float` for `int | float`", int | float, 1.0, progress=True),
    Kind("`date`", date, date(2030, 1, 1)),
    Kind("`date` for `date | datetime`", date | datetime, date(2030, 1, 1)),
    Kind("midnight for `date | datetime`", date | datetime, datetime(2030, 1, 1)),  # noqa: DTZ001
    Kind("`datetime`, naive", datetime, datetime(2030, 1, 1, 12)),  # noqa: DTZ001
    Kind("the same with `fold=1`", datetime, datetime(2030, 10, 27, 2, 30, fold=1), "is a datetime that"),  # noqa: DTZ001
    Kind("`datetime` in UTC", datetime, datetime(2030, 1, 1, tzinfo=UTC)),
    Kind(
        "`datetime` in a `ZoneInfo`",
        datetime,
        datetime(2030, 10, 27, 1, 30, tzinfo=BERLIN),
        note="the same instant, with the offset instead of the zone",
    ),
    Kind("the same in a repeated hour", datetime, datetime(2030, 10, 27, 2, 30, fold=1, tzinfo=BERLIN)),
    Kind("`time`", time, time(12, tzinfo=UTC)),
    Kind("`timedelta` of microseconds", timedelta, timedelta(days=1, microseconds=1)),
    Kind("negative `timedelta`", timedelta, timedelta(seconds=-1.5)),
    Kind("`timedelta` as a float", Delta, Delta(delta=timedelta(seconds=1.25))),
    Kind("`ZoneInfo`", ZoneInfo, BERLIN),
    Kind("`Enum`", Color, Color.BLUE),
    Kind("`StrEnum`", Text, Text.RED),
    Kind("`IntEnum`", Level, Level.HIGH, progress=True),
    Kind("member of a `StrEnum` for `str`", str, Text.RED, note="arrives as the text"),
    Kind("`Flag`", Mode, Mode.READ | Mode.WRITE),
    Kind("`Literal`", Literal["a", 1], 1, progress=True),
    Kind("`Path`", Path, Path("/a/b")),
    Kind("IP address, network", IPv4Address | IPv6Network, IPv4Address("127.0.0.1")),
    Kind("`AnyUrl`", AnyUrl, AnyUrl("https://example.org/a?b=1")),
    Kind("pattern", re.Pattern[str], re.compile("a+")),
    Kind("pattern with flags", re.Pattern[str], re.compile("a+", re.IGNORECASE), "is a Pattern that"),
    Kind("`list`", list[int], [3, 1, 2]),
    Kind("`tuple`", tuple[int, str], (1, "a")),
    Kind("`tuple` for `Sequence` or `Any`", Sequence[int], (1, 2), note="arrives as a list"),
    Kind("`set`", set[str], {"b", "a"}, note="sorted in the row"),
    Kind("`set` as `Any`", Any, {1, 2}, "is a set, and would arrive as a list", signal=AS_JSON),
    Kind("`frozenset` in a model", Frozen, Frozen(tags=frozenset({"a", "b"}))),
    Kind("`deque`", deque[int], deque([1, 2])),
    Kind("`Counter`", Counter[str], Counter("aab")),
    Kind("generator for `list`", list[int], numbers, note="read once, when the job is scheduled"),
    Kind("`dict`", dict[str, int], {"bb": 1, "a": 2}, note="in another order"),
    Kind(
        "`OrderedDict` in another order than that of the database",
        OrderedDict[str, int],
        OrderedDict(bb=1, a=2),
        "is an OrderedDict",
    ),
    Kind("`dict` with `int` keys", dict[int, str], {1: "a"}),
    Kind("`dict` with `date` keys", dict[date, int], {date(2030, 1, 1): 1}),
    Kind("`dict` with `UUID` keys", dict[UUID, int], {UUID(int=1): 1}),
    Kind("`dict` with `StrEnum` keys", dict[Text, int], {Text.RED: 1}),
    Kind("`dict` with keys of an enum of numbers", dict[Color, int], {Color.RED: 1}, KEYS),
    Kind("`dict` with `tuple` keys", dict[tuple[int, int], str], {(1, 2): "a"}, KEYS),
    Kind(
        "`dict` with `None` as a key",
        dict[str | None, int],
        {None: 1},
        "is a dict with keys that JSON changes",
        signal=KEYS,
    ),
    Kind("`dict` of sets", dict[str, set[int]], {"a": {2, 1}}),
    Kind("`Mapping`", Mapping[str, Decimal], {"a": Decimal("1.1")}),
    Kind(
        "`dict[str, Any]` with a `Decimal`",
        dict[str, Any],
        {"a": Decimal("1.1")},
        "['a'] is a Decimal, and would arrive as a str",
        signal=AS_JSON,
    ),
    Kind(
        "`datetime` as `Any`",
        Any,
        datetime(2030, 1, 1, tzinfo=UTC),
        "is a datetime, and would arrive as a str",
        signal=AS_JSON,
    ),
    Kind("named tuple", Point, Point(1, 2)),
    Kind("typed dict", Movie, {"title": "Alien"}),
    Kind("dataclass", Line, Line(datetime(2030, 1, 1, tzinfo=UTC), {UUID(int=1): Decimal("1E+3")})),
    Kind("dataclass with `field(init=False)` at its default", Computed, Computed(1)),
    Kind("model", Strict, Strict(when=datetime(2030, 1, 1, tzinfo=UTC), amount=Decimal("1.1"))),
    Kind('model with `extra="allow"`', Extra, Extra.model_validate({"a": [1], "b": "x"})),
    Kind("model that contains itself", Tree, Tree(name="a", children=[Tree(name="b")])),
    Kind("generic model", Box[Decimal], Box[Decimal](item=Decimal("1.10"))),
    Kind(
        "generic model without its parameter", Box, Box(item=Decimal("1.10")), ".item is a Decimal, and would"
    ),
    Kind("root model", ByColor, ByColor({1: [Color.RED]})),
    Kind("alias", Aliased, Aliased(displayName="ann")),
    Kind("`serialization_alias`", SerializedBy, SerializedBy(name="ann")),
    Kind(
        "`validation_alias` alone",
        ValidatedBy,
        ValidatedBy.model_validate({"displayName": "ann"}),
        ".name is lost",
    ),
    Kind("the same with `populate_by_name=True`", ValidatedByBoth, ValidatedByBoth(name="ann")),
    Kind("`Field(exclude=True)` at its default", Excluded, Excluded(user="u")),
    Kind(
        "`Field(exclude=True)` with a value",
        Excluded,
        Excluded(user="u", limit=7),
        ".limit is excluded from JSON",
    ),
    Kind('`computed_field` with `extra="forbid"`', Area, Area(width=2)),
    Kind("which fields are set", Patch, Patch(name="ann"), note="`model_fields_set` arrives"),
    Kind("`default_factory`", Event, Event, note="a field that was not set arrives as set"),
    Kind("default that was changed in place", WithDefaultList, changed_in_place),
    Kind("`Json[...]`", Parsed, Parsed.model_validate({"data": "[1,2]"})),
    Kind(
        "subclass of a model", Base, Derived(b=5), "is a Derived, and would arrive as a Base", signal=AS_JSON
    ),
    Kind(
        "the same in a field",
        Holder,
        Holder(item=Derived(b=5)),
        ".item is a Derived, and would arrive as a Base",
    ),
    Kind(
        "`SerializeAsAny`", AsAny, AsAny(item=Derived(b=5)), ".item is a Derived, and would arrive as a Base"
    ),
    Kind("union with a discriminator", Pet, Dog()),
    Kind("list of such a union", list[Pet], [Dog(), Cat(lives=3)]),
    Kind("union of models by a `Literal`", Cat | Dog, Dog(lives=4)),
    Kind(
        "union of models with equal fields",
        Left | Right,
        Right(size=2),
        "is a Right, and would arrive as a Left",
        signal=AS_JSON,
    ),
    Kind("private attribute with a value", Private, private, "._note is a private attribute"),
    Kind("private attribute that is a lock or a client", Locked, locked, note="made anew"),
    Kind("validator that changes its own result", Counted, Counted(n=1), ".n is a int that"),
    Kind(
        "class without `==`, with a serializer",
        OpaqueText,
        Opaque("a"),
        note="not compared",
        signal="cannot be serialized by pydantic",
    ),
    Kind("`SecretStr`", SecretStr, SecretStr("swordfish"), "is a SecretStr, which JSON shows as asterisks"),
    Kind("`SecretBytes`", SecretBytes, SecretBytes(b"swordfish"), "is a SecretBytes, which"),
    Kind(
        "`SecretStr` in a model", Account, Account(password=SecretStr("x")), ".password is a SecretStr, which"
    ),
    Kind("the same in a dataclass", Login, Login(SecretStr("x")), ".token is a SecretStr, which"),
    Kind("the same with a serializer that reveals it", Revealed, Revealed(password=SecretStr("x"))),
)


def table() -> str:
    """Return the table of the documentation."""
    rows = ["| Value | Argument, result, step | Signal | Progress | |", "|---|---|---|---|---|"]
    for kind in KINDS:
        cells = [_cell(kind.expectation(way)) for way in ("argument", "signal", "progress")]
        rows.append(f"| {' | '.join([kind.name, *cells, kind.note])} |")
    return "\n".join(rows) + "\n"


def _cell(expected: str) -> str:
    return "equal" if expected == EQUAL else expected if expected == AS_JSON else "refused"
