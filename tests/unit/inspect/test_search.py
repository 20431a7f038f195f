"""The parser of searches: each term, each mistake with its position, and no other error for any text."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pg_scheduler import JobPriority, JobStatus, SchedulerError
from pg_scheduler.inspect import Search, SearchError, parse_search
from pg_scheduler.inspect.search.conditions import conditions_of
from pg_scheduler.inspect.search.parser import FIELDS
from pg_scheduler.inspect.search.terms import (
    JsonTerm,
    NumberField,
    NumberSpan,
    NumberTerm,
    Pattern,
    PriorityTerm,
    SearchStatus,
    StatusTerm,
    Term,
    TextField,
    TextTerm,
    TimeField,
    TimeSpan,
    TimeTerm,
)
from pg_scheduler.inspect.search.values import MAX_TERMS, MAX_VALUES
from pg_scheduler.inspect.search.words import MAX_LENGTH
from pg_scheduler.inspect.store.searches import load_search
from tests.support.cases import each_case

NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")
HOUR = timedelta(hours=1)


def parse(text: str, tz: tzinfo | None = BERLIN) -> tuple[Term, ...]:
    return parse_search(text, now=NOW, tz=tz).terms


def mistake(text: str, tz: tzinfo | None = BERLIN) -> SearchError:
    with pytest.raises(SearchError) as caught:
        parse(text, tz)
    return caught.value


def exact(text: str) -> Pattern:
    return Pattern(text, text)


def part(text: str) -> Pattern:
    return Pattern(f"%{text}%", text, is_part=True)


def words(*patterns: Pattern, is_negated: bool = False) -> TextTerm:
    return TextTerm(TextField.WORDS, patterns, is_negated)


def name(*patterns: Pattern) -> TextTerm:
    return TextTerm(TextField.NAME, patterns)


def attempts(*spans: tuple[int | None, int | None]) -> NumberTerm:
    return NumberTerm(NumberField.ATTEMPT, tuple(NumberSpan(*span) for span in spans))


@each_case(
    ("text", "term"),
    [
        ("status:failed", StatusTerm(frozenset({SearchStatus.FAILED}))),
        ("-status:due,Blocked", StatusTerm(frozenset({SearchStatus.DUE, SearchStatus.BLOCKED}), True)),
        ("priority:high,LOW", PriorityTerm(frozenset({JobPriority.HIGH, JobPriority.LOW}))),
        ("name:mail.send", name(exact("mail.send"))),
        ("NAME:mail.*", name(Pattern("mail.%", None))),
        ("name:a,b*", name(exact("a"), Pattern("b%", None))),
        ("name:~a,b", name(part("a"), part("b"))),
        ("name:~a,~b", name(part("a"), part("b"))),
        ("name:a,~b", name(exact("a"), part("b"))),
        ("name:100%_\\", name(Pattern("100\\%\\_\\\\", "100%_\\"))),
        ("id:mail:1", TextTerm(TextField.ID, (exact("mail:1"),))),
        ("limit:stripe:42", TextTerm(TextField.LIMIT, (exact("stripe:42"),))),
        ("worker:a1", TextTerm(TextField.WORKER, (exact("a1"),))),
        ("schedule:r", TextTerm(TextField.SCHEDULE, (exact("r"),))),
        ("tag:x", TextTerm(TextField.TAG, (exact("x"),))),
        ('error:~"not found"', TextTerm(TextField.ERROR, (part("not found"),))),
        ("arg.user.id:42", JsonTerm(("kwargs", "user", "id"), (exact("42"),))),
        ("arg.0:ada", JsonTerm(("args", "0"), (exact("ada"),))),
        ("arg.00:ada", JsonTerm(("kwargs", "00"), (exact("ada"),))),
        ("-ARG.To:*@x", JsonTerm(("kwargs", "To"), (Pattern("%@x", None),), True)),
        ('metadata."a.b":c', JsonTerm(("metadata", "a.b"), (exact("c"),))),
        ("attempt:2", attempts((2, 2))),
        ("attempt:>2,<=1", attempts((3, None), (None, 1))),
        ("attempt:>=2,<1", attempts((2, None), (None, 0))),
        ("attempt:2..5,..1,9..", attempts((2, 5), (None, 1), (9, None))),
        ("crashed:yes", NumberTerm(NumberField.CRASHED, (NumberSpan(1, None),))),
        ("crashed:no", NumberTerm(NumberField.CRASHED, (NumberSpan(None, 0),))),
        ("crashed:>1", NumberTerm(NumberField.CRASHED, (NumberSpan(2, None),))),
        ("mail", words(part("mail"))),
        ("-mail,post", words(part("mail"), part("post"), is_negated=True)),
        ("~mail", words(part("mail"))),
        ("a*b", words(Pattern("%a%b%", None, is_part=True))),
        ('"-mail: *,"', words(part("-mail: *,"))),
        ('"a\\"b\\\\c"', words(Pattern('%a"b\\\\c%', 'a"b\\c', is_part=True))),
        ('a" "b', words(part("a b"))),
    ],
)
def test_parse_search_reads_each_kind_of_term(text: str, term: Term) -> None:
    assert parse(text) == (term,)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@each_case(
    ("value", "since", "until"),
    [
        ("<-1h", None, NOW - HOUR),
        (">-1h", NOW - HOUR, None),
        ("<=now", None, NOW),
        (">=+1d2h", NOW + 26 * HOUR, None),
        ("-2h..-1h", NOW - 2 * HOUR, NOW - HOUR),
        ("-1w..", NOW - timedelta(weeks=1), None),
        ("..now", None, NOW),
        ("today", at("2026-11-20T23:00"), at("2026-11-21T23:00")),
        ("<yesterday", None, at("2026-11-19T23:00")),
        (">tomorrow", at("2026-11-22T23:00"), None),
        ("2026-11-20", at("2026-11-19T23:00"), at("2026-11-20T23:00")),
        ("<2026-11-20", None, at("2026-11-19T23:00")),
        ("<=2026-11-20", None, at("2026-11-20T23:00")),
        (">2026-11-20", at("2026-11-20T23:00"), None),
        (">=2026-11-20", at("2026-11-19T23:00"), None),
        ("2026-11-20..21", at("2026-11-19T23:00"), at("2026-11-21T23:00")),
        ("2026-11-20..12-01", at("2026-11-19T23:00"), at("2026-12-01T23:00")),
        ("2026-11-20..2027-01-01", at("2026-11-19T23:00"), at("2027-01-01T23:00")),
        ("2026-11-20Z", at("2026-11-20T00:00"), at("2026-11-21T00:00")),
        ("2026-11-20Z..21", at("2026-11-20T00:00"), at("2026-11-22T00:00")),
        ("2026-11-20-05:00", at("2026-11-20T05:00"), at("2026-11-21T05:00")),
        ("2026-11-20T14:30", at("2026-11-20T13:30"), at("2026-11-20T13:31")),
        ("2026-11-20t14:30:15z", at("2026-11-20T14:30:15"), at("2026-11-20T14:30:16")),
        ('"2026-11-20 14:30"', at("2026-11-20T13:30"), at("2026-11-20T13:31")),
        ("2026-11-20T14:30..15:00", at("2026-11-20T13:30"), at("2026-11-20T14:01")),
        ("2026-11-20T14:30..21T15:00", at("2026-11-20T13:30"), at("2026-11-21T14:01")),
        (
            "2026-11-20T14:30:15.25+0530",
            at("2026-11-20T09:00:15.250"),
            at("2026-11-20T09:00:15.250001"),
        ),
        # The days on which the clocks change have 23 and 25 hours.
        ("2026-03-29", at("2026-03-28T23:00"), at("2026-03-29T22:00")),
        ("2026-10-25", at("2026-10-24T22:00"), at("2026-10-25T23:00")),
    ],
)
def test_parse_search_reads_times(value: str, since: datetime | None, until: datetime | None) -> None:
    assert parse(f"due:{value}") == (TimeTerm(TimeField.DUE, (TimeSpan(since, until),)),)


def test_parse_search_combines_terms_and_alternatives() -> None:
    found = parse("  created:today,<-9d\tmail  finished:>-1h ")
    assert [type(term) for term in found] == [TimeTerm, TextTerm, TimeTerm]
    assert isinstance(found[0], TimeTerm)
    assert len(found[0].spans) == 2
    assert parse(" \n") == ()


@pytest.mark.parametrize("value", ["today", "2026-11-20", "<2026-11-20T14:30", "now..tomorrow"])
def test_parse_search_guesses_no_time_zone(value: str) -> None:
    error = mistake(f"due:{value}", tz=None)
    assert "has no time zone; pass tz=" in str(error)
    for text in ("due:<-1h", "due:2026-11-20Z", "due:2026-11-20T14:30+01:00", "due:..now"):
        assert parse(text, None) == parse(text, timezone(HOUR))


@each_case(
    ("text", "position", "message"),
    [
        ("a stauts:x", 2, "unknown field 'stauts:'"),
        ("account:113", 0, "for an argument, write arg.account:"),
        ("mail:1", 0, 'write it in quotes: "mail:1"'),
        (":x", 0, "the name of the field is missing"),
        ("words:x", 0, "unknown field 'words:'"),
        ("task:x", 0, "did you mean 'name:'?"),
        ("name.x:y", 0, "unknown field 'name.x:'"),
        ("arg:x", 0, "write arg.<name>:<value>"),
        ("arg.:x", 4, "a name is missing in 'arg.'"),
        ("metadata.a..b:x", 11, "a name is missing in 'metadata.a..b'"),
        ("status:faild", 7, "unknown status 'faild'"),
        ("priority:5", 9, "unknown priority '5'"),
        ("name:", 5, "a value is missing"),
        ("name:a,,b", 7, "a value is missing"),
        ("name:~", 6, "a value is missing"),
        ("name:a,~", 8, "a text is missing after '~'"),
        ('worker:""', 9, "a value is missing"),
        ("a -", 3, "a term is missing"),
        ('""', 0, "a term is missing"),
        ('a "b c', 2, "the quote is not closed"),
        ("attempt:x", 8, "'x' is no number"),
        ("attempt:-1", 8, "'-1' is no number"),
        ("attempt:>2147483647", 9, "is no number from 0 to 2147483646"),
        ("attempt:..", 8, "the range has no bound"),
        ("attempt:5..2", 8, "the range ends before it starts"),
        ("attempt:²", 8, "'²' is no number"),
        ("crashed:maybe", 8, "write crashed:yes, no, >1 or 2..5"),
        ("due:-1h", 4, "'-1h' is an instant; write >-1h for later"),
        ("due:1h", 4, "'1h' is no time"),
        ("due:<", 5, "a time is missing"),
        ("due:..", 4, "the range has no bound"),
        ("due:-1h..-2h", 4, "the range ends before it starts"),
        ("due:2026-02-30", 4, "does not exist: day "),
        ("due:2026-11-20..32", 16, "does not exist: day "),
        ("due:2026-11-20T25:00", 4, "does not exist: hour "),
        ("due:2026-11-20T10:00+99:00", 4, "does not exist: offset "),
        ("due:9999-12-31", 4, "is out of range; it must be between 0001-01-02 and 9999-12-30"),
        ("due:0001-01-01", 4, "is out of range; it must be"),
        ("due:<-999999999w", 5, "is out of range; it must be"),
        ("due:٢٠٢٦-11-20", 4, "is no time"),
        ("a\x00b", 1, "a character that no text of the database has"),
        ("a \ud800", 2, "a character that no text of the database has"),
    ],
)
def test_parse_search_reports_the_position_of_a_mistake(text: str, position: int, message: str) -> None:
    error = mistake(text)
    assert (error.position, message in str(error)) == (position, True), str(error)
    assert str(error).endswith(f"(at character {position + 1})")


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("stauts:x", "status:"),
        ("Finishd:x", "finished:"),
        ("metdata.tenant:x", "metadata."),
        ("status:faild", "failed"),
        ("priority:hihg", "high"),
        ("zzz:x", None),
    ],
)
def test_parse_search_suggests_what_was_probably_meant(text: str, suggestion: str | None) -> None:
    error = mistake(text)
    assert error.suggestion == suggestion
    assert ("did you mean" in str(error)) is (suggestion is not None)
    assert isinstance(error, SchedulerError)
    assert isinstance(error, ValueError)


def test_parse_search_bounds_length_terms_and_values() -> None:
    assert mistake("a" * (MAX_LENGTH + 1)).position == MAX_LENGTH
    assert mistake("a " * (MAX_TERMS + 1)).position == 2 * MAX_TERMS
    assert mistake("name:" + "a," * MAX_VALUES + "a").position == 5 + 2 * MAX_VALUES
    assert len(parse("a " * MAX_TERMS)) == MAX_TERMS
    assert parse("name:" + ",".join("a" * MAX_VALUES))


@pytest.mark.slow
@each_case("character", [*'":,.~*-<>=\\ 1a', "..", '""', "1h", "00-", "00:", "-0", ">=", "arg."])
@each_case("prefix", ["", "name:", "due:", "due:<", "arg.", "attempt:", "due:2026-11-20.."])
def test_parse_search_takes_little_time_for_repeated_characters(prefix: str, character: str) -> None:
    text = (prefix + character * MAX_LENGTH)[:MAX_LENGTH]
    before = time.process_time()
    with suppress(SearchError):
        parse(text)
    assert time.process_time() - before < 1


MARKS = st.sampled_from(
    [
        *' -:,."\\~*<>=',
        "..",
        "T",
        "Z",
        "2026-11-20",
        "14:30",
        "+1h",
        "-2d",
        "now",
        "today",
        "5",
        "\x00",
        "\ud800",
    ]
)
FIELD = st.sampled_from([*(f"{field}:" for field in FIELDS), "arg.0.x:", "metadata.a:"])
TEXTS = st.lists(st.one_of(MARKS, FIELD, st.text(max_size=5)), max_size=30).map("".join)
ZONES = st.sampled_from([None, UTC, BERLIN, ZoneInfo("Pacific/Apia"), timezone(timedelta(hours=-23))])
INSTANTS = st.sampled_from([NOW, datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, tzinfo=UTC)])


def parsed(text: str, now: datetime, tz: tzinfo | None) -> Search | SearchError:
    try:
        return parse_search(text, now=now, tz=tz)
    except SearchError as error:
        return error


@given(text=st.one_of(st.text(), TEXTS), tz=ZONES, now=INSTANTS)
def test_any_text_is_parsed_or_rejected_with_a_position_in_it(
    text: str, tz: tzinfo | None, now: datetime
) -> None:
    search = parsed(text, now, tz)
    if isinstance(search, SearchError):
        assert 0 <= search.position <= len(text)
        return
    conditions = conditions_of(search)
    assert len(conditions) == len(search.terms)
    query = load_search("public", "search_newest", tuple((each.name, each.is_negated) for each in conditions))
    assert f"${3 + sum(len(each.values) for each in conditions)}" in query.text
    usual = load_search("public", "search_newest", ()).text
    for each in text.split():
        assert len(each) < 12 or each in usual or each not in query.text, "no part of the text becomes SQL"


@given(st.text(min_size=1).filter(lambda text: not set(text) & {"\x00"} and text.isprintable()))
def test_quoted_text_stands_for_itself(text: str) -> None:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    (term,) = parse(f'name:"{quoted}"')
    assert isinstance(term, TextTerm)
    assert term.patterns[0].literal == text


def test_search_knows_every_status_and_priority() -> None:
    assert {status.value for status in JobStatus} == {each.value for each in SearchStatus} - {
        "due",
        "scheduled",
        "sleeping",
        "awaiting",
        "retrying",
        "blocked",
    }
    for field in ("status", "priority"):
        error = mistake(f"{field}:?")
        known = [status.value for status in JobStatus] if field == "status" else []
        assert all(each in str(error) for each in known or [each.value for each in JobPriority])


@each_case(("field", "example"), FIELDS.items())
def test_example_of_each_field_is_valid(field: str, example: str) -> None:
    assert len(parse(f"{field.replace('<name>', 'x')}:{example}")) == 1
