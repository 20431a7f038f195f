"""Planning migrations, without a database."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from pg_scheduler.base.sqltext import qualify, quote_identifier
from pg_scheduler.database.migrations.plan import Applied, load_migrations, plan
from pg_scheduler.errors import ConfigurationError, MigrationChangedError, SchemaTooNewError
from pg_scheduler.migrate import Migration, shipped_migrations

SHIPPED = [Migration(version, f"step_{version}", f"UP {version}", f"DOWN {version}") for version in (1, 2, 3)]
ALL_APPLIED = {migration.version: Applied(migration.checksum) for migration in SHIPPED}


def steps(applied: dict[int, Applied], target: int | None = None) -> list[tuple[int, bool]]:
    return [(step.migration.version, step.up) for step in plan(applied, SHIPPED, target)]


def test_plan_applies_every_migration_on_an_empty_database() -> None:
    assert steps({}) == [(1, True), (2, True), (3, True)]


def test_plan_applies_only_missing_migrations() -> None:
    assert steps({1: ALL_APPLIED[1]}) == [(2, True), (3, True)]
    assert steps({1: ALL_APPLIED[1]}, target=2) == [(2, True)]
    assert steps(ALL_APPLIED) == []


def test_plan_reverts_in_descending_order() -> None:
    assert steps(ALL_APPLIED, target=0) == [(3, False), (2, False), (1, False)]
    assert steps(ALL_APPLIED, target=2) == [(3, False)]


@pytest.mark.parametrize("target", [-1, 4])
def test_plan_raises_when_the_target_does_not_exist(target: int) -> None:
    with pytest.raises(
        ConfigurationError, match=f"target is {target}, but this release has the schema versions 0 to 3"
    ):
        steps({}, target)


def test_plan_raises_with_both_versions_when_the_database_is_newer() -> None:
    with pytest.raises(SchemaTooNewError, match=r"at schema version 9.* up to 3; upgrade"):
        steps(ALL_APPLIED | {9: Applied("unknown")}, target=0)


def test_plan_is_empty_when_newer_migrations_support_this_release() -> None:
    newer = ALL_APPLIED | {4: Applied("more", 0), 5: Applied("less of what 2 had", 3)}
    assert steps(newer) == []
    for target in (0, 3):
        with pytest.raises(SchemaTooNewError, match=r"at schema version 5.* up to 3; upgrade"):
            steps(newer, target)
    for late in (Applied("less of what 3 had", 4), Applied("not declared")):
        with pytest.raises(SchemaTooNewError, match=r"at schema version 6.* up to 3; upgrade"):
            steps(newer | {6: late})
        with pytest.raises(SchemaTooNewError, match=r"at schema version 5.* up to 3; upgrade"):
            steps(newer | {4: late})


def test_migration_kind_is_read_from_the_first_line() -> None:
    def needs(up: str) -> int | None:
        return Migration(7, "name", up, "").needs

    assert needs("-- expand\nALTER") == 0
    assert needs("-- contract 0007\r\nALTER") == 7
    assert needs("-- A reason.\n-- expand\nALTER") is None
    assert needs("-- expanded\nALTER") is None


REMOVES = re.compile(
    r"\b(DROP\s+(TABLE|COLUMN|SCHEMA)|RENAME|TRUNCATE|SET\s+NOT\s+NULL|(ALTER|SET\s+DATA)\s+TYPE"
    r"|ALTER\s+COLUMN\s+\w+\s+TYPE|DROP\s+DEFAULT)\b",
    re.IGNORECASE,
)


def test_shipped_migrations_declare_their_kind_and_expansions_remove_nothing() -> None:
    """Without a declaration older releases refuse the schema, with a wrong one they break on it."""
    for migration in shipped_migrations():
        assert migration.needs is not None, f"{migration.name}: neither -- expand nor -- contract NNNN"
        assert migration.needs <= migration.version
        if migration.needs == 0:
            code = re.sub(r"--.*", "", migration.up)
            assert not REMOVES.search(code), (
                f"{migration.name} contracts although it declares -- expand: see CONTRIBUTING.md"
            )


def test_plan_raises_with_both_checksums_when_a_migration_changed() -> None:
    with pytest.raises(MigrationChangedError, match=f"0002 .step_2.*checksum other.*{SHIPPED[1].checksum}"):
        steps(ALL_APPLIED | {2: Applied("other")})


def test_checksum_ignores_only_line_endings() -> None:
    unix = Migration(1, "name", "SELECT 1;\nSELECT 2;\n", "")
    assert replace(unix, up="SELECT 1;\r\nSELECT 2;\r\n").checksum == unix.checksum
    assert replace(unix, up="SELECT 1;\nSELECT 3;\n").checksum != unix.checksum


def test_shipped_migrations_are_numbered_pairs_of_up_and_down_files() -> None:
    folder = Path(__file__).parents[2] / "migrations"
    names = sorted(file.name for file in folder.glob("*.sql"))
    pattern = re.compile(r"(\d{4})_[a-z0-9]+(_[a-z0-9]+)*\.(up|down)\.sql")
    assert [name for name in names if not pattern.fullmatch(name)] == []
    ups = [name.removesuffix(".up.sql") for name in names if name.endswith(".up.sql")]
    downs = [name.removesuffix(".down.sql") for name in names if name.endswith(".down.sql")]
    assert ups == downs
    assert [int(name[:4]) for name in ups] == list(range(1, len(ups) + 1))
    assert ups == [f"{migration.version:04}_{migration.name}" for migration in shipped_migrations()]


def test_load_migrations_raises_on_a_gap_or_a_missing_down_file(tmp_path: Path) -> None:
    for name in ("0001_first", "0003_third"):
        (tmp_path / f"{name}.up.sql").write_text("SELECT 1", encoding="utf-8")
        (tmp_path / f"{name}.down.sql").write_text("SELECT 1", encoding="utf-8")
    with pytest.raises(ValueError, match=r"are \[1, 3\]; number them 1, 2, 3"):
        load_migrations(tmp_path)
    (tmp_path / "0002_second.up.sql").write_text("SELECT 1", encoding="utf-8")
    with pytest.raises(FileNotFoundError, match=r"0002_second\.down\.sql"):
        load_migrations(tmp_path)


def test_qualify_inserts_the_quoted_schema() -> None:
    sql = qualify("TABLE {schema}jobs -- '{}'", 'Odd "Schéma" 1')
    assert sql == 'TABLE "Odd ""Schéma"" 1".jobs -- \'{}\''


@pytest.mark.parametrize("name", ["", "é" * 32, "with\0nul"])
def test_quote_identifier_raises_when_postgresql_would_alter_the_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"not {name!r}")):
        quote_identifier(name)
