"""The reference pages describe every public name, and the examples in docstrings run."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import doctest
import importlib
import inspect
import re
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import asyncpg
import pytest

from pg_scheduler import Scheduler, call
from pg_scheduler.inspect import Inspector
from pg_scheduler.migrate import migrate
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.testing import TestScheduler
from tests.docs.snippets import PAGES, Snippet, page_id, run_python
from tests.support.cases import each_case
from tools.reference.docstrings import parse_docstring
from tools.reference.extension import PAGES as FOLDER
from tools.reference.extension import complete_pages, complete_reference
from tools.reference.listings import OLD_NAMES, pages_with_listings, without_listings
from tools.reference.pages import GENERATED, complete, parts
from tools.reference.source import PUBLIC_MODULES, find, public_names

SITE = "https://pg-scheduler.github.io/pg-scheduler/reference"
SOURCES = {page: page.read_text(encoding="utf-8") for page in sorted(FOLDER.glob("*.md"))}
REFERENCE = complete_reference()
DESCRIBED = Counter(
    (part.module, name) for text in SOURCES.values() for part in parts(text) for name in part.names
)
NOT_FOR_USERS = {
    "pg_scheduler": {"__version__"},
    "pg_scheduler.events": {"EventBus", "Sink"},  # parts of the Scheduler
    "pg_scheduler.migrate": {"Migration", "home_schema", "shipped_migrations"},  # for the store
    "pg_scheduler.testing": {"EmbeddedPostgres"},  # described in pg_scheduler.embedded
}


def test_source_of_a_reference_page_leads_to_the_site() -> None:
    """The file alone, as a code host shows it, is not the page."""
    for page, text in SOURCES.items():
        assert f"\n% The complete page is on the site: {SITE}/{page.stem}.html\n" in text


def test_files_show_on_a_code_host_what_the_build_generates() -> None:
    """Where a list or a table is not that of the code, run ``python3 dev.py renew``."""
    pages = pages_with_listings()
    assert SOURCES.keys() - pages.keys() == set()
    outdated = [page_id(page) for page, text in pages.items() if page.read_text(encoding="utf-8") != text]
    assert outdated == []


def test_build_leaves_out_what_only_a_code_host_shows() -> None:
    for page, text in SOURCES.items():
        assert "<!-- listing -->" in text, page
        assert "<!-- listing -->" not in without_listings(text), page
    assert not [page for page, text in complete_pages().items() if "<!-- listing -->" in text]


def test_each_method_of_the_scheduler_is_a_current_name_or_one_of_0_2() -> None:
    """The list has the current ones. The section has the old ones, with what to call instead."""
    source = SOURCES[FOLDER / "scheduler.md"]
    current, _, old = source.partition(f"\n{OLD_NAMES}\n")
    (scheduler,) = re.findall(r"^- \[`Scheduler`\].*?^(?=- )", current, re.MULTILINE | re.DOTALL)
    listed = re.findall(r"^  - \[`(\w+)\(\)`\]", scheduler, re.MULTILINE)
    old_names = re.findall(r"^\| `(\w+)\(\)` \| \S", old, re.MULTILINE)
    functions = inspect.getmembers(
        Scheduler, lambda value: inspect.isfunction(value) or inspect.ismethod(value)
    )
    methods = {name for name, _ in functions if not name.startswith("_")}
    assert Counter(listed + old_names) == Counter(methods)
    assert {"schedule_job", "send_heartbeat", "trigger_periodic_job"} <= set(old_names)


def test_reference_describes_every_public_name_of_a_module_once() -> None:
    for module in PUBLIC_MODULES:
        names = set(public_names(module)) - NOT_FOR_USERS.get(module, set())
        if module == "pg_scheduler":  # the errors have a page of their own
            names -= set(public_names("pg_scheduler.errors"))
        assert {name: DESCRIBED[module, name] for name in names} == dict.fromkeys(names, 1)
        assert {name for described, name in DESCRIBED if described == module} == names


def test_reference_describes_every_public_method_and_property() -> None:
    text = "\n".join(REFERENCE.values())
    for module, name in DESCRIBED:
        definition = find(module, name)
        methods = [each for owner in (definition, *definition.mixins()) for each in owner.functions()]
        for method in methods:
            if not method.startswith("_"):
                assert re.search(rf"^(#+ `{method}\(\)`|- `{method}: .*)$", text, re.MULTILINE), method


EXAMPLES = {
    heading: code
    for text in REFERENCE.values()
    for heading, code in re.findall(
        r"^#+ `([^`]+)`$(?:(?!^#).)*?^\*\*Example\*\*\n\n```python\n(.*?)^```$",
        text,
        re.MULTILINE | re.DOTALL,
    )
}
"""The examples without a prompt, by the heading above them."""


@pytest.mark.parametrize("name", EXAMPLES)
async def test_reference_example_without_a_prompt_runs(
    name: str, dsn: str, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs of the examples are due at once, and shut their Scheduler down."""
    module = ModuleType("reference_example")

    async def send_mail(_address: str = "") -> None:
        await module.scheduler.shutdown()

    send_mail.__module__, send_mail.__qualname__ = module.__name__, "send_mail"
    module.__dict__.update(
        {
            "asyncpg": asyncpg,
            "Scheduler": Scheduler,
            "Inspector": Inspector,
            "inspector": Inspector(scheduler),
            "SyncScheduler": SyncScheduler,
            "TestScheduler": TestScheduler,
            "datetime": datetime,
            "UTC": UTC,
            "call": call,
            "send_mail": send_mail,
        },
        timedelta=lambda **_values: timedelta(0),
        dsn=dsn,
        scheduler=scheduler,
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    failed = await scheduler.schedule_job("unknown", datetime.now(UTC) + timedelta(hours=1), {})
    await scheduler.update_job_status(failed, "failed")
    if name.startswith("Sync"):  # it blocks, so it needs a thread without an event loop
        await asyncio.to_thread(exec, EXAMPLES[name], module.__dict__)
        return
    await run_python(Snippet(Path(f"example of {name}"), 1, "python", EXAMPLES[name]), module)


def test_reference_finds_examples_without_a_prompt() -> None:
    assert {"Scheduler", "register()", "schedule()", "list_jobs()"} <= EXAMPLES.keys()


def test_pages_have_no_directive_that_hides_content() -> None:
    allowed = {
        "docs/changelog.md": {"include"},
        "docs/index.md": {"toctree"},
        "docs/operations/health.md": {"literalinclude"},  # of files of the package
        "docs/operations/metrics.md": {"literalinclude"},
        "docs/operations/tour.md": {"image"},  # one of each pair is shown, by the theme
    }
    found = {}
    for page in PAGES:
        directives = re.findall(r"^(?:`{3,}|:{3,})\{(\w+)", page.read_text(encoding="utf-8"), re.MULTILINE)
        found[page_id(page)] = set(directives) - allowed.get(page_id(page), set())
    assert {page: directives for page, directives in found.items() if directives} == {}


def test_reference_contains_no_unconverted_docstring_markup() -> None:
    for page, text in REFERENCE.items():
        for part in GENERATED.finditer(text):
            prose = re.sub(r"^```.*?^```$", "", part["text"], flags=re.MULTILINE | re.DOTALL)
            assert not re.search(r"``|::|:\w+:`|^(Args|Returns|Raises|Attributes|Example):", prose), page


@each_case(
    ("page", "text"),
    [
        ("config", "    min_interval: float = 0.05\n"),  # without Annotated
        ("config", "    _: KW_ONLY\n    expired: VacuumPolicy = VacuumPolicy.after_days(7)\n"),
        ("errors", "class PayloadError(SchedulerError, TypeError, ValueError)\n"),
        ("scheduler", "    retry_policy: RetryPolicy = RetryPolicy(),\n"),  # not the name of the constant
        ("scheduler", ") -> Callable[[F], F]\n"),  # the second overload of register()
        (
            "inspect",
            "    children: bool = False,\n    ids: Iterable[str] | None = None,\n",
        ),
        ("scheduler", "- `LEASE_DURATION: float = 60`: "),
        ("scheduler", "- `is_running: bool`: "),
        ("scheduler", "- `tasks: Tasks`: "),  # a cached property
        (
            "scheduler",
            "| [`get_vacuum_stats()`](#get_vacuum_stats) | ",
        ),  # from a base class that is not public
        ("values", "    kwargs: dict[str, Any] = {}\n"),
        ("values", "@classmethod\ndef from_db_value(db_value: int) -> JobPriority\n"),
        ("values", '    CRITICAL = "critical"\n'),
    ],
)
def test_reference_renders_signatures_defaults_and_attributes(page: str, text: str) -> None:
    assert text in REFERENCE[f"reference/{page}"]


DATACLASSES = {
    name: (module, definition)
    for module, name in sorted(DESCRIBED)
    if (definition := find(module, name)).decorators()  # those of a dataclass
}


def test_every_field_of_a_public_dataclass_is_documented() -> None:
    undocumented = []
    for name, (_, definition) in DATACLASSES.items():
        items = {**definition.doc.items.get("Args", {}), **definition.doc.items.get("Attributes", {})}
        fields = [field for field in definition.fields() if field.name != "_"]
        missing = [field.name for field in fields if not (field.text or items.get(field.name))]
        undocumented += [f"{name}.{field}" for field in missing]
    assert undocumented == []


def test_documented_dataclasses_include_those_that_users_read() -> None:
    values = {"Job", "JobSpec", "JobCounts", "Worker", "CurrentJob", "RetryPolicy", "PeriodicJobConfig"}
    assert values | {"JobEvent", "UnregisteredName", "VacuumConfig", "PollingConfig"} <= DATACLASSES.keys()


def test_documented_attributes_of_a_dataclass_exist() -> None:
    for name, (module, definition) in DATACLASSES.items():
        cls = getattr(importlib.import_module(module), name)
        names = {field.name for field in dataclasses.fields(cls)}
        assert definition.doc.items.get("Args", {}).keys() <= inspect.signature(cls).parameters.keys() | names
        assert definition.doc.items.get("Attributes", {}).keys() <= names, name


async def test_example_of_migrate_returns_what_it_shows(empty_dsn: str) -> None:
    connection = await asyncpg.connect(empty_dsn)
    globs: dict[str, object] = {"migrate": migrate, "connection": connection}
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    for example in doctest.DocTestParser().get_examples(migrate.__doc__ or ""):
        if example.want:
            code = compile(example.source.strip(), "example", "eval", flags)
            value = eval(code, globs)
            assert f"{await value}\n" == example.want
        else:
            code = compile(example.source, "example", "exec", flags)
            await eval(code, globs)
    await connection.close()


def test_docstring_parser_splits_text_items_and_blocks() -> None:
    found = parse_docstring(
        """Summary line
        in two parts.

        More.

        Args:
            first: One.
            *others: Two,
                continued.

        Returns:
            A value.

        Example::

            call(1)

        Last words.
        """
    )
    assert found.summary == "Summary line in two parts."
    assert found.text.split("\n\n") == ["Summary line\nin two parts.", "More.", "Last words."]
    assert found.items == {"Args": {"first": "One.", "others": "Two, continued."}}
    assert found.blocks == {"Returns": "A value.", "Example": "call(1)"}


def test_docstring_parser_raises_when_a_parameter_has_no_description() -> None:
    with pytest.raises(ValueError, match="'no colon' in a docstring is not of the form"):
        parse_docstring("Summary.\n\n    Args:\n        no colon\n    ")


def test_reference_raises_when_a_module_does_not_define_the_name() -> None:
    with pytest.raises(LookupError, match="pg_scheduler does not define 'Nothing'"):
        complete({Path("page.md"): "<!-- reference: pg_scheduler Nothing -->\n"})
