"""Every deprecation in the package keeps the rules of docs/project/stability.md."""

from __future__ import annotations

import ast

import pytest

import pg_scheduler
from pg_scheduler.base.deprecation import Deprecation
from tools.environment import ROOT
from tools.reference.deprecations import (
    deprecations_in,
    deprecations_of_package,
    docstring_of,
    faults_of,
    read_version,
)

CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

MODULE = '''
class Scheduler:
    @deprecated(since="1.2", removal="2.0", instead="enqueue()")
    async def put(self) -> None:
        """Put a job.

        It is run later.
        """

    @classmethod
    @deprecated_parameter("url", since="1.3", removal="2.0", instead="dsn=")
    def connect(cls, url: str) -> None: ...

@deprecated(since="1.3", removal="3.0", instead="Scheduler")
class Old: ...

def kept() -> None: ...
'''

RELEASES = """
## [Unreleased]

## [1.3.1] - 2027-05-01

## [1.3.0] - 2027-04-01

### Changed

- `Scheduler.put()` is faster.

## [1.2.0] - 2027-01-01

### Deprecated

- `Scheduler.put()`: use `enqueue()`. It goes in 2.0.

### Fixed

- `Old` works.
"""

PUT = Deprecation("Scheduler.put()", "1.2", "2.0", "enqueue()")


def test_every_deprecation_of_the_package_keeps_the_rules() -> None:
    faults = {
        deprecation.what: list(faults_of(deprecation, pg_scheduler.__version__, CHANGELOG))
        for deprecation in deprecations_of_package()
    }
    assert {what: names for what, names in faults.items() if names} == {}


def test_no_module_warns_of_a_deprecation_by_itself() -> None:
    """Otherwise the rules would not be checked."""
    decorators = ROOT / "pg_scheduler/base/deprecation.py"
    paths = [path for path in (ROOT / "pg_scheduler").rglob("*.py") if path != decorators]
    assert [path for path in paths if "DeprecationWarning" in path.read_text(encoding="utf-8")] == []


def test_deprecations_of_functions_methods_classes_and_parameters_are_found() -> None:
    assert deprecations_in(MODULE) == [
        PUT,
        Deprecation("url= of Scheduler.connect()", "1.3", "2.0", "dsn="),
        Deprecation("Old", "1.3", "3.0", "Scheduler"),
    ]


def test_reference_has_the_sentence_that_the_docstring_gets() -> None:
    scheduler = ast.parse(MODULE).body[0]
    assert isinstance(scheduler, ast.ClassDef)
    put = scheduler.body[0]
    assert isinstance(put, ast.AsyncFunctionDef)
    assert docstring_of(put) == (
        "Put a job.\n\nDeprecated since 1.2: put() goes in 2.0; use enqueue() instead.\n\nIt is run later."
    )


@pytest.mark.parametrize("version", ["1.2.0", "1.3.0.dev0", "1.3.1", "1.9.0rc1"])
def test_deprecation_has_no_fault_before_its_removal(version: str) -> None:
    assert list(faults_of(PUT, version, RELEASES)) == []


@pytest.mark.parametrize("version", ["2.0.0.dev0", "2.0.0", "2.1.0", "3.0.0.dev0"])
def test_deprecation_must_be_removed_when_its_version_has_come(version: str) -> None:
    (fault,) = faults_of(PUT, version, RELEASES)
    assert fault == f"it goes in 2.0, and this is {version}: remove it"


def test_removal_is_too_early_after_a_single_minor_release_with_the_warning() -> None:
    one_release = RELEASES.replace("## [1.3.0]", "## [1.2.2]").replace("## [1.3.1]", "## [1.2.3]")
    (fault,) = faults_of(PUT, "2.0.0.dev0", one_release)
    assert fault == ("only 1 minor release before 2.0 had the warning, but 2 have to: set removal= to 3.0")


@pytest.mark.parametrize("removal", ["1.4", "1.2", "1.0", "2.1"])
def test_minor_release_removes_nothing(removal: str) -> None:
    changelog = RELEASES.replace("goes in 2.0", f"goes in {removal}")
    faults = list(faults_of(PUT._replace(removal=removal), "1.3.0", changelog))
    assert faults == ["only a major release removes a name: set removal= to 2.0, or a later one"]


def test_deprecation_begins_in_this_version_or_an_earlier_one() -> None:
    faults = list(faults_of(PUT, "1.1.0", RELEASES))
    assert faults == ["it is deprecated since 1.2, and this is 1.1.0: set since= to this version"]


@pytest.mark.parametrize(
    "changelog",
    [
        RELEASES.replace("### Deprecated", "### Changed"),
        RELEASES.replace("goes in 2.0", "goes away"),
        RELEASES.replace("[1.2.0]", "[1.1.0]"),
        "",
    ],
    ids=["another heading", "no version", "another release", "empty"],
)
def test_changelog_lists_what_is_deprecated_since_a_version(changelog: str) -> None:
    (fault,) = faults_of(PUT, "1.3.0", changelog)
    assert fault.startswith("the changelog of 1.2 lacks it: write `Scheduler.put()`, what to use instead")


def test_changelog_of_the_unreleased_version_lists_what_it_deprecates() -> None:
    unreleased = RELEASES.replace("## [1.2.0] - 2027-01-01", "## [Unreleased]").partition("\n## [1.3.1]")
    changelog = f"\n## [Unreleased]{unreleased[2].rpartition('## [Unreleased]')[2]}"
    assert list(faults_of(PUT, "1.2.0.dev0", changelog)) == []
    (fault,) = faults_of(PUT, "1.3.0.dev0", changelog)
    assert fault.startswith("the changelog of 1.2 lacks it")


@pytest.mark.parametrize("text", ["1", "next", "1.x", ""])
def test_version_must_have_a_major_and_a_minor_number(text: str) -> None:
    with pytest.raises(ValueError, match=f"a version must be like '1.2' or '1.2.0.dev0', not {text!r}"):
        read_version(text)


def test_page_about_stability_describes_the_decorators() -> None:
    page = (ROOT / "docs/project/stability.md").read_text(encoding="utf-8")
    assert "`DeprecationWarning`" in page
    assert "at least two minor releases" in page
