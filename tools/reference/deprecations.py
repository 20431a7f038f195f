"""The deprecated names of the package, read from the source, and the rules that each of them has to keep.

The decorators of ``pg_scheduler/base/deprecation.py`` state since which version a name is deprecated, and in
which it goes. The rules are those of docs/project/stability.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from pg_scheduler.base.deprecation import Deprecation, with_sentence
from pg_scheduler.base.text.numbers import counted
from tools.environment import ROOT

MIN_RELEASES: Final = 2
"""The minor releases that have to warn before a name may go."""

_VERSION: Final = re.compile(r"(\d+)\.(\d+)(?:\.\d+)?(?:\.?(?:dev|a|b|rc)\d+)?")
_HEADING: Final = re.compile(r"^## \[(?P<version>[^]]+)\][^\n]*$", re.MULTILINE)

Version = tuple[int, int]
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def deprecations_of(node: Definition, owner: str = "") -> Iterator[Deprecation]:
    """Yield the deprecations that the decorators of a function or class declare.

    ``owner`` is the name of the class in which it is defined, with a full stop.
    """
    name = f"{owner}{node.name}" if isinstance(node, ast.ClassDef) else f"{owner}{node.name}()"
    for decorator in node.decorator_list:
        match decorator:
            case ast.Call(func=ast.Name(id="deprecated"), keywords=keywords):
                yield Deprecation(what=name, **_texts(keywords))
            case (
                ast.Call(
                    func=ast.Name(id="deprecated_parameter"), args=[ast.Constant(value=str(parameter))]
                ) as call
            ):
                yield Deprecation(what=f"{parameter}= of {name}", **_texts(call.keywords))


def docstring_of(node: Definition) -> str | None:
    """Return the docstring of a function or class, with the sentences that its decorators add."""
    docstring = ast.get_docstring(node)
    # The decorator that is nearest to the function is the first one that Python applies.
    for deprecation in reversed(list(deprecations_of(node))):
        docstring = with_sentence(docstring, deprecation.sentence)
    return docstring


def _texts(keywords: list[ast.keyword]) -> dict[str, str]:
    """Return the keyword arguments of a decorator, which have to be literal texts."""
    return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords}


def deprecations_in(source: str) -> list[Deprecation]:
    """Return the deprecations of a module, also those of methods."""
    return list(_deprecations_below(ast.parse(source), ""))


def _deprecations_below(node: ast.AST, owner: str) -> Iterator[Deprecation]:
    """Yield the deprecations within a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield from deprecations_of(child, owner)
        inner = f"{owner}{child.name}." if isinstance(child, ast.ClassDef) else owner
        yield from _deprecations_below(child, inner)


def deprecations_of_package() -> list[Deprecation]:
    """Return all deprecations of the package."""
    paths = sorted((ROOT / "pg_scheduler").rglob("*.py"))
    return [
        deprecation for path in paths for deprecation in deprecations_in(path.read_text(encoding="utf-8"))
    ]


def faults_of(deprecation: Deprecation, version: str, changelog: str) -> Iterator[str]:
    """Yield how a deprecation breaks the rules, in the package of a version and with its changelog."""
    since, removal, current = (
        read_version(text) for text in (deprecation.since, deprecation.removal, version)
    )
    if since > current:
        yield f"it is deprecated since {deprecation.since}, and this is {version}: set since= to this version"
    if removal[1] != 0 or removal <= since:
        yield f"only a major release removes a name: set removal= to {since[0] + 1}.0, or a later one"
    elif current >= removal:
        releases = {release for release in minor_releases(changelog) if since <= release < removal}
        if len(releases) < MIN_RELEASES:
            yield (
                f"only {counted(len(releases), 'minor release')} before {deprecation.removal} had the "
                f"warning, but {MIN_RELEASES} have to: set removal= to {removal[0] + 1}.0"
            )
        else:
            yield f"it goes in {deprecation.removal}, and this is {version}: remove it"
    entry = deprecated_part(changelog, since, current)
    if f"`{deprecation.what}`" not in entry or deprecation.removal not in entry:
        yield (
            f"the changelog of {deprecation.since} lacks it: write `{deprecation.what}`, what to use instead "
            f"and {deprecation.removal} below '### Deprecated'"
        )


def read_version(text: str) -> Version:
    """Return the major and the minor number of a version.

    Raises:
        ValueError: It is no version.
    """
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ValueError(f"a version must be like '1.2' or '1.2.0.dev0', not {text!r}")
    return int(match[1]), int(match[2])


def minor_releases(changelog: str) -> set[Version]:
    """Return the minor releases of a changelog."""
    texts = [match["version"] for match in _HEADING.finditer(changelog)]
    return {read_version(text) for text in texts if _VERSION.fullmatch(text)}


def deprecated_part(changelog: str, since: Version, current: Version) -> str:
    """Return what a changelog lists as deprecated in a version; an unreleased one is the current version."""
    sections = {
        match["version"]: changelog[match.end() :].partition("\n## ")[0]
        for match in _HEADING.finditer(changelog)
    }
    of_version = [
        text
        for version, text in sections.items()
        if _VERSION.fullmatch(version) and read_version(version) == since
    ]
    if since == current:
        of_version.append(sections.get("Unreleased", ""))
    return "\n".join(text.partition("### Deprecated\n")[2].partition("\n### ")[0] for text in of_version)
