"""The registered name that is most similar to an unregistered one."""

from __future__ import annotations

import pytest

from pg_scheduler.jobs.naming import (
    MAX_COMPARED_LENGTH,
    MAX_COMPARED_NAMES,
    likely_new_name,
    most_similar,
)
from tests.support.cases import each_case

NAMES = ["send_mail", "shop.mail.send_mail", "shop.reports.build", "shop.stock.count"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("shop.mail.sned_mail", "shop.mail.send_mail"),
        ("old.place.of.build", "shop.reports.build"),  # the module was renamed
        ("shop.mial.send_mail", "shop.mail.send_mail"),  # not send_mail
        ("count", "shop.stock.count"),
        ("entirely.different", None),
        ("x" * (MAX_COMPARED_LENGTH + 1), None),
        ("", None),
    ],
)
def test_most_similar_returns_the_name_that_was_probably_meant(name: str, expected: str | None) -> None:
    assert most_similar(name, NAMES) == expected


def test_most_similar_compares_a_bounded_number_of_short_names() -> None:
    long = "shop.mail.sned_mail".ljust(MAX_COMPARED_LENGTH + 1, "x")
    assert most_similar("shop.mail.sned_mail", [long]) is None
    assert (
        most_similar("shop.mail.sned_mail", [*["other"] * MAX_COMPARED_NAMES, "shop.mail.send_mail"]) is None
    )


@each_case(
    ("name", "names", "expected"),
    [
        ("shop.sendmail", NAMES, None),
        ("shop.mail.sned_mail", NAMES, "shop.mail.send_mail"),
        ("store.mail.send_mail", NAMES, "shop.mail.send_mail"),  # the package was renamed
        ("shop.mail.send_mails", NAMES, "shop.mail.send_mail"),
        ("fraud.score", ["transcode", "media.transcode"], None),
        ("billing.run", ["etl.run"], None),
        ("billing.charge", ["billing.invoice"], None),
        ("", NAMES, None),
        ("x", [], None),
    ],
)
def test_likely_new_name_is_a_very_similar_one(name: str, names: list[str], expected: str | None) -> None:
    assert likely_new_name(name, names) == expected
