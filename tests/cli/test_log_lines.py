"""``worker --log-format json``: each record is one line of JSON, whatever its fields are."""

from __future__ import annotations

import json
import logging
from typing import Any

from pg_scheduler.cli.worker.logs import JsonFormatter
from tests.support.cases import each_case

CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


def refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no value of JSON")


@each_case(
    ("value", "written"),
    [
        (float("nan"), "nan"),
        ([1, float("-inf")], "[1, -inf]"),
        (CIRCLE, "[[...]]"),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        (True, True),
        (0.5, 0.5),
        ({"a": [1, None, "ä"]}, {"a": [1, None, "ä"]}),
        ({1}, "{1}"),
    ],
)
def test_value_that_json_does_not_have_is_a_text(value: object, written: object) -> None:
    record = logging.makeLogRecord({"name": "shop", "msg": "sold", "value": value})
    line = json.loads(JsonFormatter().format(record), parse_constant=refuse)
    assert line["value"] == written
    assert line["message"] == "sold"
