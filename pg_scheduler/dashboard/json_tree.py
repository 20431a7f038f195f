"""JSON as a tree that folds without a script, however large the value is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from pg_scheduler.dashboard.redaction import HIDDEN
from pg_scheduler.dashboard.texts import plain, visible
from pg_scheduler.inspect.texts import counted

MAX_ITEMS: Final = 100
MAX_LENGTH: Final = 20_000
"""Characters of one value that are shown."""

MAX_TEXT_LENGTH: Final = 1_000
OPEN_LEVELS: Final = 3
OPEN_LINES: Final = 60
"""Lines that are open; further lists and objects are folded."""

INLINE_LENGTH: Final = 72
"""The maximum length of a list or an object in one line. It may contain no other list or object."""

_CLASSES: Final = {str: "s", bool: "kc", type(None): "kc", int: "m", float: "m"}
"""The classes of scalars, which are those of Pygments."""


class JsonTree(NamedTuple):
    """A value as HTML, whose text is JSON unless it was cut.

    Attributes:
        html: Nested ``<details>``.
        length: Characters of the value as JSON.
        is_cut: Whether parts are missing.
        has_rows: Whether it is a row for each argument, under its name.
    """

    html: Markup
    length: int
    is_cut: bool
    has_rows: bool = False


def json_tree(value: Any, names: Sequence[str] = ()) -> JsonTree:
    """Return a value as a tree of HTML. Its first three levels are open; what exceeds a maximum is left out.

    Args:
        value: The value.
        names: The names of the first items of its list ``args``, which are shown before them and are no part
            of the text.
    """
    value = plain(value)
    writer = _Writer(names)
    html = Markup("").join(writer.write(Markup(""), value, Markup(""), 0))
    return JsonTree(html, len(json.dumps(value, ensure_ascii=False)), writer.is_cut)


def arguments_tree(args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str]) -> JsonTree:
    """Return arguments as a row for each, under its name.

    The text of the rows together is the JSON of all arguments, whose brackets and keys are hidden. If a
    positional argument has no name, the arguments are a tree.

    Args:
        args: The positional arguments.
        kwargs: The keyword arguments.
        names: The names of the first positional arguments.
    """
    value = plain(arguments_of(args, kwargs))
    has_all_names = len(names) >= len(args)
    has_suitable_number = 0 < len(args) + len(kwargs) <= MAX_ITEMS
    if not has_all_names or not has_suitable_number:
        return json_tree(value, names)
    writer = _Writer(())
    html = Markup("").join(writer.write_rows(value["args"] if args else [], plain(kwargs), names))
    return JsonTree(html, len(json.dumps(value, ensure_ascii=False)), writer.is_cut, has_rows=True)


def arguments_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a job as one value: its keyword arguments if it has no others.

    Otherwise it is a dict with the keys ``args`` and, if there are keyword arguments, ``kwargs``.
    """
    if not args:
        return kwargs
    if not kwargs:
        return {"args": list(args)}
    return {"args": list(args), "kwargs": kwargs}


class _Writer:
    """Writes a value as HTML, and counts how many characters it has written, and how many lines are open."""

    def __init__(self, names: Sequence[str]) -> None:
        self.is_cut = False
        self._names = names
        self._characters_left = MAX_LENGTH
        self._lines = 0

    def write_rows(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str]
    ) -> Iterator[Markup]:
        """Yield a row for each argument. What JSON needs besides the values is hidden.

        So the text of the rows is ``{"args": [1, 2], "kwargs": {"to": 3}}``, or shorter if all arguments are
        positional, ``{"args": [1, 2]}``, or if none is, ``{"to": 3}``.
        """
        hidden = Markup('<span class="sr" aria-hidden="true">{}</span>')
        # For each value, the text that stands before it and the text that stands after it: brackets, keys and
        # commas. The positional arguments come first, and have no keys.
        keys = [f"{self._text(name)}: " for name in kwargs]
        before = [*[""] * len(args), *keys]
        after = [", "] * len(before)
        if args:
            last_positional = len(args) - 1
            before[0] = '{"args": ['
            after[last_positional] = "]" if kwargs else "]}"
        if kwargs:
            first_keyword = len(args)
            opening = ', "kwargs": {' if args else "{"
            before[first_keyword] = opening + before[first_keyword]
            after[-1] = "}}" if args else "}"
        all_names = [*names[: len(args)], *kwargs]
        all_values = [*args, *kwargs.values()]
        for place, (name, value) in enumerate(zip(all_names, all_values, strict=True)):
            if self._characters_left <= 0:
                self.is_cut = True
                yield Markup('<div class="cut">{:,} more</div>').format(len(before) - place)
                return
            label = Markup('<span class="nt" data-name="{}"></span>').format(visible(name[:MAX_TEXT_LENGTH]))
            head = hidden.format(before[place]) if before[place] else Markup("")
            tail = hidden.format(after[place]) if after[place] else Markup("")
            # A large value is a tree that folds.
            if isinstance(value, dict | list) and not _is_short(value):
                yield from self.write(head + label, value, tail, 1)
                continue
            row = Markup('<div class="argument">{}{}<span>{}{}</span></div>')
            yield row.format(head, label, self._inline(value), tail)

    def write(
        self, key: Markup, value: Any, tail: Markup, level: int, names: Sequence[str] = ()
    ) -> Iterator[Markup]:
        """Yield the HTML of a value, between its key and ``tail``, which is a comma or empty.

        ``level`` is the depth of the value, 0 for the whole value. ``names`` stand before the first items of
        a list.
        """
        self._lines += 1
        if not isinstance(value, dict | list) or (_is_short(value) and not names):
            yield Markup("<div>{}{}{}</div>").format(key, self._inline(value), tail)
            return
        is_object = isinstance(value, dict)
        begin, end = ("{", "}") if is_object else ("[", "]")
        size = counted(len(value), "key" if is_object else "item")
        # A value below the first level is open only if there is room for the lines of its members.
        lines_when_open = self._lines + min(len(value), MAX_ITEMS)
        is_open = level == 0 or (level < OPEN_LEVELS and lines_when_open <= OPEN_LINES)
        lines_before = self._lines
        yield Markup('<details{}><summary data-size="{} {}">{}{}</summary>').format(
            Markup(" open") if is_open else "", size, end, key, begin
        )
        # An item of a list has no key.
        members: Any = value.items() if isinstance(value, dict) else ((None, item) for item in value)
        for place, (name, member) in enumerate(members):
            if place >= MAX_ITEMS or self._characters_left <= 0:
                self.is_cut = True
                yield Markup('<div class="cut">{:,} more</div>').format(len(value) - place)
                break
            comma = Markup(",") if place < len(value) - 1 else Markup("")
            before = Markup("") if name is None else self._key(name)
            if place < len(names):
                before = Markup('<span class="nt" data-name="{}"></span>').format(visible(names[place]))
            # The names belong to the items of the list ``args`` of the whole value.
            item_names = self._names if level == 0 and name == "args" else ()
            yield from self.write(before, member, comma, level + 1, item_names)
        yield Markup("<div>{}{}</div></details>").format(end, tail)
        # The lines of a folded value are not visible, so they do not count.
        if not is_open:
            self._lines = lines_before

    def _key(self, name: str) -> Markup:
        """Return the key of a member of an object, with the colon after it."""
        return Markup('<span class="nt">{}</span>: ').format(self._text(name))

    def _inline(self, value: Any) -> Markup:
        """Return the HTML of a scalar, or of a list or an object of a few scalars, in one line."""
        if isinstance(value, dict):
            return Markup("{{{}}}").format(
                Markup(", ").join(self._key(name) + self._inline(member) for name, member in value.items())
            )
        if isinstance(value, list):
            return Markup("[{}]").format(Markup(", ").join(self._inline(member) for member in value))
        if value == HIDDEN:
            return Markup('<span class="hidden-value">{}</span>').format(self._text(value))
        if isinstance(value, str):
            return Markup('<span class="s">{}</span>').format(self._text(value))
        text = json.dumps(value)
        self._characters_left -= len(text)
        return Markup('<span class="{}">{}</span>').format(_CLASSES[type(value)], text)

    def _text(self, text: str) -> str:
        """Return a text as JSON, without its end if it is long."""
        excess = len(text) - MAX_TEXT_LENGTH
        if excess > 0:
            self.is_cut = True
            text = f"{text[:MAX_TEXT_LENGTH]}… {counted(excess, 'more character')}"
        escaped_text = _escaped(json.dumps(text, ensure_ascii=False))
        self._characters_left -= len(escaped_text)
        return escaped_text


def _escaped(text: str) -> str:
    """Return JSON with the escapes of JSON for characters that reorder or hide text."""
    if visible(text) == text:
        return text
    # json.dumps() returns the escape of a character between quotes, which are removed.
    return "".join(
        character if visible(character) == character else json.dumps(character)[1:-1] for character in text
    )


def _is_short(value: dict[str, Any] | list[Any]) -> bool:
    """Return whether a list or an object fits into a line."""
    members = value.values() if isinstance(value, dict) else value
    if len(value) > INLINE_LENGTH // 2 or any(isinstance(member, dict | list) for member in members):
        return False
    return len(json.dumps(value, ensure_ascii=False)) <= INLINE_LENGTH
