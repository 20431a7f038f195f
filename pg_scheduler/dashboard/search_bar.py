"""The search above the list of jobs, in parts: states as tabs, and terms that can be removed one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from pg_scheduler.inspect.jobs import StateCount
from pg_scheduler.inspect.search.terms import SearchStatus
from pg_scheduler.inspect.search.values import split_search
from pg_scheduler.inspect.search.words import split_words
from pg_scheduler.inspect.texts import count, quoted, rounded, term
from pg_scheduler.jobs.model import Worker

STATES: Final = (
    "", SearchStatus.DUE, SearchStatus.RUNNING, SearchStatus.SCHEDULED, SearchStatus.BLOCKED,
    SearchStatus.SLEEPING, SearchStatus.AWAITING, SearchStatus.RETRYING, SearchStatus.FAILED,
    SearchStatus.EXPIRED, SearchStatus.CANCELLED, SearchStatus.COMPLETED,
)  # fmt: skip
"""The states of the tabs. The empty text stands for all jobs."""

PENDING_STATES: Final = frozenset(
    {
        SearchStatus.PENDING, SearchStatus.DUE, SearchStatus.SCHEDULED, SearchStatus.BLOCKED,
        SearchStatus.SLEEPING, SearchStatus.AWAITING, SearchStatus.RETRYING,
    }
)  # fmt: skip
"""The states of pending jobs, and the status of all of them."""

STATUS_FIELD: Final = "status"
ANY_FIELD: Final = "any"

MAX_MEANT: Final = 5
"""Terms that are offered in the place of a word."""


class Term(NamedTuple):
    """A term of a search."""

    text: str
    """As the search contains it."""
    field: str
    """The text before the colon; empty if there is none."""
    value: str
    is_negated: bool
    rest: str
    """The search without this term."""


class Tab(NamedTuple):
    """A state to choose."""

    label: str
    number: str
    """The number of its jobs; empty if it is unknown or may not be seen."""
    q: str
    """The search for its jobs, with the terms of the current search that name no state."""
    is_current: bool


def terms_of(q: str) -> list[Term]:
    """Return the terms of a search.

    Raises:
        SearchError: The search is invalid.
    """
    # The two functions split a search in the same places: one into texts, the other into fields and values.
    texts = [q[word.start : word.end] for word in split_words(q)]
    terms = []
    for place, part in enumerate(split_search(q)):
        field = "" if part.field is None else part.field.text.lower()
        other_texts = texts[:place] + texts[place + 1 :]
        terms.append(Term(texts[place], field, part.value.text, part.is_negated, " ".join(other_texts)))
    return terms


def everywhere(terms: Sequence[Term]) -> str:
    """Return a search that looks for its words in arguments and metadata too.

    A number is looked for as a whole value, since parts of random ids and times are numbers too. Another word
    may be a part of a value.
    """
    texts = []
    for word in terms:
        if word.field or word.is_negated:
            texts.append(word.text)
            continue
        # With "~", a word may be a part of a value.
        needs_sign = not word.value.isdecimal() and not word.text.startswith("~")
        texts.append(f"{ANY_FIELD}:{'~' if needs_sign else ''}{word.text}")
    return " ".join(texts)


class Words(NamedTuple):
    """The words of a search for which the page offers terms."""

    value: str
    """All of these words, as the value of a term."""
    other_terms: str
    """The search without these words."""


def words_of(terms: Sequence[Term], fields: Collection[str] = ("", ANY_FIELD)) -> Words | None:
    """Return the words of a search that have one of these fields and are not negated; None without any.

    The field of a word without one is the empty text.
    """
    words = [term for term in terms if term.field in fields and not term.is_negated]
    if not words:
        return None
    other_terms = " ".join(term.text for term in terms if term not in words)
    # "~" before a word means that it may be a part of a value. It is no part of the word.
    all_words = " ".join(word.value.removeprefix("~") for word in words)
    return Words(quoted(all_words), other_terms)


def meant_by(terms: Sequence[Term], workers: Iterable[Worker]) -> dict[str, str]:
    """Return terms that a user may mean by a word, each with the whole search that has it in this place.

    A word without a field may be a part of an error or of a name. It may also be the name of a worker, as may
    the value of ``worker:``. Jobs have the id of their worker, so the term for it has the id.
    """
    candidates: list[tuple[str, str]] = []
    if (words := words_of(terms)) is not None:
        candidates = [
            (f"error:~{words.value}", words.other_terms),
            (f"name:*{words.value}*", words.other_terms),
        ]
        # everywhere() searches a number as a whole value. It may also be a part of an id.
        if words.value.isdecimal():
            candidates.append((f"id:*{words.value}*", words.other_terms))
    worker_words = [word for word in terms if word.field in {"", "worker"} and not word.is_negated]
    candidates += [
        (term("worker", worker.worker_id), word.rest)
        for word in worker_words
        for worker in workers
        if worker.identity == word.value
    ]
    return {text: f"{remainder} {text}".strip() for text, remainder in candidates[:MAX_MEANT]}


def state_of(terms: Sequence[Term]) -> str | None:
    """Return the state of the tab to which a search belongs, empty for all jobs; None if it has no tab.

    A search belongs to a tab if it names one state, or none.
    """
    state_terms = [term for term in terms if term.field == STATUS_FIELD]
    if not state_terms:
        return ""
    state_term, *other_state_terms = state_terms
    if other_state_terms or state_term.is_negated:
        return None
    state = state_term.value.lower()
    return state if state in STATES else None


def are_all_pending(terms: Sequence[Term]) -> bool:
    """Return whether a search finds pending jobs only, of several states."""
    values = [term.value.lower() for term in terms if term.field == STATUS_FIELD and not term.is_negated]
    return any(value not in STATES and PENDING_STATES.issuperset(value.split(",")) for value in values)


def tabs_of(terms: Sequence[Term], counts: Mapping[str, StateCount]) -> list[Tab]:
    """Return the tabs above the list of jobs: one for all jobs, and one for each state.

    The numbers count all jobs of a state, so they are left out if the search has other terms.
    """
    current_state = state_of(terms)
    other_terms = [term.text for term in terms if term.field != STATUS_FIELD]
    shown_counts = {} if other_terms else counts
    tabs = []
    for state in STATES:
        number = text_of(shown_counts[state]) if state in shown_counts else ""
        state_terms = [f"{STATUS_FIELD}:{state}"] if state else []
        tab = Tab(
            label=state.capitalize() or "All",
            number=number,
            q=" ".join([*other_terms, *state_terms]),
            is_current=state == current_state,
        )
        tabs.append(tab)
    return tabs


def text_of(state_count: StateCount) -> str:
    """Return a number of jobs as the page shows it: ``~`` marks an estimate, ``+`` a count that stopped."""
    if state_count.is_estimated:
        return f"~{rounded(state_count.number)}"
    return count(state_count.number, is_capped=state_count.is_capped)
