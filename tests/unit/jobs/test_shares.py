"""Shares: their checks, and the keys of jobs."""

from __future__ import annotations

from typing import Any

import pytest

from pg_scheduler import ConfigurationError, Share
from pg_scheduler.jobs.keys import KeyFunctionError
from pg_scheduler.jobs.shares import check_share, share_key, share_of


def first(tenant: Any, **_: Any) -> Any:
    return tenant


@pytest.mark.parametrize("name", ["", "a:b", "x" * 201])
def test_share_rejects_a_name_that_no_text_can_hold(name: str) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        Share(name, key=first)


@pytest.mark.parametrize("key", [None, 7, "tenant"])
def test_share_rejects_a_key_that_is_no_function(key: Any) -> None:
    with pytest.raises(TypeError, match="key=lambda tenant"):
        Share(key=key)


def test_share_rejects_a_coroutine_function() -> None:
    async def key(_tenant: str) -> str:
        return ""

    with pytest.raises(TypeError, match="cannot await"):
        Share(key=key)  # type: ignore[arg-type] # that is what is tested


def test_check_share_rejects_other_objects_with_the_remedy() -> None:
    share = Share(key=first)
    assert check_share(share) is share
    with pytest.raises(TypeError, match=r"write share=Share\(key="):
        check_share(first)


@pytest.mark.parametrize(
    ("tenant", "text"),
    [
        ('"acme"', "share:app.work:acme"),
        ("7", "share:app.work:7"),
        ('"7"', "share:app.work:7"),
        ('"a:b"', "share:app.work:a:b"),
        ('"é"', "share:app.work:\\xe9"),
        ('""', "share:app.work:"),
    ],
)
def test_share_key_is_a_text_that_any_database_stores(tenant: str, text: str) -> None:
    found = share_key(Share(key=first), "app.work", f'{{"args":[{tenant}],"kwargs":{{}}}}')
    assert found == text


def test_tasks_whose_shares_have_one_name_share_tenants() -> None:
    share = Share("exports", key=first)
    assert share_key(share, "a", '{"args":[1]}') == share_key(share, "b", '{"args":[1]}') == "share:exports:1"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("null", "returned a NoneType"),
        ("true", "returned a bool"),
        ("1.5", "returned a float"),
        (f'"{"x" * 201}"', "returned 201 bytes"),
    ],
)
def test_share_key_rejects_values_that_are_no_key(value: str, message: str) -> None:
    with pytest.raises(KeyFunctionError, match=f"the key function of the share 'exports' {message}"):
        share_key(Share("exports", key=first), "app.work", f'{{"args":[{value}]}}')


def test_share_key_rejects_arguments_that_the_function_does_not_accept() -> None:
    with pytest.raises(KeyFunctionError, match="raised TypeError; correct it") as raised:
        share_key(Share(key=first), "app.work", '{"args":[]}')
    assert isinstance(raised.value, ValueError)
    assert isinstance(raised.value.__cause__, TypeError)


def test_share_of_reads_name_and_key() -> None:
    assert share_of("share:exports:a:b") == ("exports", "a:b")
    assert share_of("limit:exports:a") == share_of("after") == share_of(None) == ("", "")
