"""The published documentation has each page of its versions, and leads every former address to one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.repository.documentation import PAGES, write_build
from tools.environment import ROOT
from tools.reference.llms import SITE
from tools.versions import assemble, destination_of, main, read_moves

MOVES = {"old": "middle", "middle": "a/new", "gone": "index"}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site in which a page moved twice, the second time after the latest release."""
    dev = write_build(tmp_path / "main", ["index", "a/new", "a/only-dev"], "of dev")
    stable = write_build(tmp_path / "release", ["index", "middle", "a/only-stable"], "of stable")
    assemble(tmp_path / "site", dev, stable, MOVES)
    return tmp_path / "site"


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def link_of(path: Path) -> str:
    """Return where a page redirects to."""
    target = re.search(r'content="0; url=([^"]+)"', text_of(path))
    assert target, f"{path} is no redirect"
    assert f'location.replace("{target[1]}" + location.search + location.hash)' in text_of(path)
    return target[1]


def test_site_has_the_pages_of_each_version_unchanged_but_for_head_and_notice(site: Path) -> None:
    for version, page in (("stable", "middle"), ("dev", "a/new")):
        assert f"<p>of {version}</p>" in text_of(site / version / f"{page}.html")
        assert text_of(site / version / f"{page}.md") == f"# {page}\n\nof {version}\n"


def test_address_without_a_version_leads_to_stable_and_else_to_dev(site: Path) -> None:
    assert link_of(site / "index.html") == "stable/index.html"
    assert link_of(site / "middle.html") == "stable/middle.html"
    assert link_of(site / "a/only-stable.html") == "../stable/a/only-stable.html"
    assert link_of(site / "a/only-dev.html") == "../dev/a/only-dev.html"
    assert text_of(site / "middle.md") == f"# This page has moved\n\nRead {SITE}stable/middle.md\n"


def test_former_path_leads_to_the_present_one_in_each_version(site: Path) -> None:
    assert link_of(site / "old.html") == "stable/middle.html"
    assert link_of(site / "stable/old.html") == "middle.html"
    assert link_of(site / "dev/old.html") == link_of(site / "dev/middle.html") == "a/new.html"
    assert link_of(site / "gone.html") == "stable/index.html"
    assert text_of(site / "dev/old.md") == f"# This page has moved\n\nRead {SITE}dev/a/new.md\n"


def test_pages_of_dev_begin_with_a_notice_that_links_to_stable(site: Path) -> None:
    notice = "<article role='main'>\n<div class=\"admonition important\">"
    same = text_of(site / "dev/index.html")
    assert notice in same
    assert "This page describes the development version. Read the" in same
    assert '<a href="../stable/index.html">page of the latest release</a>' in same
    new = text_of(site / "dev/a/only-dev.html")
    assert "The latest release does not have it." in new
    assert '<a href="../../stable/index.html">documentation of the latest release</a>' in new
    assert "admonition" not in text_of(site / "stable/index.html")


def test_search_engines_find_the_pages_of_stable_only(site: Path) -> None:
    canonical = '<link rel="canonical" href="{}">'.format
    noindex = '<meta name="robots" content="noindex">'
    for version in ("stable", "dev"):
        text = text_of(site / version / "index.html")
        assert canonical(f"{SITE}stable/index.html") in text
        assert (noindex in text) == (version == "dev")
    assert "canonical" not in text_of(site / "dev/a/only-dev.html")
    assert canonical(f"{SITE}stable/middle.html") in text_of(site / "old.html")


def test_indexes_for_programs_are_those_of_each_version_and_at_the_root_of_stable(site: Path) -> None:
    for folder, version in (("", "stable"), ("stable", "stable"), ("dev", "dev")):
        assert text_of(site / folder / "objects.inv") == f"of {version}"
        links = re.findall(r"\]\(([^)]+)\)", text_of(site / folder / "llms.txt"))
        assert links
        for link in links:
            assert (site / link.removeprefix(SITE)).exists(), link
            assert link.startswith(f"{SITE}{version}/")


def test_site_before_the_first_release_has_dev_only(tmp_path: Path) -> None:
    dev = write_build(tmp_path / "main", ["index", "a/new"], "of dev")
    assemble(tmp_path / "site", dev, None, MOVES)
    assert not (tmp_path / "site" / "stable").exists()
    assert link_of(tmp_path / "site" / "index.html") == "dev/index.html"
    assert link_of(tmp_path / "site" / "old.html") == "dev/a/new.html"
    assert "admonition" not in text_of(tmp_path / "site/dev/index.html")
    assert text_of(tmp_path / "site" / "objects.inv") == "of dev"


def test_page_without_an_article_is_an_error(tmp_path: Path) -> None:
    dev, stable = (write_build(tmp_path / name, ["index"], "text") for name in ("main", "release"))
    (dev / "index.html").write_text("<html><head></head><body></body></html>", encoding="utf-8")
    with pytest.raises(ValueError, match=r"index\.html has no <article> for the notice"):
        assemble(tmp_path / "site", dev, stable, {})


@pytest.mark.parametrize(
    ("page", "destination"), [("b", "b"), ("a", "b"), ("missing", None), ("circle", None), ("end", None)]
)
def test_destination_follows_moves_to_a_page_that_exists(page: str, destination: str | None) -> None:
    moves = {"a": "b", "b": "c", "circle": "ring", "ring": "circle", "end": "nowhere"}
    assert destination_of(page, {"b"}, moves) == destination


def test_moved_pages_are_gone_and_lead_to_pages() -> None:
    moves = read_moves()
    assert moves.keys() & PAGES == set()
    assert [page for page in moves if destination_of(page, PAGES, moves) is None] == []
    assert [*moves] == sorted(moves)


def git(*arguments: str) -> str:
    # In a container the checkout belongs to another user, whose repositories git refuses.
    command = ["git", "-c", "safe.directory=*", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_each_page_that_the_history_has_and_that_is_gone_leads_to_a_page() -> None:
    """Each push to main publishes its pages, so each of them may have links to it."""
    if not (ROOT / ".git").exists():
        pytest.skip("there is no repository here, whose history has the former pages")
    if git("rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("this clone is shallow, without the history that has the former pages")
    removed = git("log", "--no-renames", "--diff-filter=D", "--name-only", "--format=", "--", "docs/*.md")
    pages = {name.removeprefix("docs/").removesuffix(".md") for name in removed.split()} - PAGES
    assert pages, "the history has pages that moved"
    assert sorted(pages - read_moves().keys()) == [], "add the pages to docs/moved.toml"


def test_command_refuses_a_folder_that_exists_and_a_release_that_does_not(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="exists: remove it, or name another folder"):
        main([str(tmp_path)])
    with pytest.raises(SystemExit, match="usage: "):
        main([])
    if (ROOT / ".git").exists():
        with pytest.raises(SystemExit, match=r"no files of the release 'v0\.0\.0-none'"):
            main([str(tmp_path / "site"), "v0.0.0-none"])


def test_command_assembles_the_build_of_the_checkout_and_of_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release here is a tag of a small repository, whose dev.py writes a page in the place of Sphinx."""
    monkeypatch.setattr("tools.versions.ROOT", tmp_path)
    script = "from pathlib import Path\nfolder = Path('docs/_build/html')\nfolder.mkdir(parents=True)\n"
    for name in ("index.html", "llms.txt", "objects.inv"):
        script += f"(folder / '{name}').write_text('<head></head><article>of the tag</article>')\n"
    (tmp_path / "dev.py").write_text(script, encoding="utf-8")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for arguments in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "a"], ["tag", "v1.0.0"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    (tmp_path / "dev.py").write_text("not the dev.py of the release", encoding="utf-8")
    write_build(tmp_path / "docs" / "_build" / "html", ["index"], "of main")
    main([str(tmp_path / "site"), "v1.0.0"])
    assert "of the tag" in text_of(tmp_path / "site/stable/index.html")
    assert "of main" in text_of(tmp_path / "site/dev/index.html")
    main([str(tmp_path / "site-before"), *[]])
    assert {path.name for path in (tmp_path / "site-before").iterdir() if path.is_dir()} == {"dev"}
