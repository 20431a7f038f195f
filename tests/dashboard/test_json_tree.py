"""Values as trees that fold: their text is JSON, and their size is bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pg_scheduler.dashboard.json_tree import (
    MAX_ITEMS,
    MAX_LENGTH,
    arguments_of,
    arguments_tree,
    json_tree,
)
from pg_scheduler.dashboard.texts import visible
from tests.dashboard.client import Page

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=20),
    lambda parts: st.lists(parts, max_size=5) | st.dictionaries(st.text(max_size=9), parts, max_size=5),
    max_leaves=30,
)


@given(VALUES)
def test_text_of_a_tree_is_its_json(value: Any) -> None:
    tree = json_tree(value)
    assert not tree.is_cut
    assert json.loads(Page(str(tree.html)).text) == value


def test_items_of_args_have_names_that_are_no_part_of_the_text() -> None:
    value = {"args": [113, "card", [1], 4], "kwargs": {"args": [7]}}
    tree = str(json_tree(value, ["account", "<b>", "items"]).html)
    page = Page(tree)
    assert [label["data-name"] for label in page.all("span") if "data-name" in label] == [
        "account", "<b>", "items",
    ]  # fmt: skip
    assert json.loads(page.text) == value
    assert "data-name" not in str(json_tree(value).html)


@given(st.lists(VALUES, max_size=3), st.dictionaries(st.text(max_size=9), VALUES, max_size=3))
def test_arguments_with_names_are_rows_whose_text_is_the_json_of_all(
    args: list[Any], kwargs: dict[str, Any]
) -> None:
    tree = arguments_tree(args, kwargs, ["first", "second", "third", "fourth"])
    page = Page(str(tree.html))
    assert json.loads(page.text) == arguments_of(args, kwargs)
    if args or kwargs:
        names = [label["data-name"] for label in page.all("span") if "data-name" in label]
        assert names == [*["first", "second", "third"][: len(args)], *map(visible, kwargs)]
        assert tree.has_rows


def test_argument_without_a_name_makes_a_tree_of_all() -> None:
    tree = arguments_tree([1, 2], {"note": None}, ["first"])
    assert tree == json_tree({"args": [1, 2], "kwargs": {"note": None}}, ["first"])


def test_large_arguments_with_names_are_cut() -> None:
    tree = arguments_tree(["x" * 900] * 50, {}, [f"name{number}" for number in range(50)])
    assert tree.is_cut
    assert "more" in Page(str(tree.html)).text
    tree = arguments_tree([], {"x" * 100_000: 1}, [])
    assert tree.is_cut
    assert len(tree.html) < 10_000


def test_tree_opens_some_levels_and_states_what_is_folded() -> None:
    value = {"a": {"b": {"c": {"d": [{"e": list(range(40))}]}}}, "rows": [[n] for n in range(90)]}
    page = Page(str(json_tree(value).html))
    assert [(attrs.get("open") is None and "open" not in attrs) for attrs in page.all("details")] == [
        False, False, False, True, True, True, True, True,
    ]  # fmt: skip
    sizes = [attrs["data-size"] for attrs in page.all("summary")]
    assert sizes == [
        "2 keys }",
        "1 key }",
        "1 key }",
        "1 key }",
        "1 item ]",
        "1 key }",
        "40 items ]",
        "90 items ]",
    ]


def test_short_lists_and_objects_are_in_one_line() -> None:
    page = Page(str(json_tree({"tags": ["a", "b"], "none": [], "empty": {"c": None}}).html))
    assert len(page.all("details")) == 1
    assert page.text == '{"tags": ["a", "b"],"none": [],"empty": {"c": null}}'
    assert Page(str(json_tree([1, True]).html)).text == "[1, true]"


@pytest.mark.parametrize(
    "value",
    [
        list(range(5_000)),
        {"rows": [{"number": n, "name": "x" * 50} for n in range(2_000)]},
        "y" * 100_000,
        ["z" * 900] * 100,
    ],
    ids=["items", "objects", "text", "texts"],
)
def test_large_value_is_cut(value: Any) -> None:
    tree = json_tree(value)
    assert tree.is_cut
    assert tree.length == len(json.dumps(value))
    page = Page(str(tree.html))
    assert len(page.text) < MAX_LENGTH + 3_000
    assert len(page.all("div")) <= 2 * (MAX_ITEMS + MAX_LENGTH // 50)
    assert "more" in page.text


def test_hidden_value_is_marked() -> None:
    page = Page(str(json_tree({"card": "[hidden]"}).html))
    assert [attrs["class"] for attrs in page.all("span")] == ["nt", "hidden-value"]


def test_deep_value_ends_in_an_ellipsis() -> None:
    value: Any = 1
    for _ in range(200):
        value = [value, value] if value == 1 else [value]
    assert "…" in Page(str(json_tree(value).html)).text
