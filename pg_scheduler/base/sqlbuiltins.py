"""Qualify the built-in functions, operators and types of a statement, so that it ignores the search path.

PostgreSQL resolves an unqualified name along the search path, and prefers the function or operator whose
arguments match best. A role that may create objects in a schema of that path could therefore run code as the
role that executes the statement. The SQL files stay readable: this module adds ``pg_catalog`` at load time.

``OPERATOR(pg_catalog.+)`` has one precedence for every operator. Statements need parentheses where the usual
precedence would group an operator with the operand on its left: ``a < (b + c)``. Syntax that PostgreSQL turns
into an unqualified operator, such as ``BETWEEN``, is rejected with the replacement.

SQL files write keywords in upper case, names in lower case, no space between a function and its parenthesis,
and ``AS`` before every alias.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

SYNTAX: Final = {"coalesce", "extract", "greatest", "least"}
"""Names that PostgreSQL parses itself, in front of a parenthesis."""

GRAMMAR_TYPES: Final = {"bigint", "boolean", "double", "integer", "interval", "numeric", "smallint"}
"""Types that PostgreSQL parses itself; their names lead to ``pg_catalog``."""

PARENTHESIZED: Final = {
    *(
        "ALL",
        "AND",
        "ANY",
        "ARRAY",
        "AS",
        "BY",
        "CONFLICT",
        "CROSS",
        "ELSE",
        "EXCEPT",
        "EXISTS",
        "FILTER",
        "FROM",
    ),
    *("JOIN", "LATERAL", "LIMIT", "MATERIALIZED", "NOT", "ON", "OR", "OVER", "SELECT", "SET", "THEN"),
    *("UNION", "VALUES", "WHEN", "WHERE"),
}
"""Keywords that may precede a parenthesis."""

OPERANDS: Final = {
    *("ALL", "ANY", "ARRAY", "AT", "COLLATE", "CURRENT_DATE", "CURRENT_TIMESTAMP", "EXCLUDED", "FALSE"),
    *("NULL", "TIME", "TRUE", "ZONE"),
}
"""Keywords within the operands of an operator. Every other keyword ends an expression."""

REJECTED: Final = {
    "BETWEEN": "write a >= b AND a <= c",
    "CAST": "write a::type",
    "ILIKE": "call a function",
    "LIKE": "call starts_with() or another function",
    "NATURAL": "write JOIN ... ON",
    "NULLIF": "write CASE WHEN a = b THEN NULL ELSE a END",
    "OPERATOR": "write the operator alone",
    "OVERLAPS": "compare the bounds",
    "SIMILAR": "call a function",
}
"""Keywords that PostgreSQL turns into unqualified names, with what to write instead."""

PRECEDENCE: Final = {
    **dict.fromkeys(("<", ">", "=", "<=", ">=", "<>"), 1),
    **dict.fromkeys(("+", "-"), 3),
    **dict.fromkeys(("*", "/", "%"), 4),
    "^": 5,
}
"""How strongly operators bind: one with a greater number binds more strongly."""

OTHER_PRECEDENCE: Final = 2
"""The precedence of all other operators."""

_TOKEN: Final = re.compile(
    r"""
    (?P<blank>\s+|--[^\n]*)
    | (?P<string>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")*")
    | (?P<schema>\{schema\})
    | (?P<value>\$\d+|\d+(?:\.\d+)?)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<mark>::|=>|[().,;\[\]])
    | (?P<operator>[-+*/<>=~!@\#%^&|]+)
    """,
    re.VERBOSE,
)


class Token(NamedTuple):
    """A part of a statement.

    Attributes:
        kind: The name of its group in ``_TOKEN``.
        text: The part itself.
        place: The number of characters before it.
    """

    kind: str
    text: str
    place: int

    @property
    def is_keyword(self) -> bool:
        """Whether this is a word in upper case."""
        return self.kind == "word" and self.text.isupper()

    @property
    def is_name(self) -> bool:
        """Whether this is a word in lower case."""
        return self.kind == "word" and not self.text.isupper()


START: Final = Token("mark", ";", 0)
"""Stands in place of the token before the first one of a statement, and of the token behind the last."""

NO_OPERATOR: Final = 9
"""The precedence before the first operator of an expression, which every operator may follow."""


@dataclass(slots=True)
class Level:
    """The state of the tokens read between two parentheses, or between CASE and END.

    Attributes:
        precedence: The precedence of the last operator of the expression.
        awaits_assignment: Whether the next ``=`` assigns a column.
        assigns: Whether the level is in the list after SET.
        defines: Whether the level is in the list after WITH.
    """

    precedence: int = NO_OPERATOR
    awaits_assignment: bool = False
    assigns: bool = False
    defines: bool = False


@dataclass(slots=True)
class _Rewriter:
    """Rewrites one statement token by token, and keeps the state of each open parenthesis or CASE."""

    sql: str
    levels: list[Level] = field(default_factory=lambda: [Level()])

    def rewritten(self) -> str:
        """Return the statement. Blanks and comments stay; other tokens depend on those around them."""
        tokens = list(self._tokens())
        texts = [token.text for token in tokens]
        # The indexes of the tokens that are neither blanks nor comments.
        indexes = [index for index, token in enumerate(tokens) if token.kind != "blank"]
        before = START
        for number, index in enumerate(indexes, 1):
            is_last = number == len(indexes)
            after = START if is_last else tokens[indexes[number]]
            texts[index] = self._rewrite(before, tokens[index], after)
            before = tokens[index]
        return "".join(texts)

    def _tokens(self) -> list[Token]:
        """Return the parts of the statement, blanks and comments included."""
        tokens, place = [], 0
        while place < len(self.sql):
            match = _TOKEN.match(self.sql, place)
            if match is None:
                raise self._error(place, "unknown syntax")
            tokens.append(Token(str(match.lastgroup), match[0], place))
            place = match.end()
        return tokens

    def _rewrite(self, before: Token, token: Token, after: Token) -> str:
        """Return the text of a token, which depends on its kind and on the tokens around it."""
        if token.is_keyword:
            self._read_keyword(token, after)
        elif token.kind == "mark":
            self._read_mark(token)
        elif token.kind == "operator":
            return self._operator(before, token)
        elif token.is_name:
            return self._name(before, token, after)
        elif token.kind == "quoted" and before.text == "COLLATE":
            return f"pg_catalog.{token.text}"
        return token.text

    def _read_keyword(self, token: Token, after: Token) -> None:
        """Reject a keyword that depends on the search path; note what a keyword begins or ends."""
        word, level = token.text, self.levels[-1]
        if word in REJECTED:
            raise self._error(token.place, f"{word}: {REJECTED[word]}")
        if word == "IN" and after.text == "(":
            raise self._error(token.place, "IN: write = ANY (ARRAY [...]) or = ANY (ARRAY (SELECT ...))")
        if word == "DISTINCT" and after.text == "FROM":
            raise self._error(token.place, "IS DISTINCT FROM: write (a = b) IS NOT TRUE, or IS TRUE")
        if word == "CASE" and after.text != "WHEN":
            raise self._error(token.place, "CASE a WHEN b: write CASE WHEN a = b")
        if word == "USING" and (after.text == "(" or after.kind == "operator"):
            raise self._error(token.place, "USING: write JOIN ... ON, or ORDER BY ... DESC")
        # A string with a prefix, such as E'...', is not a standard string.
        if after.kind == "string" and after.place == token.place + len(word):
            raise self._error(token.place, f"{word} before a string: write a standard string")
        if after.text == "(" and word not in PARENTHESIZED:
            raise self._error(token.place, f"{word} before a parenthesis: write functions in lower case")
        if word == "CASE":
            self.levels.append(Level())
        elif word == "END" and len(self.levels) > 1:
            self.levels.pop()
        elif word not in OPERANDS:
            # Any other keyword ends an expression. SET begins a list of assignments, and WITH one of queries
            # with names. These lists last until a keyword that cannot be a part of them.
            level.precedence = NO_OPERATOR
            level.assigns = word == "SET" or (level.assigns and word not in {"FROM", "WHERE", "RETURNING"})
            level.awaits_assignment = word == "SET"
            level.defines = word == "WITH" or (level.defines and word in {"AS", "MATERIALIZED", "RECURSIVE"})

    def _read_mark(self, token: Token) -> None:
        """Note what a parenthesis, a bracket, a comma or a semicolon begins or ends."""
        if token.text in "([":
            self.levels.append(Level())
        elif token.text in ")]" and len(self.levels) > 1:
            self.levels.pop()
        elif token.text in ",;":
            level = self.levels[-1]
            level.precedence = NO_OPERATOR
            level.awaits_assignment = level.assigns

    def _operator(self, before: Token, token: Token) -> str:
        """Return an operator, qualified unless it stands for all columns or assigns a column."""
        level = self.levels[-1]
        if token.text == "*" and (before.text in {"(", ",", "."} or before.text == "SELECT"):
            return token.text  # all columns, or count(*)
        if token.text == "=" and level.awaits_assignment:
            level.awaits_assignment = False
            level.precedence = NO_OPERATOR
            return token.text
        # At the beginning of an expression, the operator has no operand on its left.
        begins_expression = before.is_keyword and before.text not in {"END", *OPERANDS}
        if before.kind == "operator" or before.text in {"(", "[", ",", "=>"} or begins_expression:
            raise self._error(token.place, f"prefix operator {token.text}: write the expression without it")
        precedence = PRECEDENCE.get(token.text, OTHER_PRECEDENCE)
        # OPERATOR() groups from the left. That is wrong if this operator binds more strongly than the one
        # before it. Comparisons, whose precedence is 1, cannot follow one another at all.
        if precedence > level.precedence or precedence == level.precedence == 1:
            raise self._error(
                token.place, f"operator {token.text}: write parentheses around the operation that comes first"
            )
        level.precedence = precedence
        return f"OPERATOR(pg_catalog.{token.text})"

    def _name(self, before: Token, token: Token, after: Token) -> str:
        """Return a name, qualified if it is that of a type or a function."""
        name = token.text
        # The name is qualified already, or it qualifies the name behind it.
        if before.kind == "schema" or before.text == "." or after.text == ".":
            return name
        # A type follows a cast, or precedes a literal such as interval '1 s'.
        if before.text == "::" or after.kind == "string":
            return name if name in GRAMMAR_TYPES else f"pg_catalog.{name}"
        # The name of the type double precision has two words.
        if before.is_name and before.text != "double":
            raise self._error(token.place, f"{name} after another name: write AS before an alias")
        if after.text != "(" or name in SYNTAX:
            return name
        # Without a space before the parenthesis, it is a function.
        if after.place == token.place + len(name):
            return f"pg_catalog.{name}"
        # With a space before the parenthesis, it is an alias or a table of WITH that names its columns.
        if before.text == "AS" or self.levels[-1].defines:
            return name
        raise self._error(token.place, f"{name} before a parenthesis: write no space after a function")

    def _error(self, place: int, message: str) -> ValueError:
        """Return an error with the line of the statement that has this place."""
        line = self.sql.count("\n", 0, place) + 1
        text = self.sql.splitlines()[line - 1].strip()
        return ValueError(f"{message} (line {line}: {text})")


def qualify_builtins(sql: str) -> str:
    """Return the statement with ``pg_catalog`` before every built-in function, operator and type.

    Tables must be qualified already, or follow ``{schema}``.

    Raises:
        ValueError: The statement has syntax that cannot be qualified; the message names the replacement.

    Example:
        >>> qualify_builtins("SELECT now() - $1::timestamptz")
        'SELECT pg_catalog.now() OPERATOR(pg_catalog.-) $1::pg_catalog.timestamptz'
    """
    return _Rewriter(sql).rewritten()
