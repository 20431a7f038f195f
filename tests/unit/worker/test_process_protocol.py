"""Exceptions and log records that pass from one process to another."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from pg_scheduler.base.foreign import class_path
from pg_scheduler.jobs.history import exception_entry
from pg_scheduler.jobs.outcome import describe
from pg_scheduler.jobs.retry import Retry, delay_of, reason_of, retry_of
from pg_scheduler.worker.runners.protocol import (
    RemoteError,
    claim_from,
    claim_to,
    error_from,
    error_to,
    record_from,
    record_to,
)
from tests.support.inside import Claim


class Sealed(LookupError):
    def __init_subclass__(cls) -> None:
        raise TypeError("no subclasses")


class Demanding(ValueError):
    def __new__(cls, number: int) -> Demanding:
        return super().__new__(cls, number)


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (ValueError("no"), ValueError),
        (ValueError(), ValueError),
        (ConnectionResetError(104, "reset"), OSError),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), UnicodeDecodeError),
        (Sealed("sealed"), LookupError),
        (Demanding(5), ValueError),
    ],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
def test_error_keeps_its_description_and_a_class_that_is_loaded(
    error: Exception, base: type[Exception]
) -> None:
    found = error_from(error_to(error))
    assert isinstance(found, RemoteError)
    assert isinstance(found, base)
    assert (describe(found), class_path(found)) == (describe(error), class_path(error))
    assert type(error).__name__ in str(found.__cause__)


class Later(Retry):
    @property
    def delay(self) -> timedelta:
        raise OSError("it asks a service that only the other process reaches")


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except type(error) as found:
        return found


@pytest.mark.parametrize(
    "error",
    [
        raised(Retry(3600)),
        raised(Later(3600)),
        raised(Retry(5), raised(ValueError("no"))),
        raised(Retry(5), raised(Retry(6))),
        raised(Retry(5), raised(Retry(6), raised(ValueError("no")))),
        ExceptionGroup("calls", [raised(Retry(3600)), raised(Retry(60))]),
    ],
    ids=describe,
)
def test_retry_keeps_its_delay_and_its_reason(error: Exception) -> None:
    found = error_from(error_to(error))
    (sent, received) = (retry_of(each) for each in (error, found))
    assert sent is not None
    assert received is not None
    assert delay_of(received) == delay_of(sent)
    for reason in (found, reason_of(found), reason_of(reason_of(found))):
        assert describe(reason) == describe(error)
        entry = json.loads(exception_entry("error", reason))
        assert entry["error_type"] == json.loads(exception_entry("error", error))["error_type"]
        assert "in raised" in entry["traceback"], "that of the other process"


def test_group_keeps_its_leaves_with_their_descriptions() -> None:
    leaves = [ValueError("a"), Demanding(5)]
    group = error_from(error_to(ExceptionGroup("calls", [leaves[0], ExceptionGroup("inner", [leaves[1]])])))
    assert isinstance(group, ExceptionGroup)
    assert [describe(leaf) for leaf in group.exceptions] == [describe(leaf) for leaf in leaves]
    assert all(isinstance(leaf, RemoteError) for leaf in group.exceptions)
    assert "inner" in str(group.__cause__)


def test_error_of_a_class_that_is_not_loaded_is_one_of_its_nearest_base(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = error_to(Demanding(5))
    monkeypatch.delitem(sys.modules, __name__)
    found = error_from(values)
    assert isinstance(found, ValueError)
    assert not isinstance(found, Demanding)
    assert class_path(found) == f"{__name__}.Demanding"
    assert isinstance(error_from({**values, "classes": []}), RemoteError)


def test_claim_is_equal_after_the_way_to_another_process() -> None:
    due = datetime(2030, 1, 1, 9, tzinfo=UTC)
    claim = Claim("id", "name", "function", 3, due, "{}", 5, 0, 0, None, None)
    assert claim_from(claim_to(claim)) == claim


def test_log_record_keeps_its_message_and_traceback() -> None:
    try:
        raise ValueError("no")  # noqa: TRY301 - its traceback is the subject
    except ValueError:
        record = logging.LogRecord("app", 30, "file.py", 7, "%s, %d", ("a", 5), sys.exc_info(), "func")
    found = record_from(record_to(record))
    assert (found.name, found.getMessage(), found.lineno, found.funcName) == ("app", "a, 5", 7, "func")
    assert found.exc_text is not None
    assert found.exc_text.endswith("ValueError: no")
    text = logging.Formatter().format(found)
    assert text.startswith("a, 5\nTraceback")
    assert text.count("ValueError: no") == 1


def test_log_record_keeps_its_exception() -> None:
    try:
        raise KeyError("k")  # noqa: TRY301 - its traceback is the subject
    except KeyError:
        record = logging.LogRecord("app", 30, "file.py", 7, "no", (), sys.exc_info(), "func")
    restored_record = record_from(json.loads(json.dumps(record_to(record))))
    assert restored_record.exc_info is not None
    kind, error, _ = restored_record.exc_info
    assert kind is type(error)
    assert isinstance(error, KeyError)
    assert 'raise KeyError("k")' in str(error.__cause__)
    # A formatter of the application formats the exception itself.
    text = logging.Formatter().formatException(restored_record.exc_info)
    assert 'raise KeyError("k")' in text


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError("no")


def test_log_record_has_what_the_application_has_added_and_nothing_else() -> None:
    ring: list[Any] = []
    ring.append(ring)
    added = {
        "order": 7,
        "tags": {"a": [1, None, 0.5]},
        "price": Decimal("4.95"),
        "ring": ring,
        "unprintable": Unprintable(),
    }
    record = logging.makeLogRecord({"msg": "charged", "name": "app", **added})
    logging.Formatter("%(asctime)s").format(record)
    restored_record = record_from(json.loads(json.dumps(record_to(record))))
    assert restored_record.__dict__.keys() - logging.makeLogRecord({}).__dict__.keys() == added.keys()
    assert (restored_record.order, restored_record.tags) == (7, {"a": [1, None, 0.5]})  # type: ignore[attr-defined]
    assert (restored_record.price, restored_record.ring) == ("Decimal('4.95')", "[[...]]")  # type: ignore[attr-defined]
    assert restored_record.unprintable == "(repr() of it raised ValueError)"  # type: ignore[attr-defined]


def test_log_record_without_an_exception_has_no_more_of_it_than_before() -> None:
    record = logging.LogRecord("app", 30, "file.py", 7, "no", (), (None, None, None), "func")
    restored_record = record_from(json.loads(json.dumps(record_to(record))))
    assert restored_record.exc_info is None
    assert logging.Formatter().format(restored_record) == logging.Formatter().format(record)
