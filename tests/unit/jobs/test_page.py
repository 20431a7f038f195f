"""A page is a list that shows where the following page begins."""

from __future__ import annotations

import copy
import pickle

from pg_scheduler import Page


def test_page_is_a_list_with_the_position_of_the_following_page() -> None:
    page = Page(["a", "b"], next="b")
    assert page == ["a", "b"]
    assert isinstance(page, list)
    assert (page.next, Page().next, Page()) == ("b", None, [])


def test_page_keeps_its_position_when_it_is_copied_or_pickled() -> None:
    page = Page(["a"], next="a")
    copies = [copy.copy(page), copy.deepcopy(page), pickle.loads(pickle.dumps(page))]
    assert [each.next for each in copies] == ["a"] * 3
