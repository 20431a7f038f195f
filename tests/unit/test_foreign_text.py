"""Every parser of foreign text: what it raises, how long a text it reads, and how much work a text causes.

``python3 dev.py fuzz`` searches for texts that break the same parsers.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from typing import Any, Final

import pytest

from pg_scheduler import ConfigurationError
from pg_scheduler.inspect.positions import MAX_LENGTH
from pg_scheduler.inspect.search.words import Word, split_words
from tests.support.inside import normalise_dsn
from tools.fuzz import __main__ as fuzz
from tools.fuzz.mutate import mutations
from tools.fuzz.parsers import PARSERS, Parser
from tools.fuzz.readers import MODULES, PACKAGE, calls

MUTATIONS: Final = 150
LENGTH: Final = 200
"""Characters of the shorter text of a family."""

FAMILIES: Final = (
    *(
        "(",
        "[",
        "{",
        '{"a":',
        "[[],",
        "9",
        "9,",
        ",",
        "a,",
        "a.",
        "a:",
        "a=1&",
        "&",
        "%",
        "%41",
        "\\",
        "\\\\",
        '"',
    ),
    *(
        "'",
        "*/1,",
        "1-9,",
        "1#1,",
        "l5,",
        "mon-sun,",
        "+1s,",
        "2026-11-20,",
        " ",
        "\n",
        "a ",
        "-",
        "~",
        "*",
        "=",
        "/",
    ),
    *(
        "@",
        "h,",
        "a/",
        ".",
        "..",
        "a@a.",
        "http://",
        '  File "a", line 1\n',
        "\\u20ac",
        "\u20ac",
        "a\n",
        "1m",
        ";",
    ),
)
"""The parts that are repeated: nesting, long numbers, separators, escapes, ranges, and what pages mark."""

SLACK: Final = 200
"""Lines that need not be proportional to the length, as of a first call that fills a cache."""

each_parser = pytest.mark.parametrize("name", PARSERS)
each_bounded_parser = pytest.mark.parametrize(
    "name", [name for name, parser in PARSERS.items() if parser.refuses_longer]
)


def parser_of(name: str) -> Parser:
    """Return a parser; skip the test if the optional package that it imports is absent."""
    parser = PARSERS[name]
    if parser.needs:
        pytest.importorskip(parser.needs)
    return parser


def call(parser: Parser, text: str) -> bool:
    return parser.call(text.encode("utf-8", "surrogatepass"))


@each_parser
def test_parser_accepts_a_text_of_its_corpus_and_raises_only_refusals(name: str) -> None:
    parser = parser_of(name)
    accepted = [text for text in parser.corpus() if call(parser, text)]
    assert accepted


@each_parser
def test_parser_raises_only_refusals_for_changed_texts(name: str) -> None:
    parser = parser_of(name)
    for text in mutations(parser.name, parser.corpus(), MUTATIONS):
        try:
            call(parser, text[: parser.max_length])
        except Exception as error:
            error.add_note(f"the text is {text!r:.2000}")
            raise


@each_bounded_parser
def test_parser_refuses_a_longer_text_before_it_reads_it(name: str) -> None:
    parser = parser_of(name)
    for prefix in parser.prefixes:
        for part in ("a", "9", "[", ","):
            texts = [f"{prefix}{part * length}" for length in (parser.max_length + 1, 3 * parser.max_length)]
            counts = [lines_of(parser, text) for text in texts]
            assert not any(call(parser, text) for text in texts)
            assert counts[1] <= counts[0] + SLACK


@each_parser
def test_work_of_parser_grows_no_faster_than_the_text(name: str) -> None:
    examine_work(parser_of(name))


def test_reader_that_compares_each_character_with_each_other_is_found() -> None:
    def read(text: str) -> None:
        for _ in text:
            for _ in text:
                pass

    with pytest.raises(AssertionError):
        examine_work(Parser("square", read, (), 10_000))


def examine_work(parser: Parser) -> None:
    for prefix in parser.prefixes:
        for part in FAMILIES:
            texts = [f"{prefix}{part * (length // len(part))}" for length in (LENGTH, 2 * LENGTH)]
            if len(texts[-1]) > parser.max_length:
                continue
            lines_of(parser, texts[-1])  # fills caches
            half, whole = (lines_of(parser, text) for text in texts)
            # Twice as many characters take twice as many lines, where a square would take four times as many.
            assert whole <= 2.25 * half + SLACK, (prefix, part, half, whole)


def lines_of(parser: Parser, text: str) -> int:
    """Return how many lines of Python the parser executes for a text."""
    count = 0

    def trace(_frame: object, event: str, _argument: object) -> Callable[..., Any]:
        nonlocal count
        count += event == "line"
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        call(parser, text)
    finally:
        sys.settrace(previous)
    return count


FINDINGS: Final = (
    ("dsn", f"postgresql://u@h:{'1' * 5000}/d"),
    ("dsn", f"postgresql://u@h/d?connect_timeout={'1' * 400}"),
    ("workflow-position", "[" * 50_000),
    ("workflow-position", '["\\u0000", "job:7"]'),
    ("search-position", '["2026-11-21T12:30:00+00:00", 10, 3, 2, "0001-01-01T00:00:00+01:00", "job:7"]'),
    ("search-position", '["0001-01-01T00:00:00+00:00", 10, 3, 0, "job:7"]'),
    ("options", '{"deadline": "0001-01-01T00:00:00.000000+01:00"}'),
    ("error", f"""  File "a.py", line {"1" * 5000}, in f"""),
    ("cause", f"job {'-' * 20_000}1, after which this job was to run, ended as 'failed'"),
    ("cause", f"job {'1+' * 20_000}1, after which this job was to run, ended as 'failed'"),
    ("procrastinate", "[" * 5000),
    ("celery", "[" * 5000),
    ("history", '[{"attempt": 1, "outcome": "failed", "trace": {"a": "\\ud800"}}]'),
)
"""Texts by which a parser raised an error that was none of its refusals, or returned what it must not."""


@pytest.mark.parametrize(("name", "text"), FINDINGS, ids=lambda value: value[:20])
def test_text_that_has_broken_a_parser_is_refused_or_read(name: str, text: str) -> None:
    call(parser_of(name), text)


def test_position_of_workflows_is_refused_when_it_is_too_long() -> None:
    assert not call(PARSERS["workflow-position"], f'["{"a" * MAX_LENGTH}", "job:7"]')


def test_token_that_is_too_long_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    agents = pytest.importorskip("pg_scheduler.integrations.pydantic_ai")
    monkeypatch.setattr(agents, "_TARGET", None)
    causes = []
    for length in (agents.MAX_TOKEN_LENGTH, agents.MAX_TOKEN_LENGTH + 4):
        with pytest.raises(ValueError, match="is no token of an event") as caught:
            agents._target_of("A" * length)
        causes.append(type(caught.value.__cause__))
    # Only the shorter one gets as far as an attribute of None.
    assert causes == [AttributeError, ValueError]


@pytest.mark.parametrize("character", ["\t", "\n", "\r", "\0", "\x7f"])
def test_dsn_with_a_control_character_is_refused(character: str) -> None:
    """A reader of URLs removes some of them, so the password would not be found in the text that has it."""
    with pytest.raises(ConfigurationError, match="has a control character"):
        normalise_dsn(f"postgresql://u:pass{character}word@h/d", "dsn")


class CountingChars(tuple[Any, ...]):
    """The characters of a word, which count how many of them are copied."""

    copied = 0

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        if not isinstance(index, slice):
            return part
        CountingChars.copied += len(part)
        return CountingChars(part)


def test_word_is_split_without_copies_of_what_remains() -> None:
    CountingChars.copied = 0
    (word,) = split_words("a," * 1000)
    assert len(Word(CountingChars(word.chars), word.start, word.end).split(",")) == 1001
    # Each character is compared once, and copied once.
    assert CountingChars.copied <= 2 * len(word.chars)


# -- the list of parsers -------------------------------------------------------------------------------


def test_each_module_that_reads_text_has_a_parser_or_a_reason() -> None:
    assert {call.module for call in calls()} == set(MODULES)
    names = {text for text in MODULES.values() if " " not in text}
    assert names <= set(PARSERS)


TRUSTED: Final = frozenset(
    name for name, text in MODULES.items() if " " in text and not text.startswith(("compares", "made by"))
)
"""The modules whose texts are not foreign."""

ONE_READER: Final = {
    "loads": {
        "base/text/json_text",
        *TRUSTED,
        "database/faults",
        "importing/apscheduler",
        "jobs/history",
        "jobs/payload",
    },
    "literal_eval": {"inspect/dependencies"},
    "fromisoformat": {
        *("base/text/times", "dashboard/texts", "database/callers/connection", "worker/runners/protocol"),
        *("dashboard/pages/calendar", "dashboard/pages/schedule_form"),
    },
}
"""Functions with several kinds of errors, and the modules that may call them. Each reads a text of its own,
or has a test for foreign ones. All other modules call ``load_json()`` and ``read_timestamp()``."""


@pytest.mark.parametrize("name", ONE_READER)
def test_function_with_several_kinds_of_errors_is_called_in_few_modules(name: str) -> None:
    excused = ONE_READER[name] | {"importing/django_celery_beat", "integrations/django/paginator"}
    assert {call.module for call in calls() if call.name == name} <= excused


def test_pattern_bounds_the_digits_that_become_a_number() -> None:
    """Python refuses to read a number of more than 4,300 digits, by an error that callers do not expect."""
    unbounded = ("\\d+", "\\d*", "[0-9]+", "[0-9]*")
    modules = {
        path.relative_to(PACKAGE).with_suffix("").as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "compile"
        and any(digits in ast.unparse(node.args[0]).replace("\\\\", "\\") for digits in unbounded)
    }
    assert modules == UNBOUNDED


UNBOUNDED: Final = {
    "base/sqlbuiltins",  # statements of the library
    "dashboard/texts",  # becomes no number
    "dashboard/tracebacks",  # a part of the path of a library
    "database/callers/adapter",  # statements of the library
    "database/callers/connection",  # statements of the library
    "importing/apscheduler",  # becomes no number here
    "inspect/deploy",  # becomes no number
    "inspect/store/inspections",  # the server's estimate
    "inspect/store/searches",  # statements of the library
    "jobs/error_text",  # becomes no number
    "triggers/cron_fields",  # an expression has at most 1,000 characters
}


# -- the command ---------------------------------------------------------------------------------------


def test_command_names_the_parsers_for_an_unknown_one() -> None:
    with pytest.raises(SystemExit, match="unknown parsers crom; there are search, schedule-search"):
        fuzz.chosen(["cron", "crom"], PARSERS)


def test_command_reads_the_figures_of_the_engine() -> None:
    line = "#137106\tDONE   cov: 149 ft: 426 corp: 32/403b lim: 1001 exec/s: 27421 rss: 96Mb"
    assert fuzz.DONE.findall(line) == [("137106", "149", "32")]
