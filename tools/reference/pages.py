"""The reference pages: hand-written prose, and comments in whose place generated parts are put.

A comment names a module and some of its public names; without names, it stands for the docstring of the
module::

    <!-- reference: pg_scheduler.events JobStarted JobCompleted -->

The headings of a part are one level below the heading above it.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tools.reference.commands import with_commands
from tools.reference.deprecations import docstring_of
from tools.reference.docstrings import Docstring, parse_docstring
from tools.reference.source import Definition, Function, find, module_docstring

MIN_METHODS_FOR_A_TABLE = 4
PROPERTIES = {"property", "cached_property"}
FACE = "Scheduler"
"""The class whose methods are mentioned without it."""

COMMENT: Final = re.compile(r"^<!-- reference: (?P<what>[\w.\s]+?) -->$", re.MULTILINE)
GENERATED: Final = re.compile(r"^<!-- generated -->$(?P<text>.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)
"""A generated part of a complete page."""
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
_MENTION = re.compile(r"`(?P<code>[\w.]+(?:\(\))?)`|(?<![\w`.])(?P<bare>(?:[A-Z][a-z]+){2,})(?![\w`(]|\.\w)")
_DOCTEST_OPTION = re.compile(r" *# doctest: .*$", re.MULTILINE)


class Target(NamedTuple):
    """The target of a link."""

    page: Path
    anchor: str


@dataclass(frozen=True)
class Part:
    """A generated part of a page.

    Attributes:
        module: The module that it describes, or whose names it describes.
        names: The names; none for the docstring of the module.
    """

    module: str
    names: tuple[str, ...]


def parts(text: str) -> list[Part]:
    """Return the generated parts of a page."""
    found = [match["what"].split() for match in COMMENT.finditer(text)]
    return [Part(module, tuple(names)) for module, *names in found]


def complete(pages: Mapping[Path, str]) -> dict[Path, str]:
    """Return the pages with their generated parts.

    Raises:
        ValueError: A docstring cannot be read.
        LookupError: A module does not define a name.
    """
    targets = targets_of(pages)
    return {page: with_commands(Renderer(page, targets).render(text)) for page, text in pages.items()}


def targets_of(pages: Mapping[Path, str]) -> dict[str, Target]:
    """Return the targets of links to what the generated parts of these pages describe, by name."""
    rendered = {page: Renderer(page, {}).render(text) for page, text in pages.items()}
    return {key: target for page, text in rendered.items() for key, target in _targets(page, text)}


def _targets(page: Path, text: str) -> Iterator[tuple[str, Target]]:
    """Yield what the generated headings describe, with the page and the anchor."""
    generated = [match.span() for match in GENERATED.finditer(text)]
    counts: Counter[str] = Counter()
    owner, owner_level = "", 0
    for match in _HEADING.finditer(_FENCE.sub(lambda fence: " " * len(fence[0]), text)):
        slug = re.sub(r"[^\w\- ]", "", match[2].lower()).replace(" ", "-")
        target = Target(page, f"{slug}-{counts[slug]}" if counts[slug] else slug)
        counts[slug] += 1
        name = match[2].strip("`")
        if not any(start < match.start() < end for start, end in generated):
            continue
        if not name.endswith("()"):
            owner, owner_level = name, len(match[1])
            yield name, target
        elif len(match[1]) > owner_level > 0:
            yield f"{owner}.{name}", target
        else:
            owner_level = 0
            yield name, target


class Renderer:
    """Writes the generated parts of one page.

    Args:
        page: The page, relative to which links are written.
        targets: The targets of links, by name.
    """

    def __init__(self, page: Path, targets: Mapping[str, Target]) -> None:
        self._page = page
        self._targets = targets
        self._owner = ""  # the class that is being described
        self._linked: set[str] = set()  # in the section that is being written

    def render(self, text: str) -> str:
        """Return the page with its generated parts."""
        return COMMENT.sub(lambda match: self._part(match, text[: match.start()]), text)

    def _part(self, match: re.Match[str], before: str) -> str:
        module, *names = match["what"].split()
        above = _HEADING.findall(_FENCE.sub("", before))
        heading = "#" * (len(above[-1][0]) + 1 if above else 1)
        self._begin("")
        if names:
            body = "\n\n".join(self._definition(find(module, name), name, heading) for name in names)
        else:
            body = self._docstring(module_docstring(module))
        return f"<!-- generated -->\n\n{body}\n\n<!-- end -->"

    def _begin(self, name: str) -> None:
        self._linked = {name}

    # -- definitions -----------------------------------------------------------------------------------

    def _definition(self, it: Definition, name: str, heading: str) -> str:
        self._owner = ""
        if isinstance(it.node, ast.ClassDef):
            return "\n\n".join(filter(None, self._class(it, heading)))
        if isinstance(it.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return self._function(it, [it.node], heading)
        self._begin(name)
        value = getattr(it.node, "value", None)
        declared = name if value is None else f"{name} = {it.source(value)}"
        return "\n\n".join(filter(None, [f"{heading} `{name}`", _python(declared), self._docstring(it.doc)]))

    def _class(self, it: Definition, heading: str) -> Iterator[str]:
        self._begin(it.name)
        self._owner = it.name
        owners = [it, *it.mixins()]
        functions = public_functions(it)
        names = list(functions)
        methods = [name for name in names if not is_property(functions[name][1][-1])]
        properties = [name for name in names if name not in methods]
        fields = [each for owner in owners for each in owner.fields()]
        bases = f"({', '.join(it.bases())})" if it.bases() else ""
        constructor = it.functions().get("__init__")
        if constructor and _is_internal(constructor[-1]):
            constructor = None

        yield f"{heading} `{it.name}`"
        if constructor and (not bases or it.has_own_constructor()):
            yield _python(it.signature(constructor[-1], constructor_of=it.name))
            attributes = {each.declaration: each.text for each in fields if each.text}
        else:
            body = [f"    {each.declaration}" for each in fields]
            yield _python(
                "\n".join([*it.decorators(), f"class {it.name}{bases}{':' if body else ''}", *body])
            )
            attributes = {each.name: each.text for each in fields if each.text}
        for name in properties:
            owner, nodes = functions[name]
            kind = f": {owner.annotation(nodes[-1].returns)}" if nodes[-1].returns else ""
            attributes[name + kind] = doc_of(nodes[-1]).summary
        yield self._docstring(it.doc, attributes)
        if len(methods) >= MIN_METHODS_FOR_A_TABLE:
            yield self._table({name: doc_of(functions[name][1][-1]).summary for name in methods})
        for name in methods:
            yield self._function(*functions[name], f"{heading}#")

    def _table(self, summaries: Mapping[str, str]) -> str:
        rows = []
        for name, summary in summaries.items():
            self._begin("")
            effect = self._inline(summary).removesuffix(".").replace("|", r"\|")
            rows.append(f"| {self._inline(f'`{self._owner}.{name}()`')} | {effect} |")
        return "\n".join(["| Method | Effect |", "|---|---|", *rows])

    def _function(self, it: Definition, nodes: list[Function], heading: str) -> str:
        name = f"{nodes[-1].name}()"
        self._begin(f"{self._owner}.{name}" if self._owner else name)
        shown = [f"@{each}" for each in ("classmethod", "contextmanager") if each in _decorators(nodes[-1])]
        shown += [it.signature(node) for node in nodes[:-1] or nodes]  # the overloads, if there are any
        signature = _python("\n".join(shown))
        return "\n\n".join(
            filter(None, [f"{heading} `{name}`", signature, self._docstring(doc_of(nodes[-1]))])
        )

    # -- docstrings ------------------------------------------------------------------------------------

    def _docstring(self, doc: Docstring, attributes: Mapping[str, str] | None = None) -> str:
        example = doc.blocks.get("Example") or doc.blocks.get("Examples")
        sections = {
            "Parameters": self._list(doc.items.get("Args", {})),
            "Attributes": self._list(doc.items.get("Attributes", {}) | dict(attributes or {})),
            "Returns": self._prose(doc.blocks.get("Returns", "")),
            "Yields": self._prose(doc.blocks.get("Yields", "")),
            "Raises": self._list(doc.items.get("Raises", {})),
            "Example": _code(_DOCTEST_OPTION.sub("", example)) if example else "",
        }
        named = [f"**{title}**\n\n{text}" for title, text in sections.items() if text]
        return "\n\n".join(filter(None, [self._prose(doc.text), *named]))

    def _list(self, items: Mapping[str, str]) -> str:
        return "\n".join(f"- {self._inline(f'`{name}`: {text}')}" for name, text in items.items())

    def _prose(self, text: str) -> str:
        """Return reStructuredText as Markdown: paragraphs, lists and literal blocks."""
        found = []
        for paragraph in _paragraphs(text):
            if paragraph.startswith(" "):
                found.append(_code(textwrap.dedent(paragraph)))
                continue
            plain = re.sub(r"\s*^::$", "", paragraph, flags=re.MULTILINE)
            first, *items = re.split(r"^[*-] ", re.sub(r"::$", ":", plain), flags=re.MULTILINE)
            if first.strip():
                found.append(self._inline(first))
            if items:
                found.append("\n".join(f"- {self._inline(item)}" for item in items))
        return "\n\n".join(found)

    def _inline(self, text: str) -> str:
        plain = re.sub(r"``(.+?)``", r"`\1`", " ".join(text.split()))
        return _MENTION.sub(self._link, plain)

    def _link(self, match: re.Match[str]) -> str:
        """Return the first mention of another name in a section as a link."""
        code = match["code"] or match["bare"]
        call = code if code.endswith("()") else f"{code}()"
        for key in (code, f"{self._owner}.{call}", f"{FACE}.{call}" if code == call else call):
            target = self._targets.get(key)
            if target is not None:
                break
        else:
            return match[0]
        if key in self._linked:
            return f"`{code}`"
        self._linked.add(key)
        page = "" if target.page == self._page else target.page.name
        shown = call if key == f"{self._owner}.{code.rpartition('.')[2]}" else code
        return f"[`{shown.removeprefix(self._owner + '.')}`]({page}#{target.anchor})"


def public_functions(it: Definition) -> dict[str, tuple[Definition, list[Function]]]:
    """Return the public methods and properties of a class in the order of the source, with their owners."""
    owners = [it, *it.mixins()]
    functions = {
        name: (owner, nodes)
        for owner in reversed(owners)
        for name, nodes in owner.functions().items()
        if not name.startswith("_")
    }
    names = dict.fromkeys(name for owner in owners for name in owner.functions() if name in functions)
    return {name: functions[name] for name in names}


def is_property(node: Function) -> bool:
    """Return whether a function of a class is a property, or one that is computed once."""
    return bool(_decorators(node) & PROPERTIES)


def _decorators(node: Function) -> set[str]:
    return {each.id for each in node.decorator_list if isinstance(each, ast.Name)}


def _is_internal(constructor: Function) -> bool:
    """Return whether only the Scheduler constructs the object, from its parts, as it does its facets."""
    return any(parameter.arg == "parts" for parameter in constructor.args.args)


def doc_of(node: Function) -> Docstring:
    """Return the docstring of a function."""
    return parse_docstring(docstring_of(node))


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs; indented ones that follow one another are one."""
    collected = ""
    for paragraph in filter(None, (each.strip("\n") for each in re.split(r"\n[ \t]*\n", text))):
        if collected.startswith(" ") and paragraph.startswith(" "):
            collected = f"{collected}\n\n{paragraph}"
            continue
        if collected:
            yield collected
        collected = paragraph
    if collected:
        yield collected


def _python(text: str) -> str:
    return f"```python\n{text}\n```"


def _code(text: str) -> str:
    """Return a literal block with the language that it is written in."""
    if text.startswith(">>>"):
        return f"```pycon\n{text}\n```"
    try:
        ast.parse(text)
    except SyntaxError:
        return f"```text\n{text}\n```"
    return _python(text)
