"""A graph of jobs or steps as SVG: columns from left to right. The nodes of a column overlap in time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from pg_scheduler.inspect.texts import count

WIDTH: Final = 160
HEIGHT: Final = 44
GAP: Final = 44
SPACE: Final = 10
MARGIN: Final = 2

MAX_COLUMNS: Final = 20
FIRST_COLUMNS: Final = 3
"""If there are more columns, these first ones and the last ones are drawn."""

MAX_ROWS: Final = 6
"""The maximum number of nodes in one column."""

LABEL_LENGTH: Final = 20
NOTE_LENGTH: Final = 21
"""Characters of a note that fit into a node. Notes are ids, whose characters are equally wide."""


@dataclass(frozen=True, slots=True)
class Node:
    """A step or a job; nodes are equal if all their texts are."""

    label: str
    note: str
    """The text below the label."""
    state: str
    """Its state, which decides its color; empty for a node whose state is unknown."""
    job_id: str = ""
    """The job to which it leads; empty for none."""
    is_current: bool = False
    detail: str = ""
    """What its tooltip has besides the note."""


class PlacedNode(NamedTuple):
    """A node and its place in pixels."""

    node: Node
    x: int
    y: int

    @property
    def label(self) -> str:
        """The part of the label that has room."""
        return _cut(self.node.label, LABEL_LENGTH)

    @property
    def note(self) -> str:
        """The part of the note that has room."""
        return _cut(self.node.note, NOTE_LENGTH)


OTHERS_BEFORE: Final = Node("and other jobs", "", "", detail="that it waits for")
OTHERS_AFTER: Final = Node("and other jobs", "", "", detail="that wait for it")
"""Stand at the end of a column for jobs that were not read."""


class Edge(NamedTuple):
    """A line between two columns.

    Attributes:
        path: Its path, as SVG has it.
        is_open: Whether the state of one of its ends is unknown.
    """

    path: str
    is_open: bool


@dataclass(frozen=True, slots=True)
class Graph:
    """The nodes and lines of a graph, in pixels."""

    nodes: Sequence[PlacedNode]
    edges: Sequence[Edge]
    width: int
    height: int
    node_width: int = WIDTH
    node_height: int = HEIGHT

    @property
    def label(self) -> str:
        """What the graph shows, for those who do not see it."""
        texts = (
            f"{placed_node.node.label}: {placed_node.node.state}"
            for placed_node in self.nodes
            if placed_node.node.state
        )
        return ", then ".join(texts)


def graph_of(
    columns: Sequence[Sequence[Node]], links: Collection[tuple[Node, Node]] | None = None
) -> Graph | None:
    """Return the graph of columns of nodes, from left to right; None if there are none.

    ``links`` are the pairs of nodes that lines connect. Without them (None), each node of a column is
    connected to each one of the next column. If there are too many columns, or too many nodes in a column,
    one node stands for those that are not drawn.
    """
    unfolded_columns = [column for column in _folded(columns) if column]
    drawn_columns = [_folded_rows(column) for column in unfolded_columns]
    if not drawn_columns:
        return None
    row_count = max(map(len, drawn_columns))
    height = row_count * (HEIGHT + SPACE) - SPACE + 2 * MARGIN
    placed_columns: list[list[PlacedNode]] = []
    for number, column in enumerate(drawn_columns):
        x = MARGIN + number * (WIDTH + GAP)
        placed_columns.append(
            [PlacedNode(node, x, _top(place, len(column), height)) for place, node in enumerate(column)]
        )
    edges: list[Edge] = []
    if links is None:
        for left_column, right_column in pairwise(placed_columns):
            edges += _edges(left_column, right_column, height)
    else:
        placed_nodes: dict[Node, PlacedNode] = {}
        for column, placed_column in zip(unfolded_columns, placed_columns, strict=True):
            for place, node in enumerate(column):
                # The last drawn node of a column stands for the nodes that have no room, so their lines end
                # there.
                placed_nodes[node] = placed_column[min(place, len(placed_column) - 1)]
        edges = _linked_edges(links, placed_nodes)
    width = len(drawn_columns) * (WIDTH + GAP) - GAP + 2 * MARGIN
    return Graph([placed_node for column in placed_columns for placed_node in column], edges, width, height)


def _folded(columns: Sequence[Sequence[Node]]) -> list[Sequence[Node]]:
    """Return the columns that are drawn; if there are too many, one stands for those in the middle."""
    if len(columns) <= MAX_COLUMNS:
        return list(columns)
    last_columns = MAX_COLUMNS - FIRST_COLUMNS - 1
    missing_count = len(columns) - FIRST_COLUMNS - last_columns
    fold = Node(f"{missing_count:,} more", "see the list below", "")
    return [*columns[:FIRST_COLUMNS], [fold], *columns[-last_columns:]]


def _folded_rows(column: Sequence[Node]) -> Sequence[Node]:
    """Return the nodes of a column that are drawn; if there are too many, one stands for the last ones."""
    if len(column) <= MAX_ROWS:
        return column
    has_others = column[-1] in {OTHERS_BEFORE, OTHERS_AFTER}
    missing_count = len(column) - (MAX_ROWS - 1)
    # Such a node stands for an unknown number of jobs that were not read, and is no job itself.
    if has_others:
        missing_count -= 1
    label = f"{count(missing_count, is_capped=has_others)} more"
    return [*column[: MAX_ROWS - 1], Node(label, "see the list below", "")]


def _top(place: int, count: int, height: int) -> int:
    """Return the top of a node: the nodes of a column are in its middle."""
    used_height = count * (HEIGHT + SPACE) - SPACE
    return (height - used_height) // 2 + place * (HEIGHT + SPACE)


def _edges(left_column: Sequence[PlacedNode], right_column: Sequence[PlacedNode], height: int) -> list[Edge]:
    """Return the lines that connect each node of a column to each one of the next.

    If both columns have several nodes, the lines meet in one point between the columns.
    """
    begin, end = left_column[0].x + WIDTH, right_column[0].x
    # Each line is a start, an end, and whether the line is open: whether the state of one end is unknown.
    if len(left_column) > 1 and len(right_column) > 1:
        middle = (begin + end) // 2, height // 2
        lines = [((begin, _middle(node)), middle, False) for node in left_column]
        lines += [(middle, (end, _middle(node)), not node.node.state) for node in right_column]
    else:
        lines = [
            ((begin, _middle(source)), (end, _middle(target)), not (source.node.state and target.node.state))
            for source in left_column
            for target in right_column
        ]
    return [Edge(_path(*start_point, *end_point), is_open) for start_point, end_point, is_open in lines]


def _linked_edges(
    links: Collection[tuple[Node, Node]], placed_nodes: Mapping[Node, PlacedNode]
) -> list[Edge]:
    """Return the lines of links between nodes that are drawn."""
    ends = {
        (placed_nodes[source], placed_nodes[target])
        for source, target in links
        if source in placed_nodes and target in placed_nodes
    }
    return [
        Edge(
            _path(source.x + WIDTH, _middle(source), target.x, _middle(target)),
            not (source.node.state and target.node.state),
        )
        # Sorted by place, because the order of a set differs between processes.
        for source, target in sorted(ends, key=lambda nodes: [(node.x, node.y) for node in nodes])
    ]


def columns_by_depth(
    current: Node, before: Sequence[Node], after: Sequence[Node], links: Collection[tuple[Node, Node]]
) -> list[list[Node]]:
    """Return columns in which each node stands to the right of those that it waits for.

    The nodes before the current one stand as far to the right as their links permit, those after it as far to
    the left.

    Args:
        current: The node of the job whose graph this is.
        before: The nodes of the jobs for which it waits.
        after: The nodes of the jobs that wait for it.
        links: Pairs of nodes, of which the second waits for the first.
    """
    # The depth of a node is the number of columns between it and the current node, counting its own.
    depths = dict.fromkeys((*before, *after), 1)
    # Each round moves the depths on by at least one link of each path, and a path has fewer links than there
    # are nodes. If rows written by hand have a cycle, the number of nodes bounds the depths as well.
    for _ in depths:
        for source, target in links:
            if source in before and target in before:
                depths[source] = max(depths[source], min(depths[target] + 1, len(before)))
            elif source in after and target in after:
                depths[target] = max(depths[target], min(depths[source] + 1, len(after)))
    left_depth = max((depths[node] for node in before), default=0)
    right_depth = max((depths[node] for node in after), default=0)
    left_columns = [[node for node in before if depths[node] == depth] for depth in range(left_depth, 0, -1)]
    right_columns = [[node for node in after if depths[node] == depth] for depth in range(1, right_depth + 1)]
    return [*left_columns, [current], *right_columns]


def without_detours(links: Collection[tuple[Node, Node]]) -> list[tuple[Node, Node]]:
    """Return the links, without each one whose ends are connected by a path of other links too.

    If a job waits for another one directly, and also for a third job that waits for it, the direct link shows
    nothing that the other two do not show.
    """
    targets: dict[Node, set[Node]] = {}
    for source, target in links:
        targets.setdefault(source, set()).add(target)

    def reached_from(start: Node) -> set[Node]:
        """Return the nodes to which a path of links leads from this one."""
        reached_nodes, open_nodes = set[Node](), list(targets.get(start, ()))
        while open_nodes:
            node = open_nodes.pop()
            if node not in reached_nodes:
                reached_nodes.add(node)
                open_nodes += targets.get(node, ())
        return reached_nodes

    reached = {source: reached_from(source) for source in targets}
    # A path of other links begins with a link to another node, from which it reaches the target.
    return [
        (source, target)
        for source, target in links
        if not any(target in reached.get(node, ()) for node in targets[source] - {source, target})
    ]


def _middle(placed_node: PlacedNode) -> int:
    """Return the height of the middle of a node, at which lines begin and end."""
    return placed_node.y + HEIGHT // 2


def _path(x: int, y: int, to_x: int, to_y: int) -> str:
    """Return the SVG path of a line between two points: a straight line at the same height, else a curve."""
    bend = (x + to_x) // 2
    return f"M{x} {y}H{to_x}" if y == to_y else f"M{x} {y}C{bend} {y} {bend} {to_y} {to_x} {to_y}"


def _cut(text: str, max_length: int) -> str:
    """Return a text of bounded length, which ends with an ellipsis if it was cut."""
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"
