"""The steps of a job as its page shows them: a graph, and lines with bars to scale."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from pg_scheduler.base.status import JobStatus
from pg_scheduler.dashboard.folded_scale import FoldedScale, Piece
from pg_scheduler.dashboard.graph import (
    OTHERS_AFTER,
    OTHERS_BEFORE,
    Graph,
    Node,
    columns_by_depth,
    graph_of,
    without_detours,
)
from pg_scheduler.dashboard.json_tree import JsonTree, json_tree
from pg_scheduler.inspect import StepState
from pg_scheduler.inspect.dependencies import Dependencies
from pg_scheduler.inspect.steps import FAILED, RETRYING, SLEEPING, WAITING
from pg_scheduler.inspect.store.inspections import LinkedJob
from pg_scheduler.inspect.store.workflows import ChildRow
from pg_scheduler.inspect.texts import count, length
from pg_scheduler.inspect.timeline import Attempt
from pg_scheduler.inspect.workflows import RESULT, Family, is_result_of_child
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.step_values import CHILD, CURSOR, FIRST, NO_TIMEOUT, SIGNAL, SLEEP, STEP

MAX_SHOWN: Final = 100
"""Steps of one job that its page shows."""

MAX_LISTED: Final = 8
"""Children of one step that are listed unless the page is asked for all of them."""

MAX_NODES: Final = 5
"""Children of one step that are nodes of the graph; more are one node."""

MIN_WIDTH: Final = 0.6
"""The minimum width of a bar in percent."""

UNFINISHED: Final = "not_finished"
"""The state of a step of an ended job that still slept or waited."""

URGENT: Final = ("failed", "quarantined", "expired", "cancelled", "running", "due", "retrying")
"""The states of the children that are listed first if not all children are listed."""


class Interval(NamedTuple):
    """When something ran."""

    begin: datetime
    end: datetime


class Bar(NamedTuple):
    """An interval in percent of the axis."""

    kind: str
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Line:
    """A step, or a child of a step."""

    key: str
    name: str
    kind: str
    """The kind of the step; empty for one of its children."""
    state: str
    bar: Bar | None
    took: str
    job_id: str = ""
    """The child; empty for other steps, and for several children."""
    step: StepState | None = None
    tree: JsonTree | None = None
    """The value; None if there is none, or if the request may not see it."""
    counts: Sequence[tuple[str, int]] = ()
    """The numbers of several children by state."""
    completed: int = 0
    total: int = 0
    is_cut: bool = False
    """Whether there are further children, which were not read, so that these numbers may be too low."""
    more: int = 0
    """Children that are not listed."""
    ran: str = ""
    """How long the last attempt of its only child ran; empty if it has not begun, or the line has none."""
    error: str = ""
    """The error that the function of the step raised; empty for none."""
    is_early: bool = False
    """Whether it is a signal that came before the job waited for it."""
    arguments: str = ""
    """The arguments of a child in one line; empty for other lines, or if they were not read."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """The steps of a job, in the order in which they began."""

    lines: Sequence[Line]
    graph: Graph | None
    folds: Sequence[Piece]
    """The folded pauses."""
    left_out: int
    """Older steps that are not shown."""
    open_steps: Sequence[StepState]
    """The steps in which the job waits."""
    failed_step: str = ""
    """The step whose function raised the error of the last attempt; empty for none."""
    is_to_scale: bool = True
    """Whether something ran, so that not all bars are folded pauses."""


def own_steps(steps: Sequence[StepState]) -> list[StepState]:
    """Return steps without the rows of results of children, since each child is shown with its own step."""
    return [step for step in steps if not is_result_of_child(step)]


def workflow_of(
    job: Job,
    steps: Sequence[StepState],
    family: Family,
    attempts: Sequence[Attempt],
    *,
    now: datetime,
    arguments: Mapping[str, str],
    expanded: str = "",
) -> Workflow:
    """Return the steps of a visible job as its page shows them: as lines with bars, and as a graph.

    Args:
        job: The job.
        steps: Its steps, as far as the request may see them.
        family: Its visible children.
        attempts: Its attempts.
        now: The time.
        arguments: The arguments of children in one line, by their ids, as far as they were read.
        expanded: The step of which all children are listed.
    """
    failed_step = _failed_step(job, steps, now)
    # Results that were passed to the job did not run, so they stand at the end: False sorts before True.
    steps_of_job = sorted(own_steps(steps), key=lambda step: step.kind == RESULT)
    if failed_step is not None:
        steps_of_job.append(failed_step)
    if job.finished_at:
        steps_of_job = [_of_ended_job(step) for step in steps_of_job]
    results = {step.name: step for step in steps if is_result_of_child(step)}
    # At most MAX_SHOWN steps are shown: first of all the open ones, then the newest of those that have ended.
    open_steps = [step for step in steps_of_job if step.ended_at is None][:MAX_SHOWN]
    ended_steps = [step for step in steps_of_job if step.ended_at is not None]
    left_out_count = max(len(ended_steps) + len(open_steps) - MAX_SHOWN, 0)
    newest_steps = ended_steps[left_out_count:]
    shown_names = {step.name for step in (*open_steps, *newest_steps)}
    shown_steps = [step for step in steps_of_job if step.name in shown_names]
    spans = _spans(job, shown_steps, attempts, now)
    # The steps are sorted again, by their begins. A signal that came early arrived before the job waited for
    # it, so it stands between steps that ran at this time.
    shown_steps.sort(key=lambda step: (step.kind == RESULT, spans[step.name].begin))
    children_by_step = {
        step.name: family.children[step.name] for step in shown_steps if step.name in family.children
    }
    scale = _scale(shown_steps, spans, children_by_step, now)
    lines: list[Line] = []
    for step in shown_steps:
        # The failed step is the one in which the last attempt raised its error.
        error = (attempts[-1].error or "") if step is failed_step else _last_error(step)
        lines += _lines(
            step,
            children_by_step.get(step.name, ()),
            results,
            spans[step.name],
            scale,
            now=now,
            arguments=arguments,
            error=error,
            is_cut=step.name == family.cut_step,
            is_expanded=step.name == expanded,
        )
    columns = _columns(
        job, shown_steps, children_by_step, spans, now, arguments=arguments, cut_step=family.cut_step
    )
    return Workflow(
        lines=lines,
        graph=graph_of(list(columns)) if shown_steps else None,
        folds=[piece for piece in scale.pieces if piece.is_folded],
        left_out=len(steps_of_job) - len(shown_steps),
        open_steps=[
            step
            for step in open_steps
            if step.kind in {SLEEP, SIGNAL, CHILD, FIRST} or step.state == RETRYING
        ],
        failed_step=_failed_name(job, steps) if failed_step is None else failed_step.name,
        is_to_scale=any(not piece.is_folded for piece in scale.pieces),
    )


def _failed_step(job: Job, steps: Sequence[StepState], now: datetime) -> StepState | None:
    """Return the step whose function raised the error of the last attempt; None if there is none.

    Without retries, such a step has stored nothing. Only the error in the history of the job names it.
    """
    if job.status not in {JobStatus.FAILED, JobStatus.PENDING, JobStatus.CANCELLED} or not job.errors:
        return None
    error = job.errors[-1]
    is_of_last_attempt = error.attempt == job.attempt
    # A step that has a row is shown with what is stored of it.
    has_row = error.step in {step.name for step in steps}
    if error.step is None or not is_of_last_attempt or has_row:
        return None
    ended_at = error.ended_at or job.finished_at or now
    state = RETRYING if job.finished_at is None else FAILED
    return StepState(
        name=error.step,
        kind=STEP,
        state=state,
        value=None,
        no_value_reason=None,
        attempt=error.attempt,
        # As in the row of a step, this is the time of its end, because its begin is not stored.
        started_at=ended_at,
        ended_at=ended_at,
        until=None,
    )


def _failed_name(job: Job, steps: Sequence[StepState]) -> str:
    """Return the name of the step whose error ended the last attempt, and which has a row; empty for none.

    A step whose retries were used up has a row, with its failed attempts.
    """
    failed_names = {step.name for step in steps if step.state == FAILED}
    step = job.errors[-1].step if job.errors and job.errors[-1].attempt == job.attempt else None
    return step if step is not None and step in failed_names else ""


def _last_error(step: StepState) -> str:
    """Return the last error of a step that has failed and has no value; empty for other steps."""
    return step.errors[-1].error if step.errors and step.state in {FAILED, RETRYING} else ""


def _of_ended_job(step: StepState) -> StepState:
    """Return a step of an ended job; a step that has not ended is marked as unfinished.

    In such a step the job slept or waited when it ended, and does not any more.
    """
    return step if step.ended_at is not None else replace(step, state=UNFINISHED)


def is_early(step: StepState) -> bool:
    """Return whether a step is a signal that came before the job waited for it.

    ``until`` is the end of the wait, so it is None if the job has not waited.
    """
    return step.kind == SIGNAL and step.until is None


def links_of(
    job: Job, state: str, dependencies: Dependencies, family: Family, arguments: Mapping[str, str]
) -> Graph | None:
    """Return the graph of the jobs that a job waits for, and of those that wait for it; None for none.

    The children of its own steps are in the graph of its steps. ``arguments`` are those of the jobs in one
    line, as far as the request may see them.
    """
    # In the dependencies of a job, a parent is a job for which it waits. A job also waits for the children
    # that its own steps have added, so these are parents too.
    own_ids = {child.job_id for children in family.children.values() for child in children}
    current = Node(job.job_name, job.job_id, state, is_current=True)
    parents = (parent for parent in dependencies.parents if parent.job_id not in own_ids)
    before = {parent.job_id: _linked(parent, arguments) for parent in parents}
    after = {child.job_id: _linked(child, arguments) for child in dependencies.children}
    # Parents that were not read may all be children of the job's own steps, if it has any. Then no node must
    # state that there are other parents.
    others_before = [OTHERS_BEFORE] if dependencies.has_more_parents and not own_ids else []
    others_after = [OTHERS_AFTER] if dependencies.has_more_children else []
    nodes_before, nodes_after = [*before.values(), *others_before], [*after.values(), *others_after]
    if not nodes_before and not nodes_after:
        return None
    nodes = before | after
    links = [(node, current) for node in nodes_before] + [(current, node) for node in nodes_after]
    links += [
        (nodes[edge.parent_id], nodes[edge.child_id])
        for edge in dependencies.edges
        if edge.parent_id in nodes and edge.child_id in nodes
    ]
    return graph_of(columns_by_depth(current, nodes_before, nodes_after, links), without_detours(links))


def _linked(linked_job: LinkedJob, arguments: Mapping[str, str]) -> Node:
    """Return the node of a linked job, with its arguments as a note; with its id if they are unknown."""
    state = linked_job.status.value if linked_job.status else "missing"
    job_id = linked_job.job_id
    note = arguments.get(job_id) or job_id
    detail = job_id if note != job_id else ""
    return Node(linked_job.job_name or job_id, note, state, job_id, detail=detail)


def _spans(
    job: Job, steps: Sequence[StepState], attempts: Sequence[Attempt], now: datetime
) -> dict[str, Interval]:
    """Return when steps ran, by their names.

    The row of a step has the time at which its value was stored. So the step counts as begun when its attempt
    started, or when an earlier step ended, if that was later. Signals that came early do not count as earlier
    steps.
    """
    starts = {attempt.claim: attempt.started_at for attempt in attempts if attempt.started_at is not None}
    spans: dict[str, Interval] = {}
    latest_end: datetime | None = None
    for step in steps:
        end = step.ended_at or job.finished_at or now
        begin = step.started_at
        # For a wait or a sleep, the row has the time of its begin. For a step whose function ran, it has only
        # the time of its end.
        if step.kind in {STEP, CURSOR}:
            candidates = (latest_end, starts.get(step.attempt))
            earlier_instants = [instant for instant in candidates if instant is not None and instant <= begin]
            begin = max(earlier_instants, default=begin)
        spans[step.name] = Interval(begin, max(end, begin))
        if step.ended_at is not None and not is_early(step):
            latest_end = step.ended_at if latest_end is None else max(latest_end, step.ended_at)
    return spans


def _scale(
    steps: Sequence[StepState],
    spans: Mapping[str, Interval],
    children_by_step: Mapping[str, Sequence[ChildRow]],
    now: datetime,
) -> FoldedScale:
    """Return the axis of time for the steps: work is drawn to scale, and long sleeps and waits are folded.

    A folded pause has a fixed, small width, so that the work between pauses can be compared.
    """
    possible_spans = [_span_of(child, now) for children in children_by_step.values() for child in children]
    child_spans = [span for span in possible_spans if span is not None]
    step_spans = [spans[step.name] for step in steps if step.kind in {STEP, CURSOR}]
    busy_spans = [*child_spans, *step_spans]
    all_spans = [*spans.values(), *child_spans]
    begin = min((span.begin for span in all_spans), default=now)
    end = max((span.end for span in all_spans), default=now)
    return FoldedScale(begin, end, busy_spans)


def _span_of(child: ChildRow, now: datetime) -> Interval | None:
    """Return when the last attempt of a child ran; None if it has not begun."""
    if child.started_at is None:
        return None
    return Interval(child.started_at, max(child.finished_at or now, child.started_at))


def _ran(child: ChildRow, now: datetime) -> str:
    """Return how long the last attempt of a child ran; empty if it has not begun."""
    span = _span_of(child, now)
    return "" if span is None else length(span.end - span.begin)


def _lines(
    step: StepState,
    children: Sequence[ChildRow],
    results: Mapping[str, StepState],
    span: Interval,
    scale: FoldedScale,
    *,
    now: datetime,
    arguments: Mapping[str, str],
    error: str,
    is_cut: bool,
    is_expanded: bool,
) -> Iterator[Line]:
    """Yield the line of a step, and those of its children if it has several.

    An only child has no line of its own: the line of its step shows its state and its result. ``is_cut`` is
    whether the step has further children that were not read, so that one child need not be the only one.
    """
    key = f"step-{step.name}"
    bar = _bar(_tone_of(step), span, scale)
    duration_text = _took(step, span, now)
    tree = None if step.value is None else json_tree(step.value)
    if len(children) == 1 and not is_cut:
        (child,) = children
        tree = _result_of(child, results)
        state = child.state or "missing"
        # The bar has the color of the state, also if the child has failed.
        bar = bar._replace(kind=state)
        yield Line(
            key,
            step.name,
            step.kind,
            state,
            bar,
            duration_text,
            job_id=child.job_id,
            step=step,
            tree=tree,
            ran=_ran(child, now),
        )
        return
    if not children:
        line = Line(key, step.name, step.kind, step.state, bar, duration_text, step=step, tree=tree)
        yield replace(line, error=error, is_early=is_early(step))
        return
    counts = Counter(child.state or "missing" for child in children)
    shown_children = list(children)
    if not is_expanded and len(children) > MAX_LISTED:
        # Children that failed, or have not ended, come first.
        shown_children = sorted(children, key=lambda child: _urgency(child.state))[:MAX_LISTED]
    yield Line(
        key,
        step.name,
        step.kind,
        step.state,
        bar,
        duration_text,
        step=step,
        tree=None,
        counts=counts.most_common(),
        completed=counts["completed"],
        total=len(children),
        is_cut=is_cut,
        more=len(children) - len(shown_children),
    )
    for child in shown_children:
        child_span = _span_of(child, now)
        name = child.job_name or "deleted"
        retries = ""
        if child.retry_count:
            retries = f"{child.retry_count} {'retry' if child.retry_count == 1 else 'retries'}"
        yield Line(
            f"child-{child.job_id}",
            name,
            "",
            child.state or "missing",
            None if child_span is None else _bar(child.state or "", child_span, scale),
            " · ".join(filter(None, (retries, _ran(child, now)))),
            job_id=child.job_id,
            tree=_result_of(child, results),
            arguments=arguments.get(child.job_id, ""),
        )


def _urgency(state: str | None) -> int:
    """Return the rank of a state among those that are listed first; a lower rank is more urgent."""
    return URGENT.index(state) if state in URGENT else len(URGENT)


def _result_of(child: ChildRow, results: Mapping[str, StepState]) -> JsonTree | None:
    """Return the value with which a child has completed, as far as the request may see it; None for none.

    Among the steps of the parent, a separate row has this value, and ``child.result`` is its name.
    ``results`` has these rows by their names.
    """
    result = results.get(child.result)
    if result is None or not isinstance(result.value, dict):
        return None
    value = result.value.get("value")
    return None if value is None else json_tree(value)


def _tone_of(step: StepState) -> str:
    """Return the colour of a step: that of a failure, else that of a wait, else whether it has ended."""
    if step.state in {FAILED, RETRYING}:
        return step.state
    if step.kind in {SLEEP, SIGNAL}:
        return "held"
    return "completed" if step.ended_at is not None else "running"


def _bar(kind: str, span: Interval, scale: FoldedScale) -> Bar:
    """Return the bar of an interval. At the end of the axis, a short one begins earlier, to be visible."""
    x = scale.place(span.begin)
    width = max(round(scale.place(span.end) - x, 2), MIN_WIDTH)
    return Bar(kind, min(x, 100 - width), width)


def _took(step: StepState, span: Interval, now: datetime) -> str:
    """Return how long a step took, or when it ends; empty if that is unknown."""
    if is_early(step):
        return ""
    duration = span.end - span.begin
    if step.state == UNFINISHED:
        return length(duration)
    # A sleep or a wait that has not ended: it ends at a known time, or may last without an end.
    if step.ended_at is None and step.until is not None and step.kind != CHILD:
        time_left = max(step.until - now, timedelta())
        return "no timeout" if step.until >= NO_TIMEOUT else f"in {length(time_left)}"
    if step.kind not in {STEP, CURSOR}:
        return length(duration)
    # It is not stored when the function of a step began, so it took at most this time. Without any duration,
    # not even this is known.
    if not duration:
        return ""
    text = length(duration)
    return text if text.startswith("<") else f"≤ {text}"


def _columns(
    job: Job,
    steps: Sequence[StepState],
    children_by_step: Mapping[str, Sequence[ChildRow]],
    spans: Mapping[str, Interval],
    now: datetime,
    *,
    arguments: Mapping[str, str],
    cut_step: str | None,
) -> Iterator[list[Node]]:
    """Yield the columns of the graph. Steps that lasted at the same time are in one column."""
    column: list[Node] = []
    column_end: datetime | None = None
    for step in steps:
        # A result that was passed to the job is not something that the job did.
        if step.kind == RESULT:
            continue
        begin, end = spans[step.name]
        # The steps are in the order of their begins. So one that begins after the end of the column overlaps
        # none of its steps, and begins a new column.
        if column and (column_end is None or begin >= column_end):
            yield column
            column, column_end = [], None
        children = children_by_step.get(step.name, ())
        is_cut = step.name == cut_step
        column += _nodes(step, children, spans[step.name], now, arguments=arguments, is_cut=is_cut)
        # A step that has not ended overlaps all later steps, so they stay in its column.
        end = end if step.ended_at is not None else datetime.max.replace(tzinfo=end.tzinfo)
        column_end = end if column_end is None else max(column_end, end)
    if column:
        yield column
    # A job that has not ended may have further steps, which its code decides about when it runs.
    if job.finished_at is None and column:
        yield [Node("not known yet", "", "")]


def _nodes(
    step: StepState,
    children: Sequence[ChildRow],
    span: Interval,
    now: datetime,
    *,
    arguments: Mapping[str, str],
    is_cut: bool,
) -> Iterator[Node]:
    """Yield the nodes of a step: the step itself, each of its children, or one node for many children."""
    duration_text = _took(step, span, now)
    if not children:
        time_text = "came early" if is_early(step) else duration_text
        note = " · ".join(filter(None, (step.kind, time_text)))
        is_current = step.state in {SLEEPING, WAITING, FAILED, RETRYING}
        yield Node(step.name, note, step.state, is_current=is_current)
    elif is_cut or len(children) > MAX_NODES:
        counts = Counter(child.state or "missing" for child in children)
        # One node for all children has the state of the most urgent child, else the most frequent state.
        most_frequent_state = counts.most_common(1)[0][0]
        state = next((state for state in URGENT if counts[state]), most_frequent_state)
        completed, total = (
            count(number, is_capped=is_cut) for number in (counts["completed"], len(children))
        )
        yield Node(step.name, f"{completed} of {total} completed", state, is_current=step.ended_at is None)
        return
    for number, child in enumerate(children):
        is_current = step.ended_at is None and child.finished_at is None
        ran = _ran(child, now)
        if len(children) == 1:
            # An only child is shown with the time of its step, as in the table, and its run in the tooltip.
            label, name, shown_time = step.name, child.job_name or "child", duration_text
            detail = f"ran {ran}" if ran else ""
        else:
            name, shown_time, detail = f"{step.name}:{number}", ran, child.job_name or ""
            # The children of one step mostly have the same task, so their arguments tell them apart.
            label = arguments.get(child.job_id) or child.job_name or name
        yield Node(
            label,
            " · ".join(filter(None, (name, shown_time))),
            child.state or "",
            child.job_id,
            is_current,
            detail,
        )
