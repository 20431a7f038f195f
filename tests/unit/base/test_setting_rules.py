"""The values of settings are checked by the annotations of their fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal

import pytest

from pg_scheduler import ConfigurationError
from pg_scheduler.base.setting_rules import at_least, at_most, more_than, not_empty, validated
from tests.support.cases import each_case


@validated(names={"size": "buffer_size"}, secrets={"dsn"})
@dataclass(frozen=True)
class Settings:
    size: Annotated[int, at_least(1), at_most(9)]
    delay: Annotated[float, more_than(0)] | None = None
    mode: Literal["fast", "safe"] = "safe"
    names: tuple[Annotated[str, not_empty], ...] = ()
    labels: dict[str, Any] | None = None
    dsn: str | None = None

    def __post_init__(self) -> None:
        if self.delay is not None and self.delay > self.size:
            raise ValueError(f"delay must be at most the size, not {self.delay}")


new: Any = Settings


@each_case(
    ("build", "message"),
    [
        (lambda: new(0), "buffer_size must be greater than or equal to 1, not 0"),
        (lambda: new(10), "buffer_size must be less than or equal to 9, not 10"),
        (lambda: new(True), "buffer_size must be a valid integer, not True"),
        (lambda: new(1.0), "buffer_size must be a valid integer, not 1.0"),
        (lambda: new(1, delay=0), "delay must be greater than 0, not 0"),
        (lambda: new(1, delay="1"), "delay must be a valid number, not '1'"),
        (lambda: new(1, delay=False), "delay must be a valid number, not False"),
        (lambda: new(1, delay=float("inf")), "delay must be a finite number, not inf"),
        (lambda: new(1, mode="slow"), "mode must be 'fast' or 'safe', not 'slow'"),
        (lambda: new(1, mode=["fast"]), "mode must be 'fast' or 'safe', not ['fast']"),
        (lambda: new(1, names="ab"), "names must be a valid tuple, not 'ab'"),
        (lambda: new(1, names=["a", 5]), "names.1 must be a valid string, not 5"),
        (lambda: new(1, names=["a", ""]), "names.1 must have at least 1 character, not ''"),
        (lambda: new(1, labels=[]), "labels must be a valid dictionary, not []"),
        (lambda: new(1, labels={5: 6}), "labels.5.[key] must be a valid string, not 5"),
        (lambda: new(1, dsn=5), "dsn must be a valid string, not ***"),
        (new, "Settings requires buffer_size="),
        (lambda: new(1, other=2), "other is not a setting of Settings"),
        (lambda: new(1, size=1), "size has two values"),
        (
            lambda: new(1, None, "fast", (), None, None, 7),
            "Settings takes fewer positional settings; remove 7",
        ),
        (
            lambda: new(0, delay=0),
            "buffer_size must be greater than or equal to 1, not 0; delay",
        ),
        (lambda: new(1, delay=2.5), "delay must be at most the size, not 2.5"),
        (lambda: replace(new(1), size=0), "buffer_size must be greater than or equal to 1, not 0"),
    ],
)
def test_invalid_value_is_refused_with_its_name_and_rule(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        build()
    assert str(raised.value).startswith(message)


@each_case("names", [["a"], {"a"}, iter(["a"]), dict.fromkeys("a").keys()])
def test_any_iterable_of_texts_becomes_a_tuple(names: Iterable[str]) -> None:
    assert new(1, names=names).names == ("a",)


def test_values_have_the_types_of_their_fields() -> None:
    settings = new(3, delay=2, labels=MappingProxyType({"a": 1}))
    assert type(settings.delay) is float
    assert type(settings.labels) is dict
    assert settings == Settings(3, 2.0, labels={"a": 1})
