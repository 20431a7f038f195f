"""Show the pages of large tables without counting the rows."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any, Final

from django.core.paginator import Paginator

MAX_PAGES: Final = 1000
"""The maximum number of pages: PostgreSQL reads the rows of all pages before the one that is shown."""


class EstimatingPaginator(Paginator):
    """Reads the keys of one page and of the row after it. If that row exists, estimates the number of rows.

    Attributes:
        page_number: The page that will be shown.
    """

    page_number = 1

    @cached_property
    def keys(self) -> list[Any]:
        """The keys of the rows of the page, and of the row after it."""
        keys = self.object_list.values_list("pk", flat=True)
        return list(keys[self._before : self._before + self.per_page + 1])

    @cached_property
    def count(self) -> int:
        """The number of rows: exact on the last page, else an estimate of the planner of PostgreSQL."""
        minimum = self._before + len(self.keys)
        is_last_page = len(self.keys) <= self.per_page
        return minimum if is_last_page else max(minimum, self._estimate())

    @cached_property
    def num_pages(self) -> int:
        """The number of pages that are shown."""
        pages: int = super().num_pages
        return min(pages, MAX_PAGES)

    @property
    def _before(self) -> int:
        """The number of rows on the pages before this one."""
        row_count: int = (self.page_number - 1) * self.per_page
        return row_count

    def _estimate(self) -> int:
        """Return how many rows the planner of PostgreSQL expects the query to return."""
        explanation: Any = json.loads(self.object_list.explain(format="json"))
        # The server returns a list with one plan, out of which psycopg2 has taken the plan already.
        plan = explanation[0] if isinstance(explanation, list) else explanation
        return int(plan["Plan"]["Plan Rows"])
