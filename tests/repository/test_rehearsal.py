"""dev.py rehearse: what it would install, the package index that it serves, and its verdict."""

from __future__ import annotations

import re
import socket
import struct
import threading
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, build_opener

import pytest

from tests.support.cases import each_case
from tools import rehearsal
from tools.environment import LOCK, RELEASE_LOCK, DevError
from tools.matrix import PYTHONS
from tools.package import Distributions
from tools.rehearsal import INSTALLERS, MODULES, Installation

TAGS = {"tag": "v1.2.3\nnewest", "status": "", "rev-parse": "0123456789abcdef"}


class NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


@pytest.fixture
def candidate(tmp_path: Path) -> Distributions:
    files = [tmp_path / f"pg_scheduler-1.2.3{end}" for end in ("-py3-none-any.whl", ".tar.gz")]
    for file in files:
        file.write_text(file.name, encoding="utf-8")
    return Distributions(*files)


def test_rehearsal_installs_every_extra_of_users_and_none() -> None:
    assert list(MODULES) == ["", *rehearsal.user_extras()]


def test_rehearsal_without_options_is_complete_and_with_some_is_not() -> None:
    wanted = rehearsal.parse(["v1.2.3"])
    assert (wanted.tag, wanted.is_complete) == ("v1.2.3", True)
    assert (wanted.installer, wanted.version, wanted.extra) == ([*INSTALLERS], [*PYTHONS], [*MODULES])
    wanted = rehearsal.parse(["--installer", "uv", "--extra", "cli", "--extra", "otel"])
    assert (wanted.tag, wanted.is_complete) == (None, False)
    assert (wanted.installer, wanted.version, wanted.extra) == (["uv"], [*PYTHONS], ["cli", "otel"])


def test_programs_of_the_release_have_the_locked_versions_of_the_development() -> None:
    """The sdist must build the same wheel with the hatchling of both."""
    development, release = (
        dict(re.findall(r"^([\w.-]+)==(\S+) \\$", lock.read_text(encoding="utf-8"), re.MULTILINE))
        for lock in (LOCK, RELEASE_LOCK)
    )
    differing = {name for name in development.keys() & release.keys() if development[name] != release[name]}
    assert differing == set()
    assert {"build", "cyclonedx-bom", "hatchling", "pdm", "poetry", "twine", "uv"} <= release.keys()


@pytest.mark.parametrize("tag", ["v1.2.3", None])
def test_rehearsal_takes_the_commit_that_is_checked_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tag: str | None
) -> None:
    monkeypatch.setattr(rehearsal, "git", lambda *words: TAGS[words[0]])
    monkeypatch.setattr(rehearsal, "__version__", "1.2.3")
    monkeypatch.setattr(rehearsal, "ROOT", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("## [1.2.3] - 2030-01-31\n", encoding="utf-8")
    assert rehearsal.choose_commit(tag) == "0123456789abcdef"


@each_case(
    "changed, tag, text",
    [
        ("", "v1.2.4", r"v1\.2\.4 is not at the commit .* 0123456789ab \(tags there: v1\.2\.3, newest\)"),
        (" M README.md", "v1.2.3", r"commit or restore them:\n M README\.md"),
        ("", "newest", r"tag newest does not match version"),
    ],
)
def test_rehearsal_rejects_another_commit_and_changes_that_no_commit_has(
    changed: str, tag: str, text: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rehearsal, "git", lambda *words: {**TAGS, "status": changed}[words[0]])
        with pytest.raises(DevError, match=text):
            rehearsal.choose_commit(tag)


def test_package_index_has_the_candidate_and_redirects_for_other_projects(
    candidate: Distributions, tmp_path: Path
) -> None:
    browser = build_opener(NoRedirect)
    with rehearsal.serve(candidate, tmp_path / "index", "https://index.example/simple") as index:
        with browser.open(f"{index}pg-scheduler/") as page:
            links = re.findall(r'href="([^#"]+)#sha256=(\w+)"', page.read().decode())
        assert links == [(file.name, rehearsal.digest(file)) for file in candidate]
        for file in candidate:
            with browser.open(f"{index}pg-scheduler/{file.name}") as download:
                assert download.read() == file.read_bytes()
        with pytest.raises(HTTPError) as raised:
            browser.open(f"{index}asyncpg/")
        raised.value.close()
    assert (raised.value.code, raised.value.headers["Location"]) == (
        302,
        "https://index.example/simple/asyncpg/",
    )


def test_client_that_hangs_up_leaves_no_traceback(
    candidate: Distributions, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    candidate.wheel.write_bytes(bytes(50_000_000))  # more than the buffers of a connection hold
    with rehearsal.serve(candidate, tmp_path / "index", "https://index.example/simple") as index:
        url = urlsplit(index)
        with socket.create_connection((url.hostname, url.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets
            client.sendall(f"GET {url.path}pg-scheduler/{candidate.wheel.name} HTTP/1.0\r\n\r\n".encode())
            assert client.recv(100).startswith(b"HTTP/1.0 200")
        for thread in threading.enumerate():
            if "process_request_thread" in thread.name:
                thread.join(60)
                assert not thread.is_alive()
    assert capfd.readouterr().err == ""


def test_sbom_is_that_of_the_candidate_and_does_not_depend_on_the_index(candidate: Distributions) -> None:
    asyncpg = {"name": "asyncpg", "version": "0.30"}
    local = {"type": "distribution", "url": "http://127.0.0.1:4711/simple/pg-scheduler/"}
    website = {"type": "website", "url": "https://example.com/"}
    ours = {"name": "pg-scheduler", "version": "1.2.3", "externalReferences": [local, website]}
    sbom = rehearsal.name_candidate({"components": [asyncpg, ours], "metadata": {}}, candidate)
    assert sbom["components"] == [asyncpg]
    subject = sbom["metadata"]["component"]
    assert subject["version"] == "1.2.3"
    assert [it["url"] for it in subject["externalReferences"]] == [
        website["url"],
        *(f.name for f in candidate),
    ]
    assert subject["externalReferences"][-1]["hashes"][0]["content"] == rehearsal.digest(candidate.sdist)


def test_table_has_what_was_installed_what_failed_and_what_was_absent() -> None:
    installations = [
        Installation("pip", "3.11", "", 2.0, None),
        Installation("pip", "3.11", "cli", 3.0, None),
        Installation("uv", "3.11", "", 1.0, "no wheel"),
        Installation("uv", "3.11", "cli", 1.0, "no wheel"),
    ]
    assert rehearsal.table(installations, ["3.11", "3.14"]).splitlines() == [
        "| Python | pip | uv |",
        "|---|---|---|",
        "| 3.11 | 2 in 5 s | FAILED: no extra, cli |",
        "| 3.14 | absent | absent |",
    ]


def test_candidate_is_in_dist_only_if_it_can_be_installed(
    candidate: Distributions,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcomes = [Installation("uv", "3.11", "cli", 1.0, error) for error in ("no wheel", None)]
    sbom = tmp_path / rehearsal.SBOM
    sbom.touch()
    for name, value in {
        "ROOT": tmp_path,
        "choose_commit": lambda _: "0123456789abcdef",
        "install_programs": lambda folder: folder,
        "build_twice": lambda *_: candidate,
        "check_candidate": lambda *_: "1.2.3",
        "ordinary_index": lambda _: "https://index.example/simple",
        "describe_components": lambda *_: sbom,
        "install_all": lambda *_: [outcomes.pop(0)],
    }.items():
        monkeypatch.setattr(rehearsal, name, value)
    assert rehearsal.main(["--extra", "cli"]) == 1
    assert not (tmp_path / "dist").exists()
    assert rehearsal.main(["--extra", "cli"]) == 0
    assert {path.name for path in (tmp_path / "dist").iterdir()} == {
        *(it.name for it in candidate),
        sbom.name,
    }
    printed = capsys.readouterr()
    assert f"{rehearsal.digest(candidate.wheel)}  dist/{candidate.wheel.name}\n" in printed.out
    assert printed.err.endswith("not run: the installers, versions and extras that the options leave out\n")
