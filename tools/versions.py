"""Assemble the published documentation: ``python -m tools.versions FOLDER [TAG]``, for ``dev.py docs``.

The site has a folder for each version: ``dev`` is the build of this checkout, ``stable`` that of the release
with the tag. Before the first release there is no tag and no ``stable``. Alert rules and messages of every
release have addresses without a version. These lead to ``stable``, or to ``dev`` for a page that only it has.
``docs/moved.toml`` lists the pages that have another path now, and each former path leads to the present one.

Older releases have no folder. Only the latest one receives fixes, and GitHub Pages replaces the whole site at
each deployment, so every push would build them all again. Their pages are in the repository at their tags.
"""

from __future__ import annotations

import io
import json
import posixpath
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from tools.environment import ROOT
from tools.reference.llms import SITE

BUILD: Final = Path("docs", "_build", "html")
MOVED: Final = ROOT / "docs" / "moved.toml"

NOTICE: Final = """
<div class="admonition important">
<p class="admonition-title">Development version</p>
<p>This page describes the development version. {sentence}</p>
</div>
"""
SAME_PAGE: Final = 'Read the <a href="{link}">page of the latest release</a>.'
NO_SUCH_PAGE: Final = (
    'The latest release does not have it. Read the <a href="{link}">documentation of the latest release</a>.'
)

# The script keeps the fragment, which names a section. A refresh would lose it, and might replace what the
# script has begun to load, so only browsers without scripts see it.
REDIRECT: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>This page has moved</title>
<link rel="canonical" href="{address}">
<script>location.replace({link_in_script} + location.search + location.hash)</script>
<noscript><meta http-equiv="refresh" content="0; url={link}"></noscript>
</head>
<body><p>This page has moved to <a href="{link}">{address}</a>.</p></body>
</html>
"""
REDIRECT_AS_MARKDOWN: Final = "# This page has moved\n\nRead {address}\n"

_ARTICLE: Final = re.compile(r"<article\b[^>]*>")


def read_moves() -> dict[str, str]:
    """Return the pages that have another path now, by their former path."""
    return tomllib.loads(MOVED.read_text(encoding="utf-8"))


def destination_of(page: str, pages: Collection[str], moves: Mapping[str, str]) -> str | None:
    """Return the page to which a path leads in a version with these pages, None if to none of them."""
    path: str | None = page
    for _ in range(len(moves) + 1):
        if path is None or path in pages:
            return path
        path = moves.get(path)
    return None


def assemble(site: Path, dev: Path, stable: Path | None, moves: Mapping[str, str]) -> None:
    """Write the site from the builds of its versions; without a release, ``stable`` is None."""
    builds = {"dev": dev} if stable is None else {"stable": stable, "dev": dev}
    pages_by_version: dict[str, set[str]] = {}
    for version, build in builds.items():
        folder = site / version
        shutil.copytree(build, folder, ignore=shutil.ignore_patterns(".doctrees", ".buildinfo"))
        files = sorted(folder.rglob("*.html"))
        pages_by_version[version] = {path.relative_to(folder).with_suffix("").as_posix() for path in files}
        index = folder / "llms.txt"
        index.write_text(
            index.read_text(encoding="utf-8").replace(f"]({SITE}", f"]({SITE}{version}/"), encoding="utf-8"
        )
    for version, pages in pages_by_version.items():
        for page in pages:
            _complete_head(site, version, page, pages_by_version.get("stable", set()))
            if version == "dev" and stable is not None:
                _add_notice(site, page, pages_by_version["stable"])
        for page in moves.keys() - pages:
            destination = destination_of(page, pages, moves)
            if destination is not None:
                _redirect(site, f"{version}/{page}", f"{version}/{destination}")
    for page in moves.keys() | set[str]().union(*pages_by_version.values()):
        for version, pages in pages_by_version.items():
            destination = destination_of(page, pages, moves)
            if destination is not None:
                _redirect(site, page, f"{version}/{destination}")
                break
    for name in ("llms.txt", "objects.inv"):
        shutil.copy(site / next(iter(builds)) / name, site / name)


def _complete_head(site: Path, version: str, page: str, stable_pages: Collection[str]) -> None:
    """Let search engines find the page of the latest release only."""
    path = site / version / f"{page}.html"
    lines = '<meta name="robots" content="noindex">\n' if version == "dev" else ""
    if page in stable_pages:
        lines += f'<link rel="canonical" href="{SITE}stable/{page}.html">\n'
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("</head>", f"{lines}</head>", 1), encoding="utf-8")


def _add_notice(site: Path, page: str, stable_pages: Collection[str]) -> None:
    """Begin a page of the development version with a link to the latest release."""
    path = site / "dev" / f"{page}.html"
    target, sentence = (page, SAME_PAGE) if page in stable_pages else ("index", NO_SUCH_PAGE)
    sentence = sentence.format(link=_link(f"dev/{page}", f"stable/{target}"))
    notice = NOTICE.format(sentence=sentence)
    text, count = _ARTICLE.subn(lambda match: match[0] + notice, path.read_text(encoding="utf-8"), count=1)
    if count == 0:
        raise ValueError(f"{path} has no <article> for the notice; adapt tools/versions.py to the theme")
    path.write_text(text, encoding="utf-8")


def _redirect(site: Path, page: str, destination: str) -> None:
    """Write a page that leads to another one, and as Markdown, which nothing can redirect, a link to it."""
    link = _link(page, destination)
    address = f"{SITE}{destination}.html"
    path = site / f"{page}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        REDIRECT.format(link=link, link_in_script=json.dumps(link), address=address), encoding="utf-8"
    )
    if (site / f"{destination}.md").exists():
        text = REDIRECT_AS_MARKDOWN.format(address=f"{SITE}{destination}.md")
        path.with_suffix(".md").write_text(text, encoding="utf-8")


def _link(page: str, destination: str) -> str:
    """Return the relative link from one page of the site to another."""
    return posixpath.relpath(f"{destination}.html", posixpath.dirname(page) or ".")


def build_release(tag: str, folder: Path) -> Path:
    """Build the documentation of a release in that folder, with the tools of the release."""
    command = ["git", "archive", tag]
    git = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if git.returncode != 0:
        sys.exit(f"no files of the release {tag!r}: {git.stderr.decode().strip()}; fetch the tag first")
    with tarfile.open(fileobj=io.BytesIO(git.stdout)) as archive:
        # Extraction filters exist from Python 3.11.4 on; older versions ignore the attribute.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)  # noqa: S202
    subprocess.run([sys.executable, "dev.py", "docs"], cwd=folder, check=True)
    return folder / BUILD


def main(arguments: Sequence[str]) -> None:
    """Assemble the site in a new folder."""
    if len(arguments) not in (1, 2):
        sys.exit("usage: python -m tools.versions FOLDER [TAG]")
    site, *tags = arguments
    if Path(site).exists():
        sys.exit(f"{site} exists: remove it, or name another folder")
    with tempfile.TemporaryDirectory() as scratch:
        stable = build_release(tags[0], Path(scratch)) if tags else None
        assemble(Path(site), ROOT / BUILD, stable, read_moves())


if __name__ == "__main__":
    main(sys.argv[1:])
