from __future__ import annotations

from collections.abc import Iterator

import pytest

from pg_scheduler.schedules.catalogue import periodic_catalogue


@pytest.fixture(autouse=True)
def _empty_periodic_catalogue() -> Iterator[None]:
    periodic_catalogue.clear()
    yield
    periodic_catalogue.clear()
