"""The checks of the settings of a project."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.django import BACKEND, SHOP, require_tasks

require_tasks()
pytestmark = pytest.mark.usefixtures("shop")

from django.core import checks  # noqa: E402 - only where Django is
from django.db import connections  # noqa: E402
from django.test import override_settings  # noqa: E402

from pg_scheduler.integrations.django.backend import all_backends  # noqa: E402


class OrdersElsewhere:
    """A router."""

    def db_for_write(self, model: type, **_: Any) -> str | None:
        return "orders" if model.__name__ == "Order" else None


def found() -> list[tuple[str | None, str]]:
    """Return the messages of the library."""
    messages = checks.run_checks()
    return [(each.id, each.msg) for each in messages if (each.id or "").startswith("pg_scheduler")]


def test_project_without_mistakes_has_no_messages() -> None:
    assert found() == []


def test_model_that_is_written_elsewhere_is_reported() -> None:
    with override_settings(DATABASE_ROUTERS=[f"{__name__}.OrdersElsewhere"]):
        ((code, message),) = found()
    assert code == "pg_scheduler.W001"
    assert message.startswith(
        "models such as shop.Order are written to 'orders', and the jobs of TASKS['default']"
    )


@pytest.mark.parametrize("alias", ["absent", "lite"])
def test_database_that_is_not_postgresql_is_reported(alias: str) -> None:
    engine = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    lite = connections.configure_settings({"default": {}, "lite": engine})
    connections.settings["lite"] = lite["lite"]
    try:
        with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"DATABASE": alias}}}):
            assert [code for code, _ in found()] == ["pg_scheduler.E002"]
    finally:
        del connections.settings["lite"]


def test_search_path_of_tenants_requires_a_schema() -> None:
    engine = connections["default"].settings_dict
    engine["ENGINE"] = "django_tenants.postgresql_backend"
    assert [code for code, _ in found()] == ["pg_scheduler.W002"]
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"SCHEMA": "public"}}}):
        assert found() == []


SENTRY = "pg_scheduler.integrations.sentry.SentryMiddleware"


@pytest.mark.parametrize(
    ("queues", "options", "codes"),
    [
        (["default", "mail"], {"MIDDLEWARE": [SENTRY]}, ["pg_scheduler.W003"]),
        ([], {"MIDDLEWARE": [SENTRY]}, ["pg_scheduler.W003"]),
        (["mail"], {"MIDDLEWARE": [SENTRY]}, []),
        (["default"], {"MAX_RETRIES": 3}, []),
        (["default"], {"MIDDLEWARE": [SENTRY], "SCHEMA": "other"}, []),
    ],
)
def test_backends_that_share_queues_and_differ_in_extensions_are_reported(
    queues: list[str], options: dict[str, Any], codes: list[str]
) -> None:
    tasks = {
        "default": {"BACKEND": BACKEND, "QUEUES": ["default"]},
        "traced": {"BACKEND": BACKEND, "QUEUES": queues, "OPTIONS": options},
    }
    with override_settings(TASKS=tasks):
        messages = found()
    assert [code for code, _ in messages] == codes
    assert all(message.startswith("TASKS['default'] and TASKS['traced']") for _, message in messages)


def test_missing_application_is_an_error() -> None:
    from pg_scheduler.integrations.django import Backend

    with override_settings(INSTALLED_APPS=[SHOP]):
        (error,) = Backend("default", {}).check()
    assert error.id == "pg_scheduler.E001"
    assert "INSTALLED_APPS" in (error.hint or "")


def test_other_backend_that_cannot_be_imported_does_not_stop_the_check() -> None:
    tasks = {"default": {"BACKEND": BACKEND}, "missing": {"BACKEND": "does.not.exist"}}
    with override_settings(TASKS=tasks):
        assert [backend.alias for backend in all_backends()] == ["default"]
