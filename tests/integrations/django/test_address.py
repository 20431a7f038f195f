"""The DSN of a database in ``DATABASES``."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.support.django import require_tasks
from tests.support.inside import normalise_dsn
from tests.support.transactions import django_address, django_connection

require_tasks()

from django.core.exceptions import ImproperlyConfigured  # noqa: E402 - only where Django is
from django.db import connections  # noqa: E402

from pg_scheduler.integrations.django import address  # noqa: E402
from pg_scheduler.integrations.django.address import dsn_of  # noqa: E402


@pytest.fixture
def settings(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The settings of the connection to the database of this test."""
    connection = django_connection(dsn, "default")
    monkeypatch.setattr(address, "_names_before_tests", {})
    yield connection.settings_dict
    connection.close()


async def answers(statement: str) -> Any:
    opened = await asyncpg.connect(normalise_dsn(dsn_of("default"), "dsn"))
    try:
        return await opened.fetchval(statement)
    finally:
        await opened.close()


async def test_dsn_leads_to_the_database_of_the_connection(settings: dict[str, Any], dsn: str) -> None:
    assert await answers("SELECT current_database()") == settings["NAME"]
    settings["NAME"] = "postgres"  # as the test runner does
    assert await answers("SELECT current_database()") == "postgres"


async def test_empty_values_are_those_of_the_environment(
    settings: dict[str, Any], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, variable in (("HOST", "PGHOST"), ("PORT", "PGPORT"), ("USER", "PGUSER")):
        monkeypatch.setenv(variable, settings[name])
        settings[name] = ""
    assert await answers("SELECT current_database()") == settings["NAME"]


async def test_options_of_libpq_and_of_django_apply(settings: dict[str, Any]) -> None:
    settings["OPTIONS"] = {
        "options": "-c search_path=a,b -c statement_timeout=5s",
        "assume_role": "pg_monitor",
        "sslmode": "disable",
        "pool": True,
        "connect_timeout": 3,
    }
    assert await answers("SELECT current_setting('search_path')") == "a,b"
    assert await answers("SELECT current_user") == "pg_monitor"


@pytest.mark.skipif(
    "service" not in inspect.signature(asyncpg.connect).parameters,
    reason=f"asyncpg {asyncpg.__version__} reads no service files",
)
async def test_service_and_passfile_are_read(
    settings: dict[str, Any], dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = django_address(dsn)
    services = tmp_path / "services"
    services.write_text(
        f"[shop]\nhost={found['HOST']}\nport={found['PORT']}\nuser={found['USER']}\ndbname={found['NAME']}\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    passwords = tmp_path / "passwords"
    passwords.write_text("*:*:*:*:secret\n", encoding="utf-8")
    passwords.chmod(0o600)
    settings |= {"NAME": "", "HOST": "", "PORT": "", "USER": ""}
    settings["OPTIONS"] = {"service": "shop", "passfile": str(passwords)}
    assert await answers("SELECT current_database()") == found["NAME"]


def test_special_characters_are_encoded(settings: dict[str, Any]) -> None:
    settings |= {"USER": "a@b", "PASSWORD": "p:/?#[]@%", "NAME": "shop/ü", "HOST": "db1,db2", "PORT": "1,2"}
    parts = urlsplit(normalise_dsn(dsn_of("default"), "dsn"))
    assert parts.netloc == "a%40b:p%3A%2F%3F%23%5B%5D%40%25@"
    assert (parts.path, parts.query) == ("/shop%2F%C3%BC", "host=db1%2Cdb2&port=1%2C2")


def test_option_without_counterpart_names_the_setting_to_use(settings: dict[str, Any]) -> None:
    settings["OPTIONS"] = {"context": 1}
    with pytest.raises(ImproperlyConfigured, match=r"'context' in DATABASES\['default'\].*OPTIONS\['DSN'\]"):
        dsn_of("default")


def test_option_of_libpq_that_a_worker_cannot_use_is_named(settings: dict[str, Any]) -> None:
    settings["OPTIONS"] = {"gssdelegation": 1}
    with pytest.raises(ImproperlyConfigured, match=r"DATABASES\['default'\].*the option gssdelegation: "):
        dsn_of("default")
    settings["OPTIONS"] = {"gssdelegation": 0, "gssencmode": "disable", "keepalives": 1}
    assert dsn_of("default")


def test_given_dsn_leads_to_the_test_database_in_a_test_run(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = "postgresql://worker@pool:6432/shop_direct?sslmode=require"
    address.remember_names()
    assert dsn_of("default", given) == given
    settings["NAME"] = "test_shop"
    assert dsn_of("default", given) == given.replace("shop_direct", "test_shop")
    assert "default" in connections
    assert os.environ.get("PG_SCHEDULER_DSN") is None
