"""The tool that changes the package at random finds its places, and tells what tests notice."""

from __future__ import annotations

import ast
import subprocess
import textwrap
from pathlib import Path

import pytest

from tools.changed import functions_of
from tools.environment import DevError
from tools.mutants import python, sql
from tools.mutants.__main__ import check_tests, options_of, try_all
from tools.mutants.checkout import git, recent_lines, scratch
from tools.mutants.drawing import all_mutants, draw
from tools.mutants.mutant import Mutant
from tools.mutants.report import OPERATORS, markdown
from tools.mutants.selection import Selection
from tools.mutants.trial import Outcome, Trial, Verdict

PACKAGE = "tiny"
STOCK = """\
\"\"\"The stock of a shop.\"\"\"

LOW = 5


class Stock:
    def __init__(self, count):
        self.count = count

    def is_low(self):
        return self.count < LOW

    def take(self, count):
        if count > self.count:
            raise ValueError(f"only {self.count} are left")
        self.count -= count

    def forget(self):
        x = 1
        self.count = 0 if x and not x else 0

    def count_of_nobody(self):
        return self.count + 1
"""
TESTS = """\
import pytest

from tiny.stock import Stock


def test_stock_is_low():
    assert Stock(4).is_low()
    assert not Stock(6).is_low()


def test_nobody_takes_what_is_not_there():
    stock = Stock(3)
    with pytest.raises(ValueError):
        stock.take(4)
    stock.forget()
"""


def changes(code: str) -> list[tuple[str, str]]:
    """Return the operator of each mutant of a function with this body, and the body after the change."""
    text = f"async def function():\n{textwrap.indent(textwrap.dedent(code), '    ')}"
    results = []
    for mutant in python.mutants("tiny/code.py", text):
        changed = mutant.apply(text)
        ast.parse(changed)
        results.append((mutant.operator, textwrap.dedent(changed.partition("\n")[2]).strip()))
    return results


def statement_changes(statement: str) -> list[tuple[str, str]]:
    """Return the operator of each mutant of a statement, and the statement after the change."""
    text = f"-- name: statement\n-- Its first < second AND comment FOR UPDATE.\n{statement}\n"
    return [
        (mutant.operator, mutant.apply(text).split("\n", 2)[2].strip())
        for mutant in sql.mutants("tiny/code.sql", text)
    ]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = a < b", [("border", "x = a <= b")]),
        ("x = a <= b", [("border", "x = a < b")]),
        ("x = a > (b)", [("border", "x = a >= (b)")]),
        ("x = a >= b", [("border", "x = a > b")]),
        ("x = a < b <= c", [("border", "x = a <= b <= c"), ("border", "x = a < b < c")]),
        ("x = a == b", []),
        ("if a: b = c", [("condition", "if not (a): b = c")]),
        ("while not a: b = c", [("condition", "while (a): b = c")]),
        ("x = a if b else c", [("condition", "x = a if not (b) else c")]),
        ("x = [a for a in b if a]", [("condition", "x = [a for a in b if not (a)]")]),
        ("match a:\n    case b if c: d = e", [("condition", "match a:\n    case b if not (c): d = e")]),
        ("f(a)", [("call", "pass")]),
        ("await f(a)", [("await", "pass")]),
        ("x = f(a)", []),
        ("raise ValueError(1)", [("raise", "pass")]),
        ("return True", [("return", "return False")]),
        ("return False", [("return", "return True")]),
        ("return None", []),
        ("x = 'é' + y[1]", [("integer", "x = 'é' + y[2]")]),
        ("x = True", []),
        ("x = a and b", [("boolean", "x = a or b")]),
        ("x = (a) or b", [("boolean", "x = (a) and b")]),
        ("x = a and b and c", [("boolean", "x = a or b and c"), ("boolean", "x = a and b or c")]),
        ("x = f(a, b=c)", [("keyword", "x = f(a)")]),
        ("x = f(b=c, d=e)", [("keyword", "x = f(d=e)"), ("keyword", "x = f(b=c)")]),
        ("x = f(**a)", []),
    ],
)
def test_operator_changes_one_place_of_code(code: str, expected: list[tuple[str, str]]) -> None:
    assert changes(code) == expected


@pytest.mark.parametrize(
    "text",
    [
        "if 1 < 2: f()",
        "LIMIT: Final = 5",
        "def __repr__(self): return f(a=1)",
        "def f(a: Literal[1], b=2) -> Literal[3]: pass",
        "@g(a=1)\ndef f(): x: Literal[1]",
        'def f(): "1 < 2"',
        'def f(): x = f"{a < 1}"',
        "def f(): logger.warning('late', extra=fields(a=1))",
        "def f(): self._logger.logger.error('late', stacklevel=2)",
        "def f(): assert a, f(1)",
        "def f(): from a import b",
    ],
)
def test_texts_for_people_types_and_constants_of_modules_do_not_change(text: str) -> None:
    assert list(python.mutants("tiny/code.py", text)) == []


def test_what_only_a_type_checker_reads_does_not_change() -> None:
    assert changes("if TYPE_CHECKING:\n    x = 1\nelse:\n    y = 2") == [
        ("integer", "if TYPE_CHECKING:\n    x = 1\nelse:\n    y = 3")
    ]


def test_mutant_names_the_innermost_function_with_its_classes() -> None:
    text = "class A:\n    def f(self):\n        def g():\n            return True\n        x = 1\n"
    names = [(mutant.function, mutant.name) for mutant in python.mutants("tiny/code.py", text)]
    assert names == [
        ("A.f.g", "tiny/code.py:4:20:return"),
        ("A.f", "tiny/code.py:5:13:integer"),
    ]
    assert {mutant.function for mutant in python.mutants("tiny/code.py", text)} == {
        *functions_of(text).values()
    }


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT a < b", [("sql-border", "SELECT a <= b")]),
        ("SELECT a >= b", [("sql-border", "SELECT a > b")]),
        ("SELECT a -> 'x', b <> c, d @> e, f(g => h), 'i < j'", []),
        ("DELETE FROM t WHERE a = b AND c = d", [("sql-condition", "DELETE FROM t WHERE a = b")]),
        (
            "SELECT a FROM t WHERE b\n  AND (c OR d)\nORDER BY e LIMIT 1",
            [
                ("sql-condition", "SELECT a FROM t WHERE b\nORDER BY e LIMIT 1"),
                ("sql-order", "SELECT a FROM t WHERE b\n  AND (c OR d)\nORDER BY e DESC LIMIT 1"),
            ],
        ),
        (
            "SELECT (a AND b = 'x AND y'), c",
            [("sql-condition", "SELECT (a), c")],
        ),
        (
            "SELECT CASE WHEN a AND CASE WHEN b THEN c END THEN d END",
            [("sql-condition", "SELECT CASE WHEN a THEN d END")],
        ),
        ("SELECT a WHERE b AND c = 'x'{left_out}", [("sql-condition", "SELECT a WHERE b{left_out}")]),
        ("SELECT a BETWEEN 1 AND 2", []),
        ("SELECT a FROM t FOR NO KEY UPDATE OF t", [("sql-lock", "SELECT a FROM t")]),
        (
            "SELECT a FROM t FOR UPDATE SKIP LOCKED",
            [("sql-lock", "SELECT a FROM t"), ("sql-skip", "SELECT a FROM t FOR UPDATE")],
        ),
        ("SELECT a ORDER BY f(b, c) DESC, d", [("sql-order", "SELECT a ORDER BY f(b, c), d")]),
        ("SELECT a ORDER BY b ASC", [("sql-order", "SELECT a ORDER BY b DESC")]),
        ('SELECT a ORDER BY b COLLATE "C"', [("sql-order", 'SELECT a ORDER BY b COLLATE "C" DESC')]),
    ],
)
def test_operator_changes_one_place_of_a_statement(statement: str, expected: list[tuple[str, str]]) -> None:
    assert statement_changes(statement) == expected


def test_every_operator_has_a_description_and_a_case() -> None:
    tested = {
        operator
        for test in (test_operator_changes_one_place_of_code, test_operator_changes_one_place_of_a_statement)
        for mark in vars(test)["pytestmark"]
        for _, expected in mark.args[1]
        for operator, _ in expected
    }
    assert tested == OPERATORS.keys()


@pytest.mark.parametrize(
    ("first", "second", "is_equal"),
    [("x = 1 + 1", "\n\nx = 2", True), ("def f(): return 1", "def f(): return True", False)],
)
def test_code_is_equivalent_if_only_its_lines_differ(first: str, second: str, *, is_equal: bool) -> None:
    codes = [compile(text, "code.py", "exec") for text in (first, second)]
    assert python.has_the_code(codes[0], codes[1]) is is_equal


def test_probe_ends_the_process_before_the_statement_of_a_line() -> None:
    text = "def f():\n    if a:\n        pass\n    elif (b and\n            c):\n        d = 1\n"
    assert python.probe(text, 6) == text.replace("        d", f"        {python.PROBE}\n        d")
    assert python.probe(text, 5) == text.replace("    if a", f"    {python.PROBE}\n    if a")
    assert python.probe("x = 1", 2) is None


def mutants_of(text: str) -> list[Mutant]:
    return list(python.mutants("tiny/code.py", text))


def test_same_seed_draws_the_same_mutants_and_none_twice() -> None:
    mutants = mutants_of("".join(f"def f{number}(): return a < {number}\n" for number in range(20)))
    drawn = draw(mutants, {}, 30, "one")
    assert drawn == draw(mutants, {}, 30, "one") != draw(mutants, {}, 30, "two")
    assert len(set(drawn)) == 30
    assert len(draw(mutants, {}, 99, "one")) == len(mutants) == 40


def test_most_draws_take_functions_that_were_changed_lately() -> None:
    mutants = mutants_of("".join(f"def f{number}():\n    return {number}\n" for number in range(1_000)))
    drawn = draw(mutants, {"tiny/code.py": set(range(1_001, 2_001))}, 400, "one")
    recent = [mutant for mutant in drawn if mutant.line > 1_000]
    assert 0.8 < len(recent) / len(drawn) < 0.95


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a tiny package, of which no test calls ``count_of_nobody()``."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    root = tmp_path / "repository"
    for path, text in {
        "tiny/__init__.py": "",
        "tiny/stock.py": STOCK,
        "tests/test_stock.py": TESTS,
        "pytest.ini": "[pytest]\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, "utf-8")
    git(root, "init", "--quiet")
    commit(root, "2020-01-01T00:00:00Z")
    return root


def commit(root: Path, date: str) -> None:
    git(root, "add", ".")
    names = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    subprocess.run(
        ["git", *names, "commit", "--quiet", "-m", "tiny: change"],
        cwd=root,
        env={"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date, "PATH": "/usr/bin:/bin:/usr/local/bin"},
        check=True,
    )


def test_lines_are_recent_if_they_changed_in_the_week_before_the_last_commit(repository: Path) -> None:
    assert recent_lines(repository, PACKAGE) == {}
    stock = repository / "tiny" / "stock.py"
    for date, old, new in (
        ("2020-02-01T00:00:00Z", "LOW = 5", "LOW = 6"),
        ("2020-03-01T00:00:00Z", "x = 1", "x = 2"),
    ):
        stock.write_text(stock.read_text("utf-8").replace(old, new), "utf-8")
        commit(repository, date)
    assert recent_lines(repository, PACKAGE) == {"tiny/stock.py": {19}}


def test_selection_takes_recorded_tests_and_then_files_of_the_name(repository: Path) -> None:
    recorded = ["tests/test_stock.py::test_stock_is_low", "tests/test_stock.py::test_that_is_gone"]
    selection = Selection(repository, PACKAGE, {"tiny/stock.py": {"Stock.is_low": recorded}})
    by_function = {mutant.function: mutant for mutant in all_mutants(repository, [PACKAGE])}
    assert selection.tests_of(by_function["Stock.is_low"]) == [recorded[:1], ["tests/test_stock.py"]]
    assert selection.tests_of(by_function["Stock.take"]) == [["tests/test_stock.py"]]
    (repository / "tests" / "test_order.py").write_text("from tiny.stock import LOW\n", "utf-8")
    files = ["tests/test_stock.py", "tests/test_order.py"]
    assert Selection(repository, PACKAGE, {}).tests_of(by_function["Stock.take"]) == [files]


def test_tests_of_a_statement_are_those_of_the_functions_that_use_it(repository: Path) -> None:
    (repository / "tiny" / "stock.sql").write_text(
        "-- fragment: shortage\na < b\n\n-- name: find_low\nSELECT a WHERE {shortage}\n", "utf-8"
    )
    (repository / "tiny" / "store.py").write_text('def low():\n    return run("find_low")\n', "utf-8")
    (mutant,) = all_mutants(repository, ["tiny/stock.sql"])
    test = "tests/test_stock.py::test_stock_is_low"
    assert Selection(repository, PACKAGE, {"tiny/store.py": {"low": [test]}}).tests_of(mutant)[0] == [test]


@pytest.mark.slow
def test_trial_tells_what_tests_notice(repository: Path) -> None:
    """The files of the checkout stay as they are, also while a mutant is tried."""
    expected = {
        "tiny/stock.py:14:12:condition": Verdict.NOTICED,
        "tiny/stock.py:11:27:border": Verdict.UNNOTICED,
        "tiny/stock.py:23:29:integer": Verdict.NOT_REACHED,
    }
    with scratch(repository) as tree:
        by_name = {mutant.name: mutant for mutant in all_mutants(tree, [PACKAGE])}
        trial = Trial(tree, Selection(tree, PACKAGE, {}).tests_of)
        outcomes = try_all([by_name[name] for name in expected], trial, float("inf"))
        late = try_all([by_name[name] for name in expected], trial, float("-inf"))
    assert {outcome.mutant.name: outcome.verdict for outcome in outcomes} == expected
    assert outcomes[0].noticed_by == "tests/test_stock.py::test_nobody_takes_what_is_not_there"
    assert {outcome.verdict for outcome in late} == {Verdict.NOT_TRIED}
    assert (repository / "tiny" / "stock.py").read_text("utf-8") == STOCK
    assert not tree.exists()
    assert len(git(repository, "worktree", "list").splitlines()) == 1


@pytest.mark.slow
def test_trial_is_unclear_where_tests_fail_without_the_change_or_take_too_long(repository: Path) -> None:
    tests = repository / "tests" / "test_stock.py"
    tests.write_text(TESTS.replace("not Stock(6)", "Stock(6)"), "utf-8")
    (mutant,) = [mutant for mutant in all_mutants(repository, [PACKAGE]) if mutant.function == "Stock.is_low"]
    tests_of = Selection(repository, PACKAGE, {}).tests_of
    assert Trial(repository, tests_of).run(mutant).verdict is Verdict.UNCLEAR
    assert Trial(repository, tests_of, limit_s=0.0).run(mutant).verdict is Verdict.UNCLEAR
    assert (repository / "tiny" / "stock.py").read_text("utf-8") == STOCK


def test_code_without_tests_is_not_reached_and_the_same_bytecode_is_equivalent(repository: Path) -> None:
    (repository / "tiny" / "lonely.py").write_text("def f():\n    return 2 * 0 < a\n", "utf-8")
    by_name = {mutant.name: mutant for mutant in all_mutants(repository, ["tiny/lonely.py"])}
    trial = Trial(repository, Selection(repository, PACKAGE, {}).tests_of)
    assert trial.run(by_name["tiny/lonely.py:2:18:border"]).verdict is Verdict.NOT_REACHED
    assert trial.run(by_name["tiny/lonely.py:2:12:integer"]).verdict is Verdict.EQUIVALENT


def test_report_has_the_change_of_each_unnoticed_mutant_and_how_to_repeat_it() -> None:
    mutants = mutants_of("def f(a):\n    return a < 10\n")
    border, integer = ((mutant, mutant.diff("def f(a):\n    return a < 10\n")) for mutant in mutants)
    outcomes = [
        Outcome(*border, Verdict.UNNOTICED, ["tests/test_f.py"], "", 2.6),
        Outcome(*integer, Verdict.NOTICED, ["tests/test_f.py"], "tests/test_f.py::test_f", 1.2),
    ]
    text = markdown(outcomes, "2030-01-01", "abc1234")
    assert "2 mutants of commit `abc1234`, drawn with the seed `2030-01-01`." in text
    assert "| unnoticed | 1 |" in text
    assert "$ python3 dev.py mutants --mutant tiny/code.py:2:14:border\n" in text
    assert "-    return a < 10\n+    return a <= 10\n" in text
    assert "a < 11" not in text
    assert (
        "| `tiny/code.py:2:16:integer` | `f` | noticed | `tests/test_f.py::test_f` | 1 |" in text.splitlines()
    )


def test_command_draws_by_the_date_unless_a_seed_is_passed() -> None:
    assert len(options_of([]).seed.split("-")) == 3
    options = options_of(["--count", "3", "--seed", "x", "--minutes", "0.5", "pg_scheduler/queue"])
    assert (options.count, options.seed, options.minutes) == (3, "x", 0.5)
    assert options.paths == ["pg_scheduler/queue"]


def test_tests_that_are_not_committed_are_refused(repository: Path) -> None:
    check_tests(repository, ["tests/test_stock.py::test_stock_is_low", "tests"])
    with pytest.raises(DevError, match=r"the last commit has no test tests/test_new\.py::test_new"):
        check_tests(repository, ["tests/test_new.py::test_new"])


def test_git_that_fails_is_an_error_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(DevError, match=r"mutants needs git and a commit: git .*: fatal"):
        git(tmp_path, "rev-parse", "HEAD")
