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


class _Span(NamedTuple):
    """A part of the axis whose place is not known yet."""

    since: datetime
    until: datetime
    is_busy: bool
    """Whether something ran."""

    @property
    def length(self) -> timedelta:
        """Its length."""
        return self.until - self.since


class FoldedScale:
    """Converts instants to places in percent.

    Args:
        begin: The begin of the axis.
        end: Its end.
        busy_spans: The times in which something ran.
    """

    def __init__(
        self, begin: datetime, end: datetime, busy_spans: Iterable[tuple[datetime, datetime]]
    ) -> None:
        spans = _spans(begin, end, busy_spans)
        busy_time = sum((span.length for span in spans if span.is_busy), timedelta())
        # These pauses are folded: each is drawn with a fixed width instead of a width to scale.
        folds = {span for span in spans if not span.is_busy and span.length > LONG_SHARE * busy_time}
        # The width of one folded pause, in percent.
        fold_width = min(FOLD_WIDTH, ALL_FOLDS_WIDTH / max(len(folds), 1))
        # If nothing ran, folded pauses are all that there is, and share the whole width.
        if folds and len(folds) == len(spans):
            fold_width = 100 / len(folds)
        # The other spans share the remaining width to scale.
        true_width = 100 - fold_width * len(folds)
        true_time = sum((span.length for span in spans if span not in folds), timedelta())
        self.pieces: list[Piece] = []
        x = 0.0
        for span in spans:
            is_folded = span in folds
            width = fold_width if is_folded else true_width * (span.length / true_time)
            self.pieces.append(Piece(span.since, span.until, x, width, is_folded))
            x += width
        self._starts = [piece.since for piece in self.pieces]

    def place(self, instant: datetime) -> float:
        """Return where an instant is. One before the axis is at its begin, one after it at its end."""
        if not self.pieces:
            return 0.0
        # The last piece that begins at or before the instant; the first piece if none does.
        piece = self.pieces[max(bisect_right(self._starts, instant) - 1, 0)]
        share = (instant - piece.since) / (piece.until - piece.since)
        return round(piece.x + min(max(share, 0.0), 1.0) * piece.width, 2)


def _spans(begin: datetime, end: datetime, busy_spans: Iterable[tuple[datetime, datetime]]) -> list[_Span]:
    """Return the axis as spans without gaps: the busy ones, and the pauses between them."""
    spans: list[_Span] = []
    # Up to this instant, the axis is covered by spans.
    position = begin
    spans_on_axis = sorted((max(since, begin), min(until, end)) for since, until in busy_spans)
    for since, until in spans_on_axis:
        # A span within an earlier one, or outside of the axis, adds nothing.
        if until <= max(since, position):
            continue
        if since > position:
            spans.append(_Span(position, since, is_busy=False))
        spans.append(_Span(max(since, position), until, is_busy=True))
        position = until
    if end > position:
        spans.append(_Span(position, end, is_busy=False))
    return spans
