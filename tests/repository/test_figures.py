"""The figures of the package count what they name, however it is written, and every module has its ring."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.cases import each_case
from tools.environment import ROOT
from tools.figures.__main__ import table
from tools.figures.engine import Engine
from tools.figures.house import read_house
from tools.figures.outer import dotted_patches, is_private, private, private_attributes, private_tests
from tools.figures.source import PACKAGE, Sources

HOUSE: Final = """
[tool.house]
trouble = ["database.faults"]
[tool.house.rings]
ground = ["__init__", "database"]
core = ["jobs", "queue"]
face = ["scheduler"]
outer = ["cli"]
[tool.house.features.limits]
modules = ["jobs.limits"]
requires = []
state = ["scheduler_limits", "options.limits"]
[tool.house.features.steps]
modules = ["steps"]
requires = ["limits"]
state = ["scheduler_steps"]
"""

LOADER: Final = """
import re
from pathlib import Path
from types import SimpleNamespace

def load_queries(schema):
    parts = [
        (kind, name, text)
        for path in Path("pg_scheduler").rglob("*.sql")
        for kind, name, text in re.findall(
            r"-- (name|fragment): (\\w+)\\n(.*?)(?=-- name|-- fragment|\\Z)", path.read_text(), re.S
        )
    ]
    fragments = {name: text for kind, name, text in parts if kind == "fragment"}
    return {
        name: SimpleNamespace(text=re.sub(r"\\{(\\w+)\\}", lambda match: fragments[match[1]], text))
        for kind, name, text in parts if kind == "name"
    }
"""

Plant = Callable[..., Engine]


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Write a small package of files; the name of a file has no suffix if it is Python."""
    trees = iter(range(100))

    def write(**files: str) -> Engine:
        root = tmp_path / str(next(trees))
        contents = {
            "__init__": "",
            "database.queries": LOADER,
            "database.faults": "REFUSALS = (ValueError, TypeError)\ndef is_refusal(error): ...\n",
            "jobs.limits": "class Limit: ...\nLIMITED = 1\n",
            **{name.replace("__", "."): text for name, text in files.items()},
        }
        for name, text in contents.items():
            file = name.removesuffix(".sql").replace(".", "/") + (".sql" if name.endswith(".sql") else ".py")
            path = root / "pg_scheduler" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        (root / "pyproject.toml").write_text(HOUSE, encoding="utf-8")
        return Engine(root)

    return write


def test_every_module_and_every_file_of_statements_has_a_ring() -> None:
    """A new room, and a feature that moves to a room of its own, gets a line in ``[tool.house]``."""
    engine = Engine(ROOT)
    assert engine.unassigned() == []
    names = [module.short_name for module in engine.sources.modules.values()]
    files = [path.relative_to(ROOT / "pg_scheduler") for path in (ROOT / "pg_scheduler").rglob("*.sql")]
    assert engine.house.stale([*names, *(".".join(file.with_suffix("").parts) for file in files)]) == []


def test_every_table_column_and_key_of_a_feature_is_somewhere_in_the_package() -> None:
    """A renamed column would take the functions that name it out of the figures."""
    paths = [*(ROOT / "pg_scheduler").rglob("*.py"), *(ROOT / "pg_scheduler").rglob("*.sql")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    words = set(text.replace("'", " ").replace('"', " ").replace(".", " ").split())
    names = [entry.rpartition(".")[2] for state in read_house(ROOT).state.values() for entry in state]
    assert [name for name in names if name not in words and name not in text] == []


def test_imports_keep_the_contracts() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@each_case(
    ("changed", "message"),
    [
        (('core = ["jobs"', 'core = ["cli", "jobs"'), r"\[tool.house\] has cli twice"),
        (("requires = []", 'requires = ["steps"]'), "in a circle: limits -> steps -> limits"),
        (("requires = []", 'requires = ["nothing"]'), r"limits requires nothing, which"),
    ],
)
def test_wrong_table_is_refused(tmp_path: Path, changed: tuple[str, str], message: str) -> None:
    (tmp_path / "pyproject.toml").write_text(HOUSE.replace(*changed), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_house(tmp_path)


def test_moved_code_is_counted_or_has_no_ring(plant: Plant) -> None:
    engine = plant(limits__gate="", waits__sql="-- name: wait\nSELECT 1\n")
    assert engine.unassigned() == ["limits.gate", "waits"]


@each_case(
    "code",
    [
        "from pg_scheduler.jobs.limits import Limit",
        "from pg_scheduler.jobs import limits",
        "import pg_scheduler.jobs.limits",
        "import pg_scheduler.jobs.limits as words",
        "from ..jobs.limits import Limit as Other",
        "from pg_scheduler.queue.names import Limit",  # which hands it on
        "def late():\n    from pg_scheduler.jobs import limits",
        "from importlib import import_module\nimport_module('pg_scheduler.jobs.limits')",
    ],
)
def test_import_of_a_feature_is_one_however_it_is_written(plant: Plant, code: str) -> None:
    engine = plant(queue__writer=code, queue__names="from pg_scheduler.jobs.limits import Limit")
    imports = [line for line in engine.core_imports() if line.startswith("queue.writer")]
    assert imports == ["queue.writer -> jobs.limits"]


def test_feature_declares_the_features_that_it_imports(plant: Plant) -> None:
    limits = "from pg_scheduler.steps import attempt"
    steps = "from pg_scheduler.jobs.limits import Limit"
    engine = plant(jobs__limits=limits, steps__attempt=steps)
    assert engine.undeclared_imports() == ["limits -> steps"]


NAMING: Final = """
from pg_scheduler.jobs import limits
from pg_scheduler.jobs.limits import Limit as Other
class Writer:
    def one(self): return Other()
    def two(self): return limits.LIMITED
    def three(self, row): return row["limits"]
    def four(self): return self.scheduler_limits
    def none(self): limit = "the limits of this"; return limit
"""


def test_functions_that_name_a_feature_are_counted_and_not_files_or_words(plant: Plant) -> None:
    names = [f"queue.writer:Writer.{name} limits" for name in ("one", "two", "three", "four")]
    assert plant(queue__writer=NAMING).core_functions() == names


FRAGMENT: Final = "-- fragment: middle\n" + "    a,\n" * 90


def test_statement_is_as_long_as_what_is_sent_wherever_its_fragments_are(plant: Plant) -> None:
    statement = "-- name: work\nSELECT\n{middle}    b FROM scheduler_limits\n"
    whole = plant(
        queue__work__sql="-- name: work\nSELECT\n" + "    a,\n" * 90 + "    b FROM scheduler_limits\n"
    )
    divided = plant(queue__work__sql=statement + FRAGMENT)
    moved = plant(queue__work__sql=statement, jobs__states__sql=FRAGMENT)
    for engine in (whole, divided, moved):
        assert engine.long_statements() == ["queue.work:work 92"]
        assert engine.core_statements() == ["queue.work:work limits"]
    assert (len(divided.fragments()), len(moved.fragments())) == (90, 90)


@each_case(
    ("expression", "found"),
    [
        ("options -> 'a', options ->> 'b'", ["options.a", "options.b"]),
        ("options OPERATOR(pg_catalog.->) 'a', (options)->>'b'", ["options.a", "options.b"]),
        ("options #> '{state,a}', options #>> '{state,b}'", ["options.state.a", "options.state.b"]),
        ("options #> ARRAY ['state', 'a']", ["options.state.a"]),
        ("(options -> 'state') -> 'a'", ["options.state.a"]),
        ("options ? 'a', options - 'b', options - ARRAY ['c', 'd']", [f"options.{key}" for key in "abcd"]),
        ("options -> 'state' AS state, state ->> 'a'", ["options.state", "options.state.a"]),
        ("task_data -> 'a', other_options -> 'b'", []),
        ("-- options -> 'a'\n1", []),
    ],
)
def test_keys_are_counted_by_their_paths(plant: Plant, expression: str, found: list[str]) -> None:
    engine = plant(queue__work__sql=f"-- name: work\nSELECT\n{expression}\nFROM scheduled_jobs\n")
    assert engine.json_paths() == found


@each_case(
    ("before", "annotation"),
    [
        ("", "bool"),
        ("", "bool | None"),
        ("", '"bool"'),
        ("Switch = bool", "Switch"),
        ("from pg_scheduler.jobs.words import Switch", "Switch"),
        ("from pg_scheduler.jobs import words", "words.Switch"),
    ],
)
def test_flag_is_one_by_any_name(plant: Plant, before: str, annotation: str) -> None:
    code = f"{before}\ndef work(a: {annotation}, b: int, *, c: {annotation}, d: {annotation}): ...\n"
    engine = plant(queue__writer=code, jobs__words="Switch = bool\n")
    assert engine.flags() == [f"queue.writer:work {name}" for name in "acd"]
    assert engine.many_flags() == ["queue.writer:work a, c, d"]


def test_bits_of_one_parameter_are_flags(plant: Plant) -> None:
    code = """
import enum
class How(enum.Flag): A = 1; B = 2; C = 4
def work(how: How): return how & How.A, how & How.B, how & How.C
"""
    assert plant(queue__writer=code).many_flags() == ["queue.writer:work How.A, How.B, How.C"]


def test_true_and_false_at_a_call_are_counted(plant: Plant) -> None:
    engine = plant(queue__writer="def work(a, b): ...\nwork(True, b=False)\nprint(True)\nwork(1, 2)\n")
    assert engine.boolean_arguments() == ["queue.writer:2", "queue.writer:2"]


@each_case(
    "handler",
    [
        "try: ...\nexcept REFUSALS: ...",
        "try: ...\nexcept CAUGHT: ...",
        "try: ...\nexcept faults.REFUSALS: ...",
        "try: ...\nexcept (KeyError, *REFUSALS): ...",
        "try: ...\nexcept MANY: ...",
        "with suppress(CAUGHT): ...",
        "with contextlib.suppress(CAUGHT): ...",
        "try: ...\nexcept Exception as error:\n    if isinstance(error, CAUGHT): ...",
        "try: ...\nexcept Exception as error:\n    if not is_refusal(error): raise",
    ],
)
def test_handler_that_names_a_refusal_is_counted_by_any_name(plant: Plant, handler: str) -> None:
    imports = """
import contextlib
from contextlib import suppress
from pg_scheduler.database import faults
from pg_scheduler.database.faults import REFUSALS, is_refusal
CAUGHT = REFUSALS
MANY = (KeyError, CAUGHT)
"""
    assert len(plant(queue__writer=f"{imports}{handler}\n").refusals()) == 1
    assert plant(queue__writer=f"{imports}try: ...\nexcept KeyError: ...\n").refusals() == []
    assert plant(database__statements=f"{imports}{handler}\n").refusals() == []


def test_statements_of_other_rooms_are_found_in_any_file_and_form(plant: Plant) -> None:
    statements = "-- name: work\nSELECT 1\n"
    code = 'LEFT_OUT = {\n  "work" : 1,\n}\nnames = ("rest", "work")\n'
    engine = plant(
        queue__work__sql=statements, database__more="def f():\n    return 'work'\n", database__left=code
    )
    places = ["database.left:2 work", "database.left:4 work", "database.more:2 work"]
    assert engine.foreign_statements() == places


def test_wires_are_assignments_and_setters(plant: Plant) -> None:
    code = """
class Node:
    def __init__(self, other): self.a = 1; other.on_work = self.start
    def set_on_work(self, work): self.on_work = work
    def start(self): self.b = 2; self.other.on_end = 3; made = Node(1); made.c = 4
"""
    assert plant(queue__writer=code).wires() == [
        "queue.writer:3 other.on_work",
        "queue.writer:Node.set_on_work",
        "queue.writer:5 self.other.on_end",
    ]


def test_fields_that_replace_parameters_and_calls_that_replace_lines_are_counted(plant: Plant) -> None:
    fields = "".join(f"    field_{number}: int\n" for number in range(9))
    code = f"""
from typing import NamedTuple
class Values(NamedTuple):
{fields}
class Writer:
    def _write(self, values):
        '''A docstring.'''
        return self._write_all(values)
    def _write_all(self, values): return values.field_1
    def work(self, a, b, c, d, e, f, g): return self._write(a)
"""
    engine = plant(queue__writer=code)
    assert engine.large_records() == ["queue.writer:Values 9"]
    assert engine.passing_functions() == ["queue.writer:Writer._write"]
    assert engine.many_parameters() == ["queue.writer:Writer.work 7"]


def test_blank_lines_comments_and_docstrings_make_no_function_long(plant: Plant) -> None:
    assert plant(queue__writer=_function("work", 45)).long_functions() == []
    assert plant(queue__writer=_function("work", 46)).long_functions() == ["queue.writer:work 46"]


def _function(name: str, lines: int) -> str:
    """Return a function of so many code lines, between comments and blank lines."""
    return f"def {name}():\n    '''Words.\n\n    More.'''\n" + "    # why\n\n    a = 1\n" * (lines - 1)


def test_doors_are_modules_however_they_are_named(tmp_path: Path) -> None:
    files = {
        "pg_scheduler/__init__.py": "",
        "pg_scheduler/inspect/__init__.py": "from pg_scheduler.inspect.jobs import Row\n",
        "pg_scheduler/inspect/jobs.py": "class Row: ...\n",
        "pg_scheduler/cli/__init__.py": "",
        "pg_scheduler/cli/one.py": "from pg_scheduler.inspect.jobs import Row\n",
        "pg_scheduler/cli/two.py": "from ..inspect import Row, jobs as rows\n",
        "tests/test_public.py": "from pg_scheduler.inspect import Row\n",
        "tests/test_private.py": "import pg_scheduler.inspect.jobs as it\nit._value\ngetattr(it, '_other')\n",
        "tests/test_patched.py": "patch.setattr('pg_scheduler.cli.x', 1)\npatch.setattr(x, 'y', 1)\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    package, tests = Sources(tmp_path), Sources(tmp_path, "tests")
    assert [*private(package, "cli")] == [f"{PACKAGE}.inspect.jobs"]
    assert private_tests(package, list(tests.modules.values())) == ["tests.test_private"]
    assert private_attributes(tests.modules["tests.test_private"]) == 2
    assert dotted_patches(tests.modules["tests.test_patched"]) == 1
    assert not is_private(f"{PACKAGE}.facts.lateness")


def test_table_prints_what_changed() -> None:
    assert table({"a": 1, "b": 2000}, {}) == "       1  a\n   2,000  b\n"
    assert table({"a": 1, "b": 2000}, {"a": 1, "b": 2001}) == "   2,001 ->    2,000        -1  b\n"
    assert table({"a": 1}, {"a": 1}) == "no figure changed\n"
