"""The actions by their paths. Each is a form that is sent by POST, needs a right, and is audited."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, get_args

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pg_scheduler.dashboard import messages
from pg_scheduler.dashboard.access import Right
from pg_scheduler.dashboard.actions import (
    bulk,
    job_forms,
    jobs,
    mutes,
    schedule_form,
    schedules,
    tasks,
    workers,
)
from pg_scheduler.dashboard.actions.request import (
    ActionRequest,
    ConfirmPage,
    NothingSelectedError,
    PageAnswer,
    Redirect,
    read_form,
)
from pg_scheduler.dashboard.answers import wants_json
from pg_scheduler.dashboard.context import PageRequest, RejectedError
from pg_scheduler.dashboard.rendering import render
from pg_scheduler.database.faults import REFUSALS, is_refused_change
from pg_scheduler.errors import (
    JobConflictError,
    ScheduleConflictError,
    ScheduleNotFoundError,
    ScheduleOwnedByCodeError,
)
from pg_scheduler.events.log import describe_refusal
from pg_scheduler.inspect.bulk_runs import BusyError
from pg_scheduler.inspect.store.bulk import BulkAction

BULK_RIGHTS: Final[frozenset[Right]] = frozenset(get_args(BulkAction))
"""The rights of bulk runs. Stopping or resuming a run needs one of them. Then the action reads the run, and
requires the right that starting it needs."""

CONFLICTS: Final = (BusyError, ScheduleConflictError, ScheduleOwnedByCodeError)


class Action(NamedTuple):
    """An action.

    Attributes:
        rights: The rights of which a request needs one.
        run: Makes the change.
        is_named: Whether the action itself checks which names the request sees. Other actions concern jobs of
            all names, so they need access to all names.
    """

    rights: AbstractSet[Right]
    run: Callable[[ActionRequest], Awaitable[Redirect | ConfirmPage | PageAnswer]]
    is_named: bool = True


ACTIONS: Final[dict[str, Action]] = {
    "/actions/jobs/cancel": Action({"cancel"}, jobs.cancel),
    "/actions/jobs/retry": Action({"retry"}, jobs.retry),
    "/actions/jobs/run": Action({"move"}, jobs.run),
    "/actions/jobs/move": Action({"move"}, jobs.move),
    "/actions/jobs/keep": Action({"move"}, jobs.keep),
    "/actions/jobs/skip": Action({"cancel"}, jobs.skip),
    "/actions/jobs/front": Action({"move"}, jobs.move_to_front),
    "/actions/jobs/delete": Action({"delete"}, jobs.delete),
    "/actions/jobs/wake": Action({"move"}, jobs.wake),
    "/actions/jobs/repeat": Action({"retry"}, jobs.repeat),
    "/actions/jobs/signal": Action({"signal"}, job_forms.signal),
    "/actions/jobs/stack": Action({"look"}, jobs.show_stack),
    "/actions/jobs/new": Action({"add"}, job_forms.add_new),
    "/actions/jobs/change": Action({"add"}, job_forms.change),
    "/actions/jobs/add": Action({"add"}, job_forms.add),
    "/actions/bulk/cancel": Action({"cancel"}, partial(bulk.change_all, "cancel")),
    "/actions/bulk/retry": Action({"retry"}, partial(bulk.change_all, "retry")),
    "/actions/bulk/move": Action({"move"}, partial(bulk.change_all, "move")),
    "/actions/bulk/delete": Action({"delete"}, partial(bulk.change_all, "delete")),
    "/actions/bulk/stop": Action(BULK_RIGHTS, bulk.stop),
    "/actions/bulk/resume": Action(BULK_RIGHTS, bulk.resume),
    "/actions/errors/retry": Action({"retry"}, bulk.retry_group),
    "/actions/tasks/pause": Action({"task_pause"}, tasks.pause),
    "/actions/tasks/resume": Action({"task_pause"}, tasks.resume),
    "/actions/schedules/pause": Action({"schedule_pause"}, schedules.pause),
    "/actions/schedules/resume": Action({"schedule_pause"}, schedules.resume),
    "/actions/schedules/trigger": Action({"schedule_trigger"}, schedules.trigger),
    "/actions/schedules/backfill": Action({"backfill"}, schedules.backfill),
    "/actions/schedules/remove": Action({"schedule_remove"}, schedules.remove),
    "/actions/schedules/preview": Action({"schedule_add", "schedule_update"}, schedule_form.preview),
    "/actions/schedules/add": Action({"schedule_add"}, schedule_form.add),
    "/actions/schedules/update": Action({"schedule_update"}, schedule_form.update),
    "/actions/workers/drain": Action({"drain"}, workers.drain, is_named=False),
    "/actions/workers/resume": Action({"drain"}, workers.resume, is_named=False),
    "/actions/doctor/mute": Action({"mute"}, partial(mutes.mute, "finding")),
    "/actions/doctor/unmute": Action({"mute"}, partial(mutes.unmute, "finding")),
    "/actions/errors/mute": Action({"mute"}, partial(mutes.mute, "error")),
    "/actions/errors/unmute": Action({"mute"}, partial(mutes.unmute, "error")),
}


async def act(path: str, http: Request, page: PageRequest) -> Response:
    """Make the change of a request, and return its answer.

    Raises:
        RejectedError: The request may not make it, or it is invalid.
    """
    action = ACTIONS[path]
    if not any(map(page.may, action.rights)):
        needed = " or ".join(sorted(action.rights))
        raise RejectedError(f"you may not do this: it needs the right {needed}", 403)
    if not action.is_named and page.access.visible_names is not None:
        raise RejectedError("you may not do this: it concerns jobs of all names", 403)
    # The Inspector of the operations reads the primary, and that of a page may read a standby.
    request = ActionRequest(replace(page, inspector=page.operations.inspector), await read_form(http))
    try:
        with page.operations.acting(page.access):
            result = await _run(action, request)
    except NothingSelectedError:
        # A program gets the error; a browser gets the list again, with a message.
        if wants_json(http):
            raise
        # The path is /actions/<objects>/<verb>, and the list of these objects has the path /<objects>.
        _, _, objects, _ = path.split("/")
        result = Redirect(f"/{objects}", "nothing_selected", page.parameters)
    except JobConflictError as error:
        raise RejectedError(page.visible_conflict(error), 409) from error
    except CONFLICTS as error:
        raise RejectedError(str(error), 409) from error
    except ScheduleNotFoundError as error:
        raise RejectedError(str(error), 404) from error
    except ValueError as error:
        raise RejectedError(str(error)) from error
    if isinstance(result, Redirect):
        # The action has changed something. With the cached values, the next page could show what was read
        # before.
        page.cache.forget_recent()
        answer = RedirectResponse(page.url(result.path, **(result.parameters or {})), 303)
        if result.did is not None:
            messages.add(answer, http, page.base, result.did, result.undo, job_id=result.job_id)
        return answer
    # The form of a question is sent to the same address again, with its parameters.
    if isinstance(result, ConfirmPage):
        result = PageAnswer(replace(result, parameters=page.parameters), "confirm")
    return await render(result.page, result.template, page, path, is_json=False, status=result.status)


async def _run(action: Action, request: ActionRequest) -> Redirect | ConfirmPage | PageAnswer:
    """Make the change of an action.

    Raises:
        RejectedError: A trigger or a constraint of the application refuses the change.
    """
    try:
        return await action.run(request)
    except REFUSALS as error:
        if not is_refused_change(error):
            raise
        # The message of the server may quote arguments.
        text = describe_refusal(error, has_message=request.access.sees_arguments)
        raise RejectedError(text, 409) from error
