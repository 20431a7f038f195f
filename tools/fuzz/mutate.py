"""Change texts at random, always in the same way for the same name. Tests use it in place of the fuzzer."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

HOSTILE: Final = (
    *(
        "\0",
        "\ud800",
        "\u202e",
        "\x1f",
        "\x7f",
        "\u0661",
        "\u00df",
        "\u0130",
        "\U0001f600",
        "\r\n",
        "\t",
        " ",
    ),
    *("9" * 30, "9" * 5_000, "1e400", "-1", "0", "0x10", "1_0", "NaN", "Infinity", "null", "true"),
    *(
        "[" * 200,
        "[" * 5_000,
        '{"a":' * 50,
        "(" * 200,
        "\\" * 33,
        '"',
        "'",
        "`",
        "%",
        "%00",
        "%zz",
        "%ff",
        "%26",
    ),
    *(",", ";", ":", "..", "/", "//", "?", "#", "&", "=", "@", "*", "~", "<", ">", "|", "$", "{", "}", "]"),
    *("0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "0000-00-00", "24:00", "+23:59", "Z"),
)
"""Parts that parsers are likely to stumble over."""


VALUES: Final[tuple[Any, ...]] = (
    *(
        None,
        True,
        0,
        -1,
        2**31,
        2**63,
        10**400,
        1e308,
        1.5,
        "",
        "a",
        "\0",
        "\ud800",
        "9" * 5_000,
        [],
        {},
        [[]],
    ),
    *(
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "2026-11-21T12:30:00",
        "PT9999999999S",
        {"a": 1},
    ),
)
"""Values that the readers of a document are likely to stumble over."""


def mutations(name: str, texts: Sequence[str], number: int) -> Iterator[str]:
    """Yield so many changed texts; the same ones for the same arguments."""
    source = random.Random(name)  # noqa: S311 - a fixed sequence
    for _ in range(number):
        text = source.choice(texts)
        for _ in range(source.randint(1, 4)):
            text = _changed_document(source, text) or _changed(source, text, texts)
        yield text


def _changed_document(source: random.Random, text: str) -> str | None:
    """Return JSON with another value in one place; None for other texts, and at times for JSON too."""
    if not text.startswith(("{", "[")) or source.random() < 0.3:
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    places: list[tuple[Any, Any]] = []
    nodes = [document]
    while nodes:
        node = nodes.pop()
        items = list(node.items()) if isinstance(node, dict) else list(enumerate(node))
        places += [(node, place) for place, _ in items]
        nodes += [value for _, value in items if isinstance(value, dict | list)]
    if not places:
        return None
    node, place = source.choice(places)
    node[place] = source.choice(VALUES)
    return json.dumps(document)


def _changed(source: random.Random, text: str, texts: Sequence[str]) -> str:
    """Return a text with one change."""
    start = source.randint(0, len(text))
    end = min(len(text), start + source.randint(0, 8))
    match source.randrange(5):
        case 0:
            return text[:start] + text[end:]
        case 1:
            return text[:start] + source.choice(HOSTILE) + text[start:]
        case 2:
            return text[:start] + source.choice(HOSTILE) + text[end:]
        case 3:
            return text[:end] + text[start:end] * source.randint(1, 50) + text[end:]
        case _:
            donor = source.choice(texts)
            return text[:start] + donor[source.randint(0, len(donor)) :]
