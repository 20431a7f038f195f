"""An axis of time on which long pauses are folded, so that the work between them can be compared."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

LONG_SHARE: Final = 0.1
"""A pause is folded if it is longer than this share of the time in which something ran."""

FOLD_WIDTH: Final = 8.0
ALL_FOLDS_WIDTH: Final = 40.0
"""The maximum widths of one folded pause, and of all of them together, in percent."""


class Piece(NamedTuple):
    """A part of the axis.

    Attributes:
        x: Where it begins, in percent.
        width: Its width in percent.
    """

    since: datetime
    until: datetime
    x: float
    width: float
    is_folded: bool


class FoldedScale:
    """Converts instants to places in percent.

    Args:
        begin: The begin of the axis.
        end: Its end.
        busy: The times in which something ran.
    """

    def __init__(
        self, begin: datetime, end: datetime, busy_spans: Iterable[tuple[datetime, datetime]]
    ) -> None:
        spans: list[tuple[datetime, datetime, bool]] = []
        position = begin
        for since, until in sorted((max(since, begin), min(until, end)) for since, until in busy_spans):
            if until <= max(since, position):
                continue
            if since > position:
                spans.append((position, since, False))
            spans.append((max(since, position), until, True))
            position = until
        if end > position:
            spans.append((position, end, False))
        busy_time = sum((until - since for since, until, is_busy in spans if is_busy), timedelta())
        folds = [not is_busy and until - since > LONG_SHARE * busy_time for since, until, is_busy in spans]
        is_all_folded = all(folds)
        fold_width = min(FOLD_WIDTH, ALL_FOLDS_WIDTH / max(sum(folds), 1))
        if is_all_folded:
            fold_width = 100 / max(len(spans), 1)
        true_width = 100 - fold_width * sum(folds)
        true_time = sum(
            (until - since for (since, until, _), fold in zip(spans, folds, strict=True) if not fold),
            timedelta(),
        )
        self.pieces: list[Piece] = []
        x = 0.0
        for (since, until, _), is_folded in zip(spans, folds, strict=True):
            width = fold_width if is_folded else true_width * ((until - since) / true_time)
            self.pieces.append(Piece(since, until, x, width, is_folded))
            x += width
        self._starts = [piece.since for piece in self.pieces]

    def place(self, instant: datetime) -> float:
        """Return where an instant is; an instant outside of the axis is at its end."""
        if not self.pieces:
            return 0.0
        piece = self.pieces[max(bisect_right(self._starts, instant) - 1, 0)]
        share = (instant - piece.since) / (piece.until - piece.since)
        return round(piece.x + min(max(share, 0.0), 1.0) * piece.width, 2)
