"""Complete a term of a search: fields, names, paths of arguments and their values, with their numbers.

The numbers are those of a sample: the first jobs that the other terms of the search find.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from pg_scheduler.dashboard.answers import JsonAnswer, document_of
from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.redaction import IsHidden
from pg_scheduler.dashboard.texts import plain, visible
from pg_scheduler.errors import PayloadError
from pg_scheduler.inspect import SearchError
from pg_scheduler.inspect.search.parser import FIELDS
from pg_scheduler.inspect.search.terms import SearchStatus
from pg_scheduler.inspect.texts import quoted, term
from pg_scheduler.jobs import metadata
from pg_scheduler.jobs.limits import limit_of
from pg_scheduler.jobs.model import Job, JobPriority

SAMPLE_JOBS: Final = 100
SAMPLE_AGE_S: Final = 10.0

_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_ERROR_TYPE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*(?=:)")

MAX_COMPLETIONS: Final = 20
MAX_LISTED: Final = 100
"""Completions of the list without a script."""

MAX_MEANT: Final = 3
"""Arguments in which a value is offered to be searched."""

MAX_TYPED: Final = 200
MAX_PATHS: Final = 100
MAX_LEVELS: Final = 4
MAX_ELEMENTS: Final = 3
MAX_VALUE_LENGTH: Final = 100


class Completion(NamedTuple):
    """A term, or the start of one, which ends with a colon."""

    text: str
    jobs: int | None
    """The jobs of the sample that it finds; None for a term that was not counted."""
    is_capped: bool
    """Whether the search finds further jobs than those of the sample."""


class Sample(NamedTuple):
    """What the jobs of a sample contain, as far as the request may see it.

    Attributes:
        paths: How many jobs have a value at each path, such as ``arg.user.id``.
        terms: How many jobs each term finds, such as ``arg.user.id:42`` or ``name:mail.send``.
        is_capped: Whether the sample lacks jobs of its search.
    """

    paths: Counter[str]
    terms: Counter[str]
    is_capped: bool

    @classmethod
    async def of(cls, jobs: Iterable[Job], request: PageRequest, *, is_capped: bool) -> Sample:
        """Return what these jobs contain.

        All other visible names of jobs and tasks are offered as terms too. They find 0 of these jobs.
        """
        sample = cls(Counter(), Counter(), is_capped)
        counted_names = filter(request.access.sees_name, await request.job_names())
        names = {*counted_names, *(await request.task_names()).main}
        sample.terms.update({term("name", name): 0 for name in sorted(names)})
        for job in jobs:
            # The sets let a job count once for a path or a term that it contains several times.
            contents = set(_contents(job, request))
            paths = {path for path, _ in contents if path and not _has_escapes(path)}
            terms = {text for _, text in contents if text and not _has_escapes(text)}
            sample.paths.update(paths)
            sample.terms.update(terms)
        return sample

    def completions(self, typed: str) -> list[Completion]:
        """Return the completions of a term that was typed in part, those that find the most jobs first.

        These are the terms that begin with the typed text, or that have it after their last dot.
        """
        # A "-" before a term negates it.
        sign, text = ("-", typed[1:]) if typed.startswith("-") else ("", typed)
        prefix = text.lower()
        # The terms to choose from, with the numbers of the jobs that they find; None if that is unknown.
        candidates: dict[str, int | None] = {}
        if ":" in text:
            candidates |= dict.fromkeys(_CHOICES)
            candidates |= self.terms
        else:
            # The name of a field with "<" stands for several fields, such as one for each argument.
            candidates |= {f"{field}:": None for field in FIELDS if "<" not in field}
            candidates |= {f"{path}:": count for path, count in self.paths.items()}
            candidates |= {
                candidate: count
                for candidate, count in self.terms.items()
                if text and candidate.startswith("name:")
            }
        # A text without a colon may be the beginning of a field or of a name.
        starts = (prefix, f"name:{prefix}") if text and ":" not in text else (prefix,)

        def is_match(candidate: str) -> bool:
            """Return whether a term begins with the typed text, or has it after its last dot."""
            _, _, after_last_dot = candidate.lower().rpartition(".")
            return candidate.lower().startswith(starts) or after_last_dot.startswith(starts)

        completions = [
            Completion(f"{sign}{candidate}", count or None, self.is_capped)
            for candidate, count in candidates.items()
            if candidate != text and is_match(candidate)
        ]
        return sorted(completions, key=lambda completion: -(completion.jobs or 0))[:MAX_COMPLETIONS]

    def listed(self) -> list[Completion]:
        """Return the terms to choose from without a script: the usual ones, then those of the most jobs."""
        completions = [Completion(choice, None, self.is_capped) for choice in _CHOICES]
        completions += [
            Completion(text, count or None, self.is_capped)
            for text, count in self.terms.most_common(MAX_LISTED)
        ]
        return completions[:MAX_LISTED]


_CHOICES: Final = (
    *(f"status:{status}" for status in SearchStatus),
    *(f"priority:{priority.value}" for priority in JobPriority),
    *("due:<now", "due:<-1h", "created:today", "finished:>-1h", "finished:>-1d", "finished:today"),
    *("attempt:>1", "crashed:yes"),
)
"""Terms that are offered whatever the jobs are."""


async def complete(request: PageRequest, *, is_head: bool) -> Response:
    """Return the completions of ``term=`` in a search whose other terms are ``q=``, as JSON."""
    if is_head:
        return Response(media_type="application/json")
    typed = request.parameters.get("term", "")[:MAX_TYPED]
    sample = await _sample_for(request, request.parameters.get("q", ""), typed)
    return JsonAnswer(
        document_of("complete", [completion._asdict() for completion in sample.completions(typed)])
    )


async def arguments_with(value: str, q: str, request: PageRequest) -> list[str]:
    """Return up to three terms that search for a value in an argument, such as ``arg.user.id:42``.

    They are sorted by the number of jobs in a sample of the search that they find, then by the number of
    jobs that have the argument, then by their texts.

    Args:
        value: The value, as a term has it.
        q: The search.
        request: The request, which sees these arguments.
    """
    sample = await _sample_for(request, q, "")
    jobs_by_term = {
        f"{path}:{value}": count for path, count in sample.paths.items() if path.startswith("arg.")
    }
    return sorted(jobs_by_term, key=lambda text: (-sample.terms[text], -jobs_by_term[text], text))[:MAX_MEANT]


def paths_with(value: str, jobs: Iterable[Job], request: PageRequest) -> Counter[str]:
    """Return the fields in which a value of ``any:`` occurs, with the numbers of the jobs that have it there.

    Args:
        value: The value without quotes. With ``~`` before it, it may be a part of a value.
        jobs: The jobs.
        request: The request. Only what it may see is compared.
    """
    is_part = value.startswith("~")
    word = value[1:].lower() if is_part else value

    def has_word(text: str) -> bool:
        """Return whether the value is this word, or contains it if it may be a part of a value."""
        return word in text.lower() if is_part else text == word

    job_counts: Counter[str] = Counter()
    for job in jobs:
        texts = [("id", job.job_id), ("name", job.job_name), *_values(job, request)]
        # The set lets a job count once for a field that has the word in several values.
        job_counts.update({field for field, text in texts if has_word(text) and not _has_escapes(field)})
    return job_counts


async def _sample_for(request: PageRequest, q: str, typed: str) -> Sample:
    """Read the sample of jobs whose contents are offered as completions of a term.

    It has jobs that the search ``q`` finds and that have a value with the beginning that was typed. If the
    typed term has no value, or cannot be searched, it has jobs that the search finds without this term. If
    this search is rejected too, the sample has no jobs. A search is rejected while it is typed in part, if it
    compares with hidden values, or if it has a character that the database lacks.
    """
    field, colon, value = typed.removeprefix("-").partition(":")
    # A value that ends with a quote or an asterisk is not the beginning of another one.
    if colon and value and not value.endswith(('"', "*")):
        beginning = value.removeprefix('"')
        with suppress(SearchError, PayloadError):
            return await _shared_sample(request, f"{q} {field}:{quoted(beginning)}*")
    with suppress(SearchError, PayloadError):
        return await _shared_sample(request, q)
    return await Sample.of((), request, is_capped=False)


async def _shared_sample(request: PageRequest, where: str) -> Sample:
    """Return the sample of a search; requests with the same rights share it for some seconds."""
    request.check_search(where)
    depends_on = request.access.visible_names, request.access.sees_arguments
    return await request.read_shared(
        _read_sample, where, age_s=SAMPLE_AGE_S, is_age_shown=False, depends_on=depends_on
    )


async def _read_sample(request: PageRequest, where: str) -> Sample:
    """Read the first jobs of a search and what they contain; requests share the result."""
    page = await request.search_jobs(where, SAMPLE_JOBS)
    return await Sample.of(page.items, request, is_capped=not page.is_complete)


def _has_escapes(text: str) -> bool:
    """Return whether a page shows a text with escapes, so that a user could not type it as a term."""
    return visible(text) != text


def _contents(job: Job, request: PageRequest) -> Iterator[tuple[str, str]]:
    """Yield pairs of a path within the values of a job, and a term of a search that finds the job by it.

    The path is empty for a term without one, such as a name. The term is empty for a value that cannot be
    searched, such as a long one.
    """
    yield "", term("name", job.job_name)
    if job.worker_id is not None:
        yield "", term("worker", job.worker_id)
    if job.schedule_id is not None:
        yield "", term("schedule", job.schedule_id)
    if limit := limit_of(job.blocked_on)[0]:
        yield "", term("limit", limit)
    # An error is offered by the name of its class, which stands before the first colon.
    error_type = _ERROR_TYPE.match(job.error_message or "")
    if error_type is not None:
        yield "", f"error:{error_type[0]}*"
    for path, text in _values(job, request):
        # The text of an object or a list cannot be searched if some values are hidden.
        is_searchable = 0 < len(text) <= MAX_VALUE_LENGTH and text[0] not in "{["
        searched_text = f"{path}:{quoted(text)}" if is_searchable else ""
        # A tag is found by a field of the search, and not by a path within a value.
        yield ("" if path == "tag" else path), searched_text


def _values(job: Job, request: PageRequest) -> Iterator[tuple[str, str]]:
    """Yield fields of a job with their values as texts: tags, arguments and metadata."""
    if not request.access.sees_arguments:
        return
    is_hidden = request.settings.redaction.is_hidden
    if not is_hidden("tags"):
        yield from (("tag", tag) for tag in metadata.tags_of(job.metadata))
    other_metadata = {key: value for key, value in job.metadata.items() if key != "tags"}
    yield from islice(_leaves("arg", dict(enumerate(job.args)), is_hidden, MAX_LEVELS), MAX_PATHS)
    yield from islice(_leaves("arg", job.kwargs, is_hidden, MAX_LEVELS), MAX_PATHS)
    yield from islice(_leaves("metadata", other_metadata, is_hidden, MAX_LEVELS), MAX_PATHS)


def _leaves(path: str, value: Any, is_hidden: IsHidden, levels: int) -> Iterator[tuple[str, str]]:
    """Yield pairs: a path to a scalar within a value, and the scalar as a text. Hidden values are left out.

    ``path`` is that of the value itself. ``levels`` is how much deeper objects and lists are searched.
    """
    if isinstance(value, Mapping):
        for key, member in value.items():
            name = str(key)
            if levels and name and not is_hidden(name):
                key_in_path = name
                if not _PLAIN_KEY.fullmatch(name):
                    # quoted() escapes a text, but adds quotes only where they are needed. So a blank is
                    # added, which needs them. Then the opening quote, the blank and the closing quote are
                    # removed.
                    escaped_name = quoted(f"{name} ")[1:-2]
                    key_in_path = f'"{escaped_name}"'
                yield from _leaves(f"{path}.{key_in_path}", member, is_hidden, levels - 1)
    elif isinstance(value, list | tuple):
        first_members = value[:MAX_ELEMENTS] if levels else ()
        for place, member in enumerate(first_members):
            yield from _leaves(f"{path}.{place}", member, is_hidden, levels - 1)
    elif value is not None:
        yield path, value if isinstance(value, str) else json.dumps(plain(value))
