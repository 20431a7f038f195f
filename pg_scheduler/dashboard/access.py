"""Decide who may do what: roles, rights, and the functions that decide about requests."""

from __future__ import annotations

import base64
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any, Final, Literal, TypeAlias, get_args

from starlette.requests import Request
from starlette.responses import Response

from pg_scheduler.dashboard.answers import refusal

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
    "look",
]
"""A right of a user. ``task_pause``, ``schedule_pause`` and ``drain`` include resuming, ``mute`` its end.
``look`` is for following the log of a running job and showing its stack."""

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
        "look",
    }
)
_BY_ROLE: Final[Mapping[str, frozenset[Right]]] = {
    "viewer": frozenset(),
    "operator": _OPERATOR,
    "admin": frozenset(get_args(Right)),
}


def rights_of(role: str, can: Iterable[Right] | None) -> frozenset[Right]:
    """Return the rights of a role; if ``can`` is given, only the rights that it contains.

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
    if unknown_rights := [right for right in rights if right not in get_args(Right)]:
        raise ValueError(
            f"can must contain only {', '.join(get_args(Right))}; unknown: {unknown_rights[0]!r}"
        )
    return rights


MAX_ACTOR_LENGTH: Final = 200


@dataclass(frozen=True, slots=True)
class Access:
    """The rights of a request: the objects that it may read and change.

    Args:
        actor: The user who sends the request. The pages and the audit show this name.
        role: ``"viewer"`` only reads. ``"operator"`` may cancel, retry, move and signal jobs, follow the log
            of a running job and show its stack. It may also pause and resume tasks and schedules, trigger
            and backfill schedules, drain and resume workers, and mute findings and errors.
            ``"admin"`` may also add and delete jobs, and add, change and remove schedules.
        names: The names of the jobs, schedules and tasks that are visible and can be changed, in which ``*``
            stands for any text; None for all. The audit, the metrics, and draining and resuming workers
            need None, because they concern jobs of all names.
        sees_arguments: Whether arguments, results, progress notes, metadata and the log lines of attempts are
            visible, and can be searched.
        can: The rights, instead of those of ``role``, such as ``{"retry", "task_pause"}``.

    Raises:
        TypeError: ``names`` or ``can`` is a str, or one of the values has another type.
        ValueError: ``role`` or a right is unknown, or ``actor`` is empty.

    Example:
        >>> from pg_scheduler.dashboard import Access
        >>> access = Access("ada@example.org", "operator", names=("billing.*",))
        >>> access.sees_name("billing.invoice"), access.may("retry"), access.may("delete")
        (True, True, False)
    """

    actor: str
    role: Role = "viewer"
    names: Iterable[str] | None = None
    sees_arguments: bool = True
    can: Iterable[Right] | None = None
    rights: frozenset[Right] = field(init=False, repr=False, compare=False, default=frozenset())
    _pattern: re.Pattern[str] | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        if not isinstance(self.actor, str):
            raise TypeError(f"actor must be a str, not {type(self.actor).__name__}")
        if not self.actor:
            raise ValueError("actor must not be empty; pass the name or address of the user")
        object.__setattr__(self, "rights", rights_of(self.role, self.can))
        if not isinstance(self.sees_arguments, bool):
            raise TypeError(f"sees_arguments must be True or False, not {self.sees_arguments!r}")
        if self.names is None:
            return
        if isinstance(self.names, str):
            raise TypeError(f"names must be a tuple of patterns, not a str; write ({self.names!r},)")
        # ``names`` may be an iterator, and is read several times.
        names = tuple(self.names)
        for name in names:
            _check_name(name)
        # The instance is frozen, so its attributes are set by the base class.
        object.__setattr__(self, "names", names)
        # In a pattern, ``*`` stands for any text, and all other characters stand for themselves.
        expressions = (".*".join(map(re.escape, name.split("*"))) for name in names)
        alternatives = "|".join(f"(?:{expression})" for expression in expressions)
        object.__setattr__(self, "_pattern", re.compile(alternatives, re.DOTALL))

    @property
    def visible_names(self) -> tuple[str, ...] | None:
        """The patterns of ``names``; None for all names."""
        return None if self.names is None else tuple(self.names)

    @property
    def sees_everything(self) -> bool:
        """Whether all jobs are visible with their arguments, apart from values that ``redact=`` hides."""
        return self.names is None and self.sees_arguments

    def may(self, right: Right) -> bool:
        """Return whether the request has a right."""
        return right in self.rights

    def sees_name(self, name: str) -> bool:
        """Return whether jobs, schedules and tasks of this name are visible."""
        if self._pattern is None:
            return True
        # Without names, the pattern is empty, and would match an empty name.
        return bool(self.names) and self._pattern.fullmatch(name) is not None


def _check_name(name: object) -> None:
    """Reject a pattern of ``names=`` that is no str, or has a NUL character, which no name can have."""
    if not isinstance(name, str) or "\0" in name:
        raise TypeError(f"each of names must be a str without a NUL character, not {name!r}")


Decision: TypeAlias = Access | Response | None
Authorize: TypeAlias = Callable[[Request], Decision | Awaitable[Decision]]
"""A function that decides about a request. It returns an Access, a Response such as a redirect to the login,
or None, for which the dashboard responds with 403."""


def check_authorize(authorize: object) -> Authorize:
    """Return ``authorize``, which must be a function of the request.

    Raises:
        TypeError: It is not callable, or it is `basic_auth`, `bearer` or `trusted_header` itself, which must
            be called to get the function.
    """
    if not callable(authorize):
        raise TypeError(
            f"authorize must be a function of the request, not a {type(authorize).__name__}; pass "
            "basic_auth(user, password), bearer(token), trusted_header(name), or allow_anyone for development"
        )
    factories: tuple[object, ...] = (basic_auth, bearer, trusted_header)
    if authorize in factories:
        name = getattr(authorize, "__name__", "")
        raise TypeError(f"authorize must be the result of a call: write authorize={name}(...)")
    return authorize


async def decide(authorize: Authorize, request: Request) -> Access | Response | None:
    """Return what ``authorize=`` decides about a request; None for any false value.

    Raises:
        TypeError: It returned something else.
    """
    decision: Any = authorize(request)
    if inspect.isawaitable(decision):
        decision = await decision
    if isinstance(decision, Access | Response):
        return decision
    # The function may end with `return user and Access(...)`, which is a false value without a user.
    if not decision:
        return None
    raise TypeError(f"authorize must return an Access, a Response or None, not {type(decision).__name__}")


def allow_anyone(_request: Request) -> Access:
    """Let everybody read everything and change nothing: pass it as ``authorize=`` for development only.

    The dashboard logs a warning when it is created.
    """
    return Access("anyone")


def basic_auth(user: str, password: str, *, access: Access | None = None) -> Authorize:
    """Return an ``authorize=`` that asks for a user and a password.

    Use it behind HTTPS: the browser sends both with every request.

    Args:
        user: The user name. Its first 200 characters are the actor, unless ``access`` is given.
        password: The password.
        access: The rights of the user; None for the right to read everything and change nothing.

    Raises:
        ValueError: ``user`` is empty or contains a colon, or ``password`` is empty or not a str.
    """
    _check_secret("password", password)
    if not user or ":" in user:
        raise ValueError(f"user must not be empty or contain a colon, not {user!r}")
    expected = f"{user}:{password}".encode()
    granted_access = Access(user[:MAX_ACTOR_LENGTH]) if access is None else access

    def authorize(request: Request) -> Access | Response:
        try:
            credentials = base64.b64decode(_credentials(request, "basic"), validate=True)
        except ValueError:  # The header is no base64: the error of binascii is a ValueError.
            credentials = b""
        # compare_digest() takes as long wherever the texts differ, so its time reveals no part of the
        # password.
        if compare_digest(credentials, expected):
            return granted_access
        return _challenge(request, 'Basic realm="pg_scheduler", charset="UTF-8"')

    return authorize


def bearer(token: str, *, access: Access | None = None) -> Authorize:
    """Return an ``authorize=`` that demands the header ``Authorization: Bearer <token>``.

    A browser does not send it by itself; a proxy or a program does.

    Args:
        token: The token.
        access: The rights of the bearer; None for the right to read everything and change nothing.

    Raises:
        ValueError: The token is empty.
    """
    _check_secret("token", token)
    granted_access = Access("bearer") if access is None else access

    def authorize(request: Request) -> Access | Response:
        if compare_digest(_credentials(request, "bearer").encode(), token.encode()):
            return granted_access
        return _challenge(request, 'Bearer realm="pg_scheduler"')

    return authorize


def trusted_header(name: str, *, role: Role = "viewer") -> Authorize:
    """Return an ``authorize=`` that takes the user from a header which a proxy sets.

    Everybody who reaches the application without the proxy can set the header too. So let the application
    accept connections from the proxy only, and let the proxy remove the header from the requests of clients.

    Args:
        name: The name of the header, such as ``"X-Auth-User"``.
        role: The role of every user.

    Raises:
        ValueError: The name is empty.
    """
    if not name:
        raise ValueError('name must be that of a header, such as "X-Auth-User"')

    def authorize(request: Request) -> Access | None:
        users = request.headers.getlist(name)
        # Two headers mean that the client sent one, which may name any user, and the proxy added another.
        if len(users) != 1 or not users[0].strip():
            return None
        return Access(users[0].strip()[:MAX_ACTOR_LENGTH], role)

    return authorize


def _check_secret(name: str, secret: object) -> None:
    """Reject a password or a token that is empty or no str. ``name`` is that of the argument."""
    if not isinstance(secret, str) or not secret:
        raise ValueError(f"{name} must be a str that is not empty")


def _credentials(request: Request, scheme: str) -> str:
    """Return what follows a scheme in ``Authorization``; empty without the header, or for another scheme."""
    header_scheme, _, value = request.headers.get("authorization", "").partition(" ")
    return value.strip() if header_scheme.lower() == scheme else ""


def _challenge(request: Request, challenge: str) -> Response:
    """Return the response that makes a browser ask for a user and a password, or a program send a token."""
    return refusal(request, 401, "authentication is required", {"www-authenticate": challenge})
