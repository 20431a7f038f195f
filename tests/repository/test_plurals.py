"""A message with a number and a noun says "1 job" of one job.

The scan reads the f-strings, the log templates and the pages of the package. A number before a plural noun
goes through ``counted()`` or ``plural()``, unless it is a bound, a total after "of", or cannot be 1. A number
before a plural verb, as in "1 of 2 slots are free", is found too: such a message leaves the verb out. So is a
number before a text from a variable, which may begin with such a verb.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pg_scheduler
from pg_scheduler.facts.expiry import CAUSES
from tests.support.source import parsed

PACKAGE: Final = Path(pg_scheduler.__file__).parent

NOUNS: Final = (
    "jobs|times|schedules|workers|rows|seconds|tasks|lines|findings|attempts|retries|keys|entries|errors|days|"
    "signals|names|limits|connections|processes|threads|events|tables|files|steps|functions|minutes|hours|"
    "values|nodes|outcomes|columns|indexes|sessions|tenants|groups|migrations|calls|transactions"
)
WORDS: Final = rf" (?:(?:more|due|other|such|fire|orphaned|one-off|unfinished|dead) ){{0,2}}(?:{NOUNS})\b"
AFTER_NUMBER: Final = re.compile(WORDS)
VERBS: Final = "are|were|have|run|drain|wait"
BEFORE_VERB: Final = re.compile(
    rf"(?: \(\w+\))?(?: (?!(?:a|and|as|cannot|must|not|should|that|to|would)\b)[a-z]+){{0,5}} (?:{VERBS})\b"
)
PAGE: Final = re.compile(rf"\{{\{{([^{{}}]*)\}}\}}(?:{WORDS}|(?: [a-z]+){{0,4}} (?:{VERBS})\b)")
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

NO_NUMBERS: Final = {
    *("', '.join(sorted(unregistered_names))", "job_id", "label", "libraries", "name", "on_host(pair.other)"),
    *("schedule_id", "self._claim.job_id", "shown_number", "span", "week_text"),
    *("folder", "home"),
}
"""Names and lists before a verb, whose number does not depend on a value."""

NEVER_ONE_BEFORE_VERBS: Final = {
    "MAX_SCHEDULES": "a constant",
    "MAX_WORKERS": "a constant",
    "SAMPLE": "a constant",
    "bearer_count": "several have the name",
    "fire_count": "the demo has several",
    "len(self._runs)": "as many as there may be",
    "pending": "the demo has hundreds",
}

TEXTS_AFTER_NUMBERS: Final = {
    "cause.text": "a text of CAUSES, which fits one job too",
    "'crash' if job.crash_count == 1 else 'crashes'": "depends on the number",
    "'refused' if noun == 'job' else 'left as they are'": "schedules are not refused one by one",
    "'thing needs' if number == 1 else 'things need'": "depends on the number",
    "name": "an outcome, which is the same for one",
    "noun if changed == 1 else f'{noun}s'": "depends on the number",
    "severity.value": "an adjective",
    "state": "an adjective",
    "unit": "of an age in transactions",
}
"""What follows a number with commas, and why it fits 1."""

NEVER_ONE_ON_PAGES: Final = {
    """ "thread" if attempt.in_thread else "code" """: "no number",
    " page._attempt_count ": "only if it is more than 1",
    ' step.command.count("\\n") + 1 ': "only if there are more than 7",
    " page.release.name | short(40) ": "no number",
    ' given("instants") ': "no number",
    ' given("json") ': "no number",
    ' given("kwargs") ': "no number",
}
"""Values on pages that are no numbers, or not 1."""


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


def values_with_followers() -> Iterator[tuple[str, ast.FormattedValue, list[ast.expr]]]:
    """Yield each value of an f-string with its place and the parts that follow it."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.JoinedStr):
                for index, value in enumerate(node.values):
                    if isinstance(value, ast.FormattedValue):
                        place = f"{path.relative_to(PACKAGE)}:{node.lineno}"
                        yield place, value, node.values[index + 1 :]


def values_before_verbs() -> Iterator[tuple[str, str, str]]:
    """Yield the place, the value, and the words that follow it up to a plural verb."""
    for place, value, followers in values_with_followers():
        follower = followers[0] if followers else None
        if isinstance(follower, ast.Constant) and (words := BEFORE_VERB.match(str(follower.value))):
            yield place, ast.unparse(value.value), words[0]


def texts_after_numbers() -> Iterator[tuple[str, str]]:
    """Yield the place, and what follows a number with commas and a space."""
    for place, value, followers in values_with_followers():
        has_commas = value.format_spec is not None and "," in ast.unparse(value.format_spec)
        is_before_text = len(followers) > 1 and isinstance(followers[1], ast.FormattedValue)
        is_space = bool(followers) and isinstance(followers[0], ast.Constant) and followers[0].value == " "
        if has_commas and is_space and is_before_text:
            yield place, ast.unparse(followers[1].value)  # type: ignore[attr-defined]


def values_on_pages() -> Iterator[tuple[str, str]]:
    """Yield the page, and a value before a plural noun or a plural verb."""
    for path in sorted(PACKAGE.rglob("*.html")):
        text = " ".join(path.read_text(encoding="utf-8").split())
        yield from ((path.name, match[1]) for match in PAGE.finditer(text))


def test_no_message_has_one_of_several() -> None:
    mistakes = [(place, text) for place, text in numbers_before_plurals() if text not in NEVER_ONE]
    assert mistakes == [], "use counted() or plural() of pg_scheduler.base.text.numbers"


def test_every_exception_is_used() -> None:
    assert NEVER_ONE.keys() <= {text for _, text in numbers_before_plurals()}


def test_no_message_has_a_plural_verb_after_one() -> None:
    """ "1 of 2 slots are free" was not found: the number has its noun, and the verb is not compared."""
    exempt_values = NO_NUMBERS | NEVER_ONE_BEFORE_VERBS.keys()
    occurrences = list(values_before_verbs())
    assert [
        (place, value, words) for place, value, words in occurrences if value not in exempt_values
    ] == [], "leave out the verb: 1 of 2 slots free"
    assert exempt_values == {value for _, value, _ in occurrences}


def test_no_text_after_a_number_fits_several_only() -> None:
    """ "1 were due" was not found: the number and the text that follows it are parts of one f-string."""
    occurrences = list(texts_after_numbers())
    assert [(place, text) for place, text in occurrences if text not in TEXTS_AFTER_NUMBERS] == []
    assert TEXTS_AFTER_NUMBERS.keys() == {text for _, text in occurrences}
    assert [text for text in CAUSES.values() if re.match(rf"(?:{VERBS})\b", text)] == []


def test_no_page_has_one_of_several() -> None:
    occurrences = list(values_on_pages())
    assert [(page, value) for page, value in occurrences if value not in NEVER_ONE_ON_PAGES] == []
    assert NEVER_ONE_ON_PAGES.keys() == {value for _, value in occurrences}
