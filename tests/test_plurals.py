"""A message with a number and a noun says "1 job" of one job.

The scan reads the f-strings and the log templates of the package. A number before a plural noun goes through
``counted()`` or ``plural()``, unless it is a bound, a total after "of", or cannot be 1.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pg_scheduler
from tests.support.source import parsed

PACKAGE: Final = Path(pg_scheduler.__file__).parent

NOUNS: Final = (
    "jobs|times|schedules|workers|rows|seconds|tasks|lines|findings|attempts|retries|keys|entries|errors|days|"
    "signals|names|limits|connections|processes|threads|events|tables|files|steps|functions|minutes|hours|"
    "values|nodes|outcomes|columns|indexes|sessions|tenants|groups|migrations|calls|transactions"
)
WORDS: Final = rf" (?:(?:more|due|other|such|fire|orphaned|one-off|unfinished|dead) ){{0,2}}(?:{NOUNS})\b"
AFTER_NUMBER: Final = re.compile(WORDS)
TEMPLATE: Final = re.compile(rf"%(?:\(\w+\))?[sd]{WORDS}")
BOUND: Final = re.compile(r"[A-Z_.]+[A-Z](\.days)?$")

NEVER_ONE: Final = {
    "{bearer_count} functions": "several have the name",
    "{growth.rows} rows": "of a table of gigabytes",
    "{jobs.BROKEN_ATTEMPTS} attempts": "a constant",
    "{len(failed_attempts)} attempts": "only if there are several",
    "{len(kinds)} schedules": "only if it is not 1",
    "{len(rows)} schedules": "only if there are several",
    "{len(visible_ids)} jobs": "another text has 1",
    "{limit} fire times": "the message asks to raise it",
    "{vacuumed_from} dead rows": "a threshold of a large table",
    "{count} fire times": "more than the limit",
    "{row.schedules} schedules": "many fire at one instant",
    "{seconds} seconds": "more than the maximum",
    "{sum((number for number, _ in additions))} jobs": "of a day that fills a disk",
    "{table.dead} dead rows": "a large part of a table",
    "{table.live} rows": "of a large table",
    "{demand} connections": "more than the server has",
    "{workers} workers": "another text has 1",
    "{file.place(origin)} names": "a verb",
    "{origin} names": "a verb",
    "{name} names": "a verb",
    "{place} names": "a verb",
    "{search_path} names": "a verb",
    "{to} names": "a verb",
}
"""Numbers that are not 1 where the message is made, with the reason."""


def numbers_before_plurals() -> Iterator[tuple[str, str]]:
    """Yield the place, and the number with its noun."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(parsed(path)):
            place = f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from ((place, found[0]) for found in TEMPLATE.finditer(node.value))
            elif isinstance(node, ast.JoinedStr):
                before: ast.expr = ast.Constant("")
                for value, after in zip(node.values, node.values[1:], strict=False):
                    if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
                        number, noun = ast.unparse(value.value), AFTER_NUMBER.match(str(after.value))
                        is_total = isinstance(before, ast.Constant) and str(before.value).endswith(" of ")
                        if noun and not is_total and not BOUND.match(number):
                            yield place, f"{{{number}}}{noun[0]}"
                    before = value if isinstance(after, ast.FormattedValue) else after


def test_no_message_has_one_of_several() -> None:
    mistakes = [(place, text) for place, text in numbers_before_plurals() if text not in NEVER_ONE]
    assert mistakes == [], "use counted() or plural() of pg_scheduler.base.text.numbers"


def test_every_exception_is_used() -> None:
    assert NEVER_ONE.keys() <= {text for _, text in numbers_before_plurals()}
