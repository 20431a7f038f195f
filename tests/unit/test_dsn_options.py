"""Each option that hosting services and other libraries write into a DSN is translated, or named."""

from __future__ import annotations

import ast
import re
import ssl
from pathlib import Path
from typing import Any

import pytest

from pg_scheduler.base.dsn import check_dsn
from pg_scheduler.base.dsn_options import LEFT_OUT, NAMES, REFUSED, SETTINGS, connect_arguments
from pg_scheduler.errors import ConfigurationError
from tests.support.inside import normalise_dsn
from tests.support.source import parsed

ROOT = Path(__file__).parents[2]
HOST = "postgresql://app:secret@db.example:5432/shop"

TRANSLATED: dict[str, tuple[str, dict[str, Any]]] = {
    "": ("", {}),
    "application_name=web": ("application_name=web", {}),
    "channel_binding=prefer": ("", {}),
    "client_encoding=UTF8": ("", {}),
    "connect_timeout=0": ("", {"timeout": None}),
    "connect_timeout=10": ("", {"timeout": 10.0}),
    "fallback_application_name=web": ("application_name=web", {}),
    "fallback_application_name=web&application_name=own": ("application_name=own", {}),
    "gssdelegation=0": ("", {}),
    "gssencmode=disable": ("", {}),
    "host=other&port=5433": ("host=other&port=5433", {}),
    "keepalives=1&keepalives_idle=30&keepalives_interval=5&keepalives_count=3": ("", {}),
    "load_balance_hosts=random": ("", {}),
    "min_protocol_version=3.0&max_protocol_version=3.2": ("", {}),
    "options=-c%20search_path%3Dpublic": ("options=-c%20search_path%3Dpublic", {}),
    "options=endpoint%3Dep-cool-sea": ("options=endpoint%3Dep-cool-sea", {}),
    "pgbouncer=false": ("", {}),
    "pgbouncer=true": ("", {"statement_cache_size": 0}),
    "replication=false": ("", {}),
    "requiressl=0": ("sslmode=prefer", {}),
    "requiressl=1": ("sslmode=require", {}),
    "ssl=no-verify": ("sslmode=require", {}),
    "ssl=require": ("sslmode=require", {}),
    "ssl=true": ("sslmode=require", {}),
    "ssl=false": ("sslmode=disable", {}),
    "sslcertmode=allow&sslsni=1&sslcompression=0": ("", {}),
    "sslmode=require&sslnegotiation=direct": ("sslmode=require", {"direct_tls": True}),
    "sslnegotiation=postgres": ("", {}),
    "statement_timeout=5s": ("statement_timeout=5s", {}),
    "target_session_attrs=read-write": ("target_session_attrs=read-write", {}),
    "tcp_user_timeout=5000": ("", {}),
}
"""Options as they are written, what asyncpg reads of them, and its arguments."""

PROVIDERS = {
    "Azure": "postgres://app%40srv:pw@srv.postgres.database.azure.com:5432/app?sslmode=require",
    "Cloud SQL": "postgresql://app:pw@/app?host=/cloudsql/project:europe-west1:main",
    "Cockroach": "postgresql://app:pw@c.cockroachlabs.cloud:26257/app?sslmode=verify-full&sslrootcert=system",
    "Heroku": "postgres://u:pw@ec2-1-2-3-4.compute-1.amazonaws.com:5432/d?sslmode=require",
    "Neon": "postgresql://u:pw@ep-1-pooler.eu-1.aws.neon.tech/app?sslmode=require&channel_binding=require",
    "RDS": "postgresql://app:pw@db.eu-1.rds.amazonaws.com:5432/app?connect_timeout=10&sslmode=require",
    "Render": "postgresql://app:pw@dpg-1-a.frankfurt-postgres.render.com/app",
    "Supabase": "postgresql://postgres.ref:pw@aws-0-eu.pooler.supabase.com:6543/postgres?pgbouncer=true",
}

WRONG = {
    "channel_binding=maybe": "channel_binding=",
    "client_encoding=latin1": "the option client_encoding: asyncpg works with UTF8 only",
    "connect_timeout=soon": "connect_timeout=, which must be a number of seconds such as 10",
    "gssencmode=require": "the option gssencmode: asyncpg does not support it",
    "replication=database": "the option replication: asyncpg does not support it",
    "sslmode=require&sslrootcert=system": "needs sslmode=verify-full, not require",
    "ssl_min_protocol_version=9&sslrootcert=system": "must be TLSv1.2 or TLSv1.3",
}

FILES = {
    "sslmode=verify-full&sslrootcert={}": "sslrootcert",
    "sslmode=require&sslcrl={}": "sslcrl",
    "sslcert={}": "sslcert",
    "sslmode=verify-full&sslrootcert=system&sslcert={}": "sslcert",
    "sslmode=verify-full&sslrootcert=system&sslcrl={}": "sslcrl",
}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the variables and files of libpq."""
    for name in (
        "SERVICE",
        "SERVICEFILE",
        "SYSCONFDIR",
        "SSLMODE",
        "SSLROOTCERT",
        "SSLCRL",
        "SSLCERT",
        "SSLKEY",
    ):
        monkeypatch.delenv(f"PG{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def refusal(dsn: str | None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        connect_arguments(dsn, "the DSN from --dsn")
    return str(caught.value)


@pytest.mark.parametrize("query", TRANSLATED)
def test_option_is_translated(query: str) -> None:
    expected, settings = TRANSLATED[query]
    dsn = f"{HOST}?{query}" if query else HOST
    assert check_dsn(dsn, "dsn") == dsn
    address = f"{HOST}?{expected}" if expected else HOST
    assert connect_arguments(dsn, "dsn") == (address, settings)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_address_of_a_hosting_service_is_accepted(provider: str) -> None:
    dsn, settings = connect_arguments(normalise_dsn(PROVIDERS[provider], "dsn"), "dsn")
    assert dsn is not None
    assert not {"channel_binding", "connect_timeout", "pgbouncer"} & set(re.findall(r"(\w+)=", dsn))
    if provider in {"Neon", "Cockroach"}:
        assert settings["ssl"].verify_mode is ssl.CERT_REQUIRED
        assert settings["ssl"].check_hostname
        assert "sslmode" not in dsn


@pytest.mark.parametrize("query", WRONG)
def test_value_that_cannot_be_used_is_named(query: str) -> None:
    assert WRONG[query] in refusal(f"{HOST}?{query}")


@pytest.mark.parametrize("option", sorted(REFUSED))
def test_option_that_cannot_be_used_is_named_with_the_remedy(option: str) -> None:
    for check in (check_dsn, normalise_dsn, connect_arguments):
        with pytest.raises(ConfigurationError) as caught:
            check(f"{HOST}?{option}=something", "direct_dsn")
        assert str(caught.value) == f"direct_dsn has the option {option}: {REFUSED[option]}"


@pytest.mark.parametrize("query", FILES)
def test_file_of_certificates_that_is_missing_or_broken_is_named(query: str, tmp_path: Path) -> None:
    path = tmp_path / "missing.pem"
    dsn = f"{HOST}?{query.format(path)}"
    missing = f"{FILES[query]} of the DSN from --dsn names a file that cannot be read: {path} (No such file"
    assert refusal(dsn).startswith(missing)
    path.write_text("no certificate", encoding="utf-8")
    assert f"{FILES[query]} of the DSN from --dsn names a file without a certificate" in refusal(dsn)


def test_file_of_certificates_of_a_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSSLROOTCERT", "/nowhere/ca.pem")
    assert refusal(f"{HOST}?sslmode=verify-ca").startswith("PGSSLROOTCERT names a file that cannot be read")
    assert connect_arguments(f"{HOST}?sslmode=prefer", "dsn")  # which reads none
    assert connect_arguments(f"{HOST}?sslmode=disable&sslcert=/nowhere", "dsn")


def test_verification_without_a_certificate_of_an_authority_names_both_remedies() -> None:
    message = refusal(f"{HOST}?sslmode=verify-full")
    assert "sslrootcert=system" in message
    assert "~/.postgresql/root.crt does not exist" in message


def test_service_of_the_variable_or_the_dsn_completes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".pg_service.conf").write_text(
        "[shop]\nhost=db\nport=5433\nuser=app\npassword=a%b\ndbname=shop\nconnect_timeout=7\n",
        encoding="utf-8",
    )
    whole = ("postgresql://?host=db&port=5433&user=app&password=a%25b&dbname=shop", {"timeout": 7.0})
    assert connect_arguments(None, "dsn") == (None, {})
    assert connect_arguments("postgresql://?service=shop", "dsn") == whole
    assert connect_arguments("postgresql:///?service=shop", "dsn") == whole
    with_colon = connect_arguments("postgresql://a%3Ab@/?service=shop", "dsn")[0]
    assert with_colon == "postgresql://a%3Ab@?host=db&port=5433&password=a%25b&dbname=shop"
    monkeypatch.setenv("PGSERVICE", "shop")
    assert connect_arguments(None, "dsn") == whole
    assert connect_arguments("postgresql://ada@/books?connect_timeout=3", "dsn") == (
        "postgresql://ada@/books?host=db&port=5433&password=a%25b",
        {"timeout": 3.0},
    )
    monkeypatch.setenv("PGSERVICE", "none")
    assert "the service 'none', which is not defined in" in refusal(None)
    monkeypatch.setenv("PGSYSCONFDIR", str(tmp_path / "etc"))
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/pg_service.conf").write_text("[none]\nschema=x\n", encoding="utf-8")
    assert "has the option schema" in refusal(None)
    (tmp_path / "etc/pg_service.conf").write_text("password=secret\n", encoding="utf-8")
    assert "secret" not in refusal(None)


def test_documentation_has_each_option_and_no_other() -> None:
    page = (ROOT / "docs/operations/database.md").read_text(encoding="utf-8")
    table = page.partition("## Addresses of databases")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    names = [name.partition("=")[0] for row in rows for name in re.findall(r"`([^`]+)`", row)]
    names.remove("statement_timeout")  # of the settings, of which the table has an example
    assert sorted(names) == sorted(NAMES)
    assert not SETTINGS & REFUSED.keys()
    assert {name for name, values in LEFT_OUT.items() if values is not None} <= REFUSED.keys()


OPENING = "pg_scheduler/database/opening.py"


def test_one_module_opens_every_dsn() -> None:
    """No other code names ``asyncpg.connect`` or ``asyncpg.create_pool``, except for pools without a DSN."""
    places = set()
    for path in sorted((ROOT / "pg_scheduler").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        for function in ast.walk(parsed(path)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if (
                        isinstance(node, ast.Attribute)
                        and node.attr in {"connect", "create_pool"}
                        and isinstance(node.value, ast.Name)
                        and node.value.id == "asyncpg"
                    ):
                        places.add((name, function.name))
    assert places == {
        (OPENING, "create_pool"),
        (OPENING, "open_connection_to"),
        ("pg_scheduler/database/asyncpg_private.py", "_has_own_connect"),
        ("pg_scheduler/database/asyncpg_private.py", "connect_as_pool"),
        ("pg_scheduler/database/asyncpg_private.py", "copy_of"),
        ("pg_scheduler/sync/scheduler.py", "closed_pool"),
    }


@pytest.fixture
def nameless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the user of this process have a number only, as by ``docker run --user 12345``."""

    def getpwuid(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", getpwuid)
    for variable in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME", "PGUSER", "PGSERVICE", "PGSERVICEFILE"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.usefixtures("nameless")
@pytest.mark.parametrize(
    "dsn", [None, "postgresql://db/shop", "postgresql://:pw@db/shop", "postgresql:///shop"]
)
def test_dsn_without_a_user_is_rejected_if_the_user_of_the_process_has_no_name(
    dsn: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match=r"dsn has no user, .* only the number .* set PGUSER"):
        connect_arguments(dsn, "dsn")
    assert connect_arguments("postgresql://app@db/shop", "dsn").dsn == "postgresql://app@db/shop"
    assert connect_arguments("postgresql://db/shop?user=app", "dsn").dsn == "postgresql://db/shop?user=app"
    monkeypatch.setenv("PGUSER", "app")
    connect_arguments(dsn, "dsn")


@pytest.mark.usefixtures("nameless")
def test_files_of_a_home_folder_that_does_not_exist_are_missing() -> None:
    with pytest.raises(ConfigurationError, match="no root certificate"):
        connect_arguments("postgresql://app@db/shop?sslmode=verify-full", "dsn")
    with pytest.raises(ConfigurationError, match="service 'shop', which is not defined in ~/"):
        connect_arguments("postgresql://app@db/?service=shop", "dsn")
