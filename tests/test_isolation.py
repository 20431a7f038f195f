"""What one test leaves behind, or the module of another registers, changes no test."""

from __future__ import annotations

from importlib import import_module

import pytest

from pg_scheduler import job
from pg_scheduler.jobs.registry import catalogue
from tests.support.catalogues import modules_of, own_registrations


def test_test_begins_without_the_tasks_of_modules_that_its_own_does_not_import() -> None:
    async def send_parcel() -> None: ...

    send_parcel.__module__ = "tests.elsewhere.test_parcels"
    job(name="elsewhere.send", aliases=["elsewhere.former"])(send_parcel)
    names = {"elsewhere.send", "elsewhere.former", "send_parcel"}
    assert names <= {*catalogue.lists.names}
    with own_registrations(__name__):
        assert not names & {*catalogue.lists.names}
        job(name="elsewhere.send")(send_mail)  # the name is free
    assert names <= {*catalogue.lists.names}


async def send_mail() -> None: ...


def test_module_has_the_tasks_of_the_modules_that_it_imports() -> None:
    import_module("tests.dashboard.test_names")
    assert modules_of("tests.dashboard.test_names") >= {
        "tests.dashboard.test_names",
        "tests.dashboard.test_navigation",
        "tests.support.world",
    }


class Value:
    """A value whose finalizer raises."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __del__(self) -> None:
        raise self.error


def test_finalizer_at_the_recursion_limit_fails_no_test() -> None:
    Value(RecursionError)


@pytest.mark.xfail(strict=True, raises=pytest.PytestUnraisableExceptionWarning)
def test_any_other_error_of_a_finalizer_fails_the_test() -> None:
    Value(ValueError)
