"""Hide values by their keys, and the keys of limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pg_scheduler.dashboard.access import Access
from pg_scheduler.dashboard.texts import MAX_DEPTH
from pg_scheduler.inspect import Search, SearchError
from pg_scheduler.inspect.other_jobs import error_about_other_job
from pg_scheduler.inspect.search.terms import JsonTerm, Pattern, TextField, TextTerm
from pg_scheduler.jobs.keys import name_and_key
from pg_scheduler.jobs.limits import BLOCKED_BY_LIMIT
from pg_scheduler.jobs.sequences import BLOCKED_BY_SEQUENCE
from pg_scheduler.jobs.shares import BLOCKED_BY_SHARE

HIDDEN: Final = "[hidden]"
WHOLE_SEARCH: Final = 0
"""The position that a SearchError has here: a parsed term does not have its own."""

IsHidden: TypeAlias = Callable[[str], bool]
"""A function that returns whether the value of a key is hidden."""


@dataclass(frozen=True, slots=True)
class Redaction:
    """Hides values by their keys, in arguments, results and metadata.

    Attributes:
        is_hidden: Returns whether the value of a key is hidden. The key of a positional argument is its
            number as a text.
        is_empty: Whether it hides nothing.
    """

    is_hidden: IsHidden
    is_empty: bool = False

    @classmethod
    def of(cls, redact: Iterable[str] | IsHidden) -> Redaction:
        """Return the redaction for the argument ``redact=``: keys, whose case is ignored, or a function.

        Raises:
            TypeError: ``redact`` is a str, or one of the keys is not a str.
        """
        if isinstance(redact, str):
            raise TypeError(f"redact must be several keys or a function, not a str; write ({redact!r},)")
        if callable(redact):
            return cls(redact)
        keys = list(redact)
        if not all(isinstance(key, str) for key in keys):
            raise TypeError(f"each key of redact must be a str, not {keys!r}")
        hidden_keys = frozenset(key.casefold() for key in keys)
        return cls(lambda key: key.casefold() in hidden_keys, is_empty=not hidden_keys)

    def values(self, values: Mapping[str, Any] | Iterable[Any]) -> Any:
        """Return arguments or metadata as dicts and lists in which ``HIDDEN`` replaces the hidden values."""
        return self.value(values) if isinstance(values, Mapping) else self._arguments(values, 1)

    def value(self, value: Any, depth: int = 0) -> Any:
        """Return a result, or a part of it at a depth, in which ``HIDDEN`` replaces the hidden values.

        What is too deep to be shown becomes an ellipsis.
        """
        if depth >= MAX_DEPTH:
            return "…"
        if isinstance(value, Mapping):
            return {
                key: HIDDEN if self.is_hidden(str(key)) else self._member(key, member, depth + 1)
                for key, member in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(item, depth + 1) for item in value]
        return value

    def _member(self, key: object, value: Any, depth: int) -> Any:
        """Return the value of a key without what is hidden in it.

        A list with the key ``args`` has the positional arguments in the stored definition of a schedule or a
        job, so its items are hidden by their numbers.
        """
        has_positional_arguments = key == "args" and isinstance(value, list)
        if has_positional_arguments:
            return self._arguments(value, depth + 1)
        return self.value(value, depth)

    def _arguments(self, values: Iterable[Any], depth: int) -> list[Any]:
        """Return positional arguments without what is hidden in them. Their keys are 0, 1 and so on."""
        return [
            HIDDEN if self.is_hidden(str(place)) else self.value(argument, depth)
            for place, argument in enumerate(values)
        ]

    def shows(self, values: Mapping[str, Any]) -> bool:
        """Return whether nothing of values is hidden; what is too deep to be shown counts as hidden."""
        return self.is_empty or bool(self.values(values) == values)

    def shows_all_values(self, access: Access) -> bool:
        """Return whether a request sees every value of arguments and metadata, and so may search all."""
        return self.is_empty and access.sees_arguments

    def check_search(self, search: Search, access: Access) -> None:
        """Reject a search whose result would show what the request may not see.

        Raises:
            SearchError: It has a term about arguments or metadata that are hidden.
        """
        for term in search.terms:
            if isinstance(term, JsonTerm):
                self._check_json(term, access)
            elif isinstance(term, TextTerm):
                self._check_text(term, access)

    def _check_text(self, term: TextTerm, access: Access) -> None:
        """Reject a term that would reveal hidden tags, arguments, keys of limits, or ids of hidden jobs."""
        if term.field is TextField.TAG and (not access.sees_arguments or self.is_hidden("tags")):
            raise SearchError("you may not search tags; remove tag:", WHOLE_SEARCH)
        # The keys of a limit are made from arguments, and stand after the name of the limit and a colon. So
        # the whole name of a limit may be searched, but a pattern, or a text with a colon, could match a key.
        may_show_keys = term.field is TextField.LIMIT and not all(map(_is_whole_name, term.patterns))
        if may_show_keys and not access.sees_arguments:
            raise SearchError(
                "you may not search keys of limits; write limit: with the whole name of a limit", WHOLE_SEARCH
            )

        if term.field is TextField.ANY and not self.shows_all_values(access):
            raise SearchError(
                "you may not search all arguments; write a word, or arg. with its name", WHOLE_SEARCH
            )

        # A visible job may wait for a hidden one, whose id a pattern would find character by character.
        if term.field is TextField.CHILD and not (access.sees_arguments and access.names is None):
            raise SearchError("you may not search the ids of children; remove child:", WHOLE_SEARCH)

    def _check_json(self, term: JsonTerm, access: Access) -> None:
        """Reject a term that compares with hidden arguments or metadata."""
        if not access.sees_arguments:
            raise SearchError(
                "you may not search arguments and metadata; remove arg. and metadata.", WHOLE_SEARCH
            )
        if self.is_empty:
            return
        # The path begins with ``arg`` or ``metadata``, and the keys follow.
        if any(self.is_hidden(key) for key in term.path[1:]):
            raise SearchError("this value is hidden, so it cannot be searched; remove the term", WHOLE_SEARCH)
        # The text of an object or a list contains its hidden values, so no pattern may be compared with it.
        if any(
            pattern.literal is None or pattern.is_part or pattern.literal[:1] in "{["
            for pattern in term.patterns
        ):
            raise SearchError(
                "some values are hidden, so write arg. and metadata. with whole values", WHOLE_SEARCH
            )


def _is_whole_name(pattern: Pattern) -> bool:
    """Return whether a pattern matches one name only, and no key: a key follows a name and a colon."""
    return pattern.literal is not None and not pattern.is_part and ":" not in pattern.literal


def without_other_job(error: str) -> str:
    """Return an error; only its class if it mentions another job."""
    kind = error_about_other_job(error)
    return error if kind is None else f"{kind}: {HIDDEN}"


def without_key(blocked_on: str | None) -> str | None:
    """Return the text that states what blocks a job, without the key of a limit or a sequence, or a tenant.

    These are made from arguments of the job. The name of the limit, the sequence or the share stays.
    """
    for kind in (BLOCKED_BY_LIMIT, BLOCKED_BY_SEQUENCE, BLOCKED_BY_SHARE):
        name, key = name_and_key(kind, blocked_on)
        if key:
            return f"{kind}{name}:{HIDDEN}"
    return blocked_on
