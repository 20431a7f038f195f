"""The rights of a request: what each role may change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias, get_args

Role: TypeAlias = Literal["viewer", "operator", "admin"]
"""The role of a user."""

Right: TypeAlias = Literal[
    "cancel",
    "retry",
    "move",
    "signal",
    "delete",
    "add",
    "task_pause",
    "schedule_pause",
    "schedule_trigger",
    "backfill",
    "schedule_add",
    "schedule_update",
    "schedule_remove",
    "drain",
    "mute",
]
"""A right of a user. ``task_pause``, ``schedule_pause`` and ``drain`` include resuming, ``mute`` its end."""

_OPERATOR: Final[frozenset[Right]] = frozenset(
    {
        "cancel",
        "retry",
        "move",
        "signal",
        "task_pause",
        "schedule_pause",
        "schedule_trigger",
        "backfill",
        "drain",
        "mute",
    }
)
_BY_ROLE: Final[Mapping[str, frozenset[Right]]] = {
    "viewer": frozenset(),
    "operator": _OPERATOR,
    "admin": frozenset(get_args(Right)),
}


def rights_of(role: str, can: Iterable[Right] | None) -> frozenset[Right]:
    """Return the rights of a role, or those of ``can`` instead.

    Raises:
        TypeError: ``can`` is a str.
        ValueError: The role or a right is unknown.
    """
    if role not in _BY_ROLE:
        raise ValueError(f"role must be one of {', '.join(_BY_ROLE)}, not {role!r}")
    if can is None:
        return _BY_ROLE[role]
    if isinstance(can, str):
        raise TypeError(f"can must be a set of rights, not a str; write {{{can!r}}}")
    rights = frozenset(can)
    if unknown := [right for right in rights if right not in get_args(Right)]:
        raise ValueError(f"can must contain only {', '.join(get_args(Right))}; unknown: {unknown[0]!r}")
    return rights
