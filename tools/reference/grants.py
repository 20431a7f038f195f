"""The grants of the database roles, in the place of comments such as ``<!-- grants: viewer -->``."""

from __future__ import annotations

import re
import textwrap
from typing import Final

from pg_scheduler.inspect.store.grants import Role, grant_statements

SCHEMA = "jobs"
COMMENT: Final = re.compile(r"^<!-- grants: (?P<role>\w+) -->$", re.MULTILINE)
_WIDTH = 110


def with_grants(page: str) -> str:
    """Return a page with a block of SQL in the place of each comment."""
    return COMMENT.sub(lambda comment: f"```sql\n{sql_of(Role(comment['role']))}```", page)


def sql_of(role: Role) -> str:
    """Return the statements that give a role its privileges, to ``jobs_<role>`` in the schema ``jobs``."""
    statements = (each.replace('"', "") for each in grant_statements(role, SCHEMA, f"{SCHEMA}_{role.value}"))
    return "".join(f"{textwrap.fill(each, _WIDTH, subsequent_indent='    ')};\n" for each in statements)
