"""Change all jobs of a search or of a group of errors: ask with their number, start, stop, resume a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.dashboard.actions.request import ActionRequest, ConfirmPage, Redirect
from pg_scheduler.dashboard.context import NotFoundError, RejectedError
from pg_scheduler.dashboard.job_rows import row_of
from pg_scheduler.dashboard.pages.errors import search_of
from pg_scheduler.dashboard.pages.run import visible_state
from pg_scheduler.dashboard.search_bar import terms_of
from pg_scheduler.inspect import ErrorGroup
from pg_scheduler.inspect.bulk_runs import BulkJobs, BulkState
from pg_scheduler.inspect.errors import is_in_group
from pg_scheduler.inspect.store.bulk import BulkAction
from pg_scheduler.inspect.texts import count as capped
from pg_scheduler.inspect.texts import counted
from pg_scheduler.jobs.model import Job

MAX_UNTYPED: Final = 1000
"""The number of jobs above which a user must type the number to confirm the action."""

MIN_MARGIN: Final = 10
"""The number of jobs may grow by this many after the question was shown, or by a tenth if that is more."""

MAX_COUNTED: Final = 20
"""Batches of jobs that are counted for the question."""

SAMPLE: Final = 3
"""Jobs that the question lists."""

SEARCHED_FOR_SAMPLE: Final = 20
"""Jobs among which those of a group of errors are looked for."""

MAX_RATE: Final = 10_000
RECENT: Final = timedelta(days=1)
"""A user may retry only the jobs of a group that are not older than this, instead of all."""

ALL_RECENT: Final = ", all of the last day"
"""The part of a question about a group without older jobs."""


async def change_all(
    action: BulkAction, request: ActionRequest, *, to: datetime | None = None
) -> Redirect | ConfirmPage:
    """Change all jobs that a search finds, after a question.

    If the action moves jobs, ``to`` is their new due time; None for the time in the form, or else for now.
    """
    where = request.page.parameters.get("q", "").strip()
    request.page.check_search(where)
    jobs = BulkJobs(verb=action, where=where, names=request.access.visible_names, rate=_rate(request))
    if action == "move":
        jobs = replace(jobs, to=(to or request.instant("to") or request.page.now).isoformat())
    return await _ask_or_start(request, jobs, "", "/jobs")


async def retry_group(request: ActionRequest) -> Redirect | ConfirmPage:
    """Retry the jobs of a group of errors: all, or those of the last day.

    Jobs that failed after the question was asked are left out.
    """
    group = await request.page.inspector.error_group(request.page.required("group"))
    if group is None or not request.access.sees_name(group.job_name):
        raise NotFoundError("there is no such group of errors any more, or you may not see it")
    if group.is_mixed:
        raise RejectedError("different errors are counted together in this group; search its jobs", 409)
    # The form of the question contains the end that the group had when the question was asked.
    last_at = request.instant("last") or group.last_at
    day_ago = request.page.now - RECENT

    def jobs_since(first_at: datetime) -> BulkJobs:
        """Return the retry of the jobs of the group that ended from this time on."""
        return BulkJobs(
            verb="retry",
            where="",
            names=request.access.visible_names,
            rate=_rate(request),
            group=(group.job_name, group.text, first_at.isoformat(), last_at.isoformat()),
        )

    all_jobs = jobs_since(group.first_at)
    # If the first one failed within the last day, there is nothing to choose.
    recent_jobs = jobs_since(day_ago) if group.first_at < day_ago else None
    error = request.page.visible_error(group.text)
    group_text = f"of {group.job_name} with the error {error!r}"
    return await _ask_or_start(request, all_jobs, group_text, "/errors", recent_jobs=recent_jobs, group=group)


async def stop(request: ActionRequest) -> Redirect:
    """Stop a bulk run, which changes jobs batch by batch, after the batch in progress."""
    run_id, _ = await _changeable_run(request)
    await request.operations.runs.stop(run_id)
    return Redirect("/run", "run_stopped", {"id": run_id})


async def resume(request: ActionRequest) -> Redirect:
    """Continue a bulk run where it stopped."""
    run_id, state = await _changeable_run(request)
    if state.phase == "complete":
        raise RejectedError("this run is complete; start another one", 409)
    await request.operations.runs.resume(run_id, state)
    return Redirect("/run", "run_resumed", {"id": run_id})


async def _changeable_run(request: ActionRequest) -> tuple[str, BulkState]:
    """Return the id and the state of a run that the request sees and may change."""
    run_id = request.page.required("id")
    state = await visible_state(request.page, run_id)
    if not request.page.may(state.jobs.verb):
        raise RejectedError(f"you may not do this: it needs the right {state.jobs.verb!r}", 403)
    return run_id, state


async def _ask_or_start(
    request: ActionRequest,
    jobs: BulkJobs,
    group_text: str,
    back: str,
    *,
    recent_jobs: BulkJobs | None = None,
    group: ErrorGroup | None = None,
) -> Redirect | ConfirmPage:
    """Start a bulk run if the user has confirmed it; otherwise return the question.

    The form of the question contains the number of jobs that it shows. If they are many, the user must type
    this number. The question is asked again if many more jobs are found now than it showed, unless it stated
    that there may be more because the search continues.

    Args:
        request: The request.
        jobs: The action, and the jobs that it changes.
        group_text: Describes a group of errors; empty for a search, because the question lists its terms.
        back: The path of the page to which the question leads back.
        recent_jobs: The jobs of the last day, which the user may choose instead of all; None without a
            choice.
        group: The group of errors; None for a search.
    """
    # What the question showed: the number of jobs, and whether the search continued. None before the
    # question.
    shown_number, had_more = request.number("shown"), request.text("more") == "yes"
    # The number of jobs from which on counting need not continue.
    max_number = MAX_UNTYPED
    if shown_number is not None:
        max_number = shown_number + max(shown_number // 10, MIN_MARGIN)
    chosen_jobs = recent_jobs if recent_jobs is not None and request.text("take") == "day" else jobs
    count, has_more = await _count(request, chosen_jobs, max_number)
    # The user types the number that the question showed, even if it has changed since.
    number = count if shown_number is None else shown_number
    has_grown = shown_number is not None and not had_more and (count > max_number or has_more)
    is_typed = number <= MAX_UNTYPED or request.number("typed") == number
    if request.is_confirmed and is_typed and not has_grown:
        run_id = await request.operations.runs.start(chosen_jobs)
        # Its page states how far it is. A message would be outdated once the run is complete.
        return Redirect("/run", parameters={"id": run_id})
    # The question is about all jobs, even if the user had chosen those of the last day.
    if chosen_jobs is not jobs:
        count, has_more = await _count(request, jobs, max_number)
    problem = None
    if request.is_confirmed and not is_typed:
        typed, match = request.text("typed") or "nothing", "matches" if count == 1 else "match"
        problem = f"you typed {typed}; {counted(count, 'job')} {match} now"
    count_text = f"{counted(count, 'job')} found" + (" so far, and the search continues" if has_more else "")
    before_text = f"; {shown_number:,} when you were asked" if has_grown else ""
    choices: Mapping[str, str] = {}
    ages_text = ""
    if recent_jobs is not None:
        day_count, is_day_capped = await _count(request, recent_jobs, max_number)
        choices, ages_text = _choices_by_age(count, day_count, is_day_capped, has_more=has_more)
    elif group is not None and count > 1:
        ages_text = ALL_RECENT
    verb = jobs.verb.capitalize()
    found_text = f"{count_text}{ages_text}{before_text}."
    sample = await _sample(request, jobs, group) if count else ()
    return ConfirmPage(
        f"{verb} all jobs {group_text}? {found_text}" if group_text else found_text,
        "Retry" if choices else f"{verb} all",
        back,
        fields={**_fields(request, jobs), "shown": str(count), "more": "yes" if has_more else "no"},
        rate="" if jobs.rate is None else f"{jobs.rate:.0f}",
        number=count if count > MAX_UNTYPED else None,
        problem=problem,
        heading=f"{verb} {'at least ' if has_more else ''}{counted(count, 'job')}?",
        terms=[search_term.text for search_term in terms_of(jobs.where)],
        sample=[row_of(job, request.page) for job in sample],
        choices=choices,
    )


async def _sample(request: ActionRequest, jobs: BulkJobs, group: ErrorGroup | None) -> Sequence[Job]:
    """Return the first jobs that a run would change."""
    if group is None:
        return (await request.page.search_jobs(jobs.where, SAMPLE)).items
    # The search for a group finds a few other jobs too, so it reads more jobs than the question lists.
    found_jobs = (await request.page.search_jobs(search_of(group), SEARCHED_FOR_SAMPLE)).items
    return [job for job in found_jobs if is_in_group(job, group)][:SAMPLE]


def _choices_by_age(
    total: int, day_count: int, is_day_capped: bool, *, has_more: bool
) -> tuple[dict[str, str], str]:
    """Return what the user may choose, and a text that states how many of the jobs are of the last day.

    There is nothing to choose if all jobs, or none, are of the last day.

    Args:
        total: The number of all jobs.
        day_count: The number of those of the last day.
        is_day_capped: Whether there may be more jobs of the last day.
        has_more: Whether there may be more jobs at all, so that the number of older ones is unknown.
    """
    day_text = capped(day_count, is_capped=is_day_capped)
    if day_count == total and not has_more:
        return {}, ALL_RECENT if total > 1 else ""
    if not day_count:
        return {}, ", all older than a day"
    older_count = f"{total - day_count:,}"
    older_text = "and there may be older ones" if has_more else f"{older_count} older"
    left_text = "any older ones" if has_more else older_count
    choices = {
        "all": f"all {capped(total, is_capped=has_more)}",
        "day": f"{day_text} of the last day, which leaves {left_text}",
    }
    return choices, f": {day_text} of the last day, {older_text}"


async def _count(request: ActionRequest, jobs: BulkJobs, enough: int) -> tuple[int, bool]:
    """Return how many jobs a bulk run would change, and whether there may be more.

    Counting stops once there are more than ``enough``, or after 20 batches.
    """
    batch_count = 0
    # A dry run finds the batches without changing their jobs. A step has the number of jobs so far
    # (``done``), and the position of the next batch (``cursor``), which is None after the last one.
    async with aclosing(jobs.steps(request.page.inspector, is_dry=True)) as batches:
        async for step in batches:
            batch_count += 1
            if step.cursor is None or step.done > enough or batch_count == MAX_COUNTED:
                return step.done, step.cursor is not None
    # Not reached, because the last batch has no cursor.
    return 0, False


def _fields(request: ActionRequest, jobs: BulkJobs) -> Mapping[str, str]:
    """Return the fields that the form of the question repeats, so that the answer concerns the same jobs."""
    fields = {"all": request.text("all"), "to": jobs.to or ""}
    if jobs.group is not None:
        _job_name, _text, _first_at, last_at = jobs.group
        fields["last"] = last_at
    return {name: value for name, value in fields.items() if value}


def _rate(request: ActionRequest) -> float | None:
    """Return the maximum number of jobs per second that the form states; None for no maximum."""
    rate = request.number("rate")
    if rate is not None and not 1 <= rate <= MAX_RATE:
        raise RejectedError(f"rate must be from 1 to {MAX_RATE:,} jobs per second, not {rate}")
    return None if rate is None else float(rate)
