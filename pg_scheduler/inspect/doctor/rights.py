"""Whether the role of the connection has the privileges of a worker, and no further ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from pg_scheduler.inspect.doctor.check import Found, SharedFacts, check
from pg_scheduler.inspect.doctor.codes import FindingCode, Severity
from pg_scheduler.inspect.doctor.findings import Finding, Thresholds
from pg_scheduler.inspect.store.grants import Role, grant_statements, privileges_of
from pg_scheduler.inspect.store.server import PRIVILEGES, RightsRow, RoleRow
from pg_scheduler.inspect.texts import counted
from pg_scheduler.migrate import TABLES
from pg_scheduler.sqltext import quote_identifier

OTHERS: Final = (Role.EXPORTER, Role.VIEWER, Role.OPERATOR, Role.ADMIN)
"""The roles whose connections run the doctor too."""


@check(FindingCode.RIGHTS)
async def _check_rights(facts: SharedFacts, _: Thresholds) -> Found:
    rights = await facts.store.server.rights(TABLES)
    return judge_rights(await facts.store.schema(), await facts.role(), rights)


def judge_rights(schema: str, role: RoleRow, rights: Sequence[RightsRow]) -> Iterator[Finding]:
    """Yield the privileges of a worker the role lacks, or has beyond these, and the remedy."""
    needed = privileges_of(Role.WORKER)
    granted = {each.table: set(each.privileges) for each in rights}
    missing = {table: needed[table] - privileges for table, privileges in granted.items()}
    if not any(missing.values()):
        yield from _judge_excess(schema, role, rights)
        return
    hidden = sum("SELECT" in privileges for privileges in missing.values())
    severity = Severity.ERROR if hidden else Severity.WARNING
    evidence = (
        f"the role {role.name!r} lacks privileges of a worker on "
        f"{counted(sum(map(bool, missing.values())), 'table')} of schema {schema!r}"
    )
    if hidden:
        evidence += f" and may not read {hidden} of them, so checks are not made"
    if same := next((each for each in OTHERS if _is_exactly(each, granted)), None):
        severity, evidence = (
            Severity.INFO,
            f"{evidence}; it has those of the role {same.value}, and no others",
        )
    home, to = quote_identifier(schema), quote_identifier(role.name)
    grants = [f"GRANT USAGE ON SCHEMA {home} TO {to}"]
    grants += [f"GRANT {names} ON {tables} TO {to}" for names, tables in _grouped(home, missing)]
    yield Finding(FindingCode.RIGHTS, severity, role.name, evidence, "; ".join(grants))


def _judge_excess(schema: str, role: RoleRow, rights: Sequence[RightsRow]) -> Iterator[Finding]:
    home = quote_identifier(schema)
    needed = privileges_of(Role.WORKER)
    further = {each.table: set(each.privileges) - needed[each.table] for each in rights}
    may_create = any(each.may_create for each in rights)
    owned = sum(each.is_owned for each in rights)
    if role.is_superuser or owned:
        excess = "is a superuser" if role.is_superuser else f"owns {counted(owned, 'table')}"
        separate = quote_identifier(f"{schema}_{Role.WORKER.value}")
        statements = [f"CREATE ROLE {separate} LOGIN"]
        statements += grant_statements(Role.WORKER, schema, f"{schema}_{Role.WORKER.value}")
        remedy = (
            f"migrate with this role, and connect the workers with one of their own: {'; '.join(statements)}"
        )
    elif may_create or any(further.values()):
        beyond = sorted({privilege for privileges in further.values() for privilege in privileges})
        excess = (
            f"has further privileges: {', '.join([*beyond, *(['CREATE ON SCHEMA'] if may_create else [])])}"
        )
        source = f"{quote_identifier(role.name)}, PUBLIC"
        statements = [
            f"REVOKE {names} ON {tables} FROM {source}" for names, tables in _grouped(home, further)
        ]
        statements += [f"REVOKE CREATE ON SCHEMA {home} FROM {source}"] if may_create else []
        remedy = "; ".join(statements)
    else:
        return
    yield Finding(
        FindingCode.RIGHTS,
        Severity.INFO,
        role.name,
        f"the role {role.name!r} {excess}; a worker needs to read and write rows only",
        remedy,
    )


def _is_exactly(role: Role, granted: Mapping[str, set[str]]) -> bool:
    needed = privileges_of(role)
    return all(privileges == needed.get(table, set()) for table, privileges in granted.items())


def _grouped(home: str, rights: Mapping[str, Iterable[str]]) -> list[tuple[str, str]]:
    """Return lists of privileges, each with the tables that it belongs to."""
    groups: dict[str, list[str]] = {}
    for table, privileges in rights.items():
        names = ", ".join(each for each in PRIVILEGES if each in privileges)
        if names:
            groups.setdefault(names, []).append(f"{home}.{table}")
    return [(names, ", ".join(tables)) for names, tables in groups.items()]
