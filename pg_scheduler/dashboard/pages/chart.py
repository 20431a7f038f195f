"""The page of one chart: its table, which the overview and the page of a task lead to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pg_scheduler.dashboard.charts import Chart
from pg_scheduler.dashboard.context import NotFoundError, PageRequest
from pg_scheduler.dashboard.pages.history import RANGES, read_period
from pg_scheduler.dashboard.pages.names import MAX_NAMES, task_names


@dataclass(frozen=True, slots=True)
class ChartPage:
    """A chart with its values."""

    chart: Chart
    range: str
    name: str | None
    """The job name to which it is limited; None for all."""

    @property
    def ranges(self) -> Sequence[str]:
        """The values of ``range`` to choose from."""
        return list(RANGES)


async def build(request: PageRequest) -> ChartPage:
    """Read the statistics of the chart that ``id`` names, of all jobs or of those that ``name`` names."""
    name, wanted = request.parameters.get("name") or None, request.required("id")
    if name is not None and not request.access.sees_name(name):
        raise NotFoundError(f"there is no task {name[:200]!r}, or you may not see it")
    names = None if name is None else (await task_names(request)).all_of(name)[:MAX_NAMES]
    period = await read_period(request, names)
    found = next((each for each in period.charts() if each.id == wanted), None)
    if found is None:
        raise NotFoundError(f"there is no chart {wanted[:50]!r}")
    return ChartPage(found, period.range, name)
