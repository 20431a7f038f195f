"""No test depends on another one, or on which other test modules the process has loaded."""

from __future__ import annotations

import pytest

from pg_scheduler import job
from tests.dashboard import test_names
from tests.support.catalogues import modules_of, own_registrations
from tests.support.inside import catalogue


async def send_mail() -> None: ...


def test_tasks_of_a_module_that_is_not_imported_are_hidden() -> None:
    async def send_parcel() -> None: ...

    send_parcel.__module__ = "tests.elsewhere.test_parcels"
    job(name="elsewhere.send", aliases=["elsewhere.former"])(send_parcel)
    names = {"elsewhere.send", "elsewhere.former", "send_parcel"}
    assert names <= {*catalogue.lists.names}
    with own_registrations(__name__):
        assert not names & {*catalogue.lists.names}
        job(name="elsewhere.send")(send_mail)  # the name is free
    assert names <= {*catalogue.lists.names}


def test_modules_of_a_test_are_those_that_its_module_imports_directly_or_through_others() -> None:
    assert modules_of(__name__) >= {
        __name__,
        test_names.__name__,
        "tests.dashboard.test_navigation",  # which that one imports
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
