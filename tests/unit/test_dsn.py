"""Whatever a password contains, a DSN is read as it was meant, or rejected without its parts."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pg_scheduler.base.dsn import check_dsn, mask_dsn, passwords_in
from pg_scheduler.base.dsn_options import NAMES
from pg_scheduler.errors import ConfigurationError
from tests.support.inside import normalise_dsn

passwords = st.text("@:/?#[]%&=,+ \\'\"é℀0123456789abcXYZ", min_size=1, max_size=20)
"""Texts of the characters that have a meaning in a URL, and others."""

MASKED = "postgresql://me:***@db.example:5432/shop?sslmode=require"


def rejection(dsn: str) -> str | None:
    try:
        normalise_dsn(dsn, "dsn")
    except ConfigurationError as error:
        return str(error)
    return None


@given(passwords)
def test_dsn_with_a_raw_password_is_masked_or_rejected_without_its_parts(password: str) -> None:
    dsn = f"postgresql://me:{password}@db.example:5432/shop?sslmode=require"
    message = rejection(dsn)
    assert rejection(dsn.replace("postgresql", "postgresql+asyncpg")) == message
    if message is None:
        assert mask_dsn(normalise_dsn(dsn, "dsn")) == MASKED
        assert password in passwords_in(dsn)
    else:
        specials = "".join(sorted({each for each in password if each in "@/?#[]"}))
        assert message == rejection(f"postgresql://me:{specials or password}@other/db")
        assert "db.example" not in message


@given(passwords)
def test_dsn_with_an_encoded_password_is_accepted(password: str) -> None:
    encoded = quote(password, safe="")
    plain = f"postgresql://me:{encoded}@db.example:5432/shop?sslmode=require"
    for dsn in (plain, plain.replace("postgresql", "postgresql+asyncpg")):
        checked = normalise_dsn(dsn, "dsn")
        assert checked == plain
        assert mask_dsn(checked) == MASKED
        assert password in passwords_in(checked)
    option = check_dsn(f"postgresql:///shop?password={encoded}", "dsn")
    assert mask_dsn(option) == "postgresql:///shop?password=***"
    assert password in passwords_in(option)


@pytest.mark.parametrize("options", ["user=u;password=hunter2", "sslmode=require;password=hunter2&user=u"])
def test_option_after_a_semicolon_is_rejected_and_masked(options: str) -> None:
    dsn = f"postgresql://db/shop?{options}"
    with pytest.raises(ConfigurationError, match=r"^dsn has a semicolon in its options; separate them by &"):
        check_dsn(dsn, "dsn")
    assert "hunter2" not in mask_dsn(dsn)
    assert passwords_in(dsn) == ["hunter2"]


@pytest.mark.parametrize(
    "option", ["passwort", "PASSWORD", "pasword2", "pwd", "oauth_client_secret", "mistake"]
)
def test_value_of_an_option_that_may_be_a_password_is_masked(option: str) -> None:
    dsn = f"postgresql://me@db/shop?{option}=hunter2&sslmode=require"
    assert mask_dsn(dsn) == f"postgresql://me@db/shop?{option}=***&sslmode=require"
    assert passwords_in(dsn) == ([] if option == "mistake" else ["hunter2"])


def test_values_of_known_options_are_shown_unless_they_are_passwords() -> None:
    secrets = {"oauth_client_secret", "password", "scram_client_key", "scram_server_key", "sslpassword"}
    for option in NAMES:
        dsn = f"postgresql://me@db/shop?{option}=hunter2"
        assert ("hunter2" in mask_dsn(dsn)) == (option not in secrets)
        assert passwords_in(dsn) == (["hunter2"] if option in secrets else [])


def is_url(dsn: str) -> bool:
    """Return whether Python reads it, as asyncpg does: newer versions accept brackets at the start only."""
    try:
        return bool(urlsplit(dsn))
    except ValueError:
        return False


SEVERAL_HOSTS = "postgresql://me:a:b@one:5432,[::1]:5433,three/x"
ONLY_AS_URL = pytest.mark.skipif(not is_url(SEVERAL_HOSTS), reason="this Python does not read it as a URL")


@pytest.mark.parametrize(
    "dsn",
    [
        "postgres://h/x",
        "postgresql:///x?host=/run/postgresql&port=5433",
        "postgresql://me@/x?host=/run/postgresql",
        "postgresql://me@%2Frun%2Fpostgresql/x",
        "postgresql://me:a:b@one:5432,two:5433,three/x",
        pytest.param(
            SEVERAL_HOSTS, marks=pytest.mark.skipif(not is_url(SEVERAL_HOSTS), reason="it is no URL here")
        ),
        "postgresql://[::1]/x",
    ],
)
def test_dsn_in_any_form_that_asyncpg_reads_is_returned_as_it_is(dsn: str) -> None:
    assert check_dsn(f" {dsn}\n", "dsn") == dsn
