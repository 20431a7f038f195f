"""Build the distributions and check them as a user receives them: ``dev.py build`` and ``dev.py package``.

The build backend comes from the development environment, so a build needs no network. The check does: it
installs the wheel with its dependencies into an empty environment. What is in the two files is compared with
the lists in ``tools/contents``, so that no file is shipped, or left out, by accident.
``tools/rehearsal.py`` applies the same checks to a release candidate.
"""

from __future__ import annotations

import argparse
import difflib
import email
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from packaging.metadata import Metadata
from packaging.version import Version

from tools.environment import LOCK, ROOT, DevError, commit_time, note, run
from tools.installed_demo import check_demo

RELATIVE_LINK = re.compile(r"\]\((?!https://|#)([^)]*)\)")
CONTENTS = Path(__file__).with_name("contents")
"""The lists ``wheel.txt`` and ``sdist.txt``."""

SMOKE_TEST = Path(__file__).with_name("smoke.py")
COLLECT = """\
import os, sys
import pytest
sys.path[:] = ["", *(path for path in sys.path if path and not os.path.isfile(f"{path}/dev.py"))]
sys.exit(pytest.main("--collect-only -qqq --assert=plain -p no:cacheprovider -p no:randomly".split()))
"""
"""Collects without the checkout on the path: a file that the sdist lacks must not be found there."""


class Distributions(NamedTuple):
    """The two files of a release."""

    wheel: Path
    sdist: Path


def build(folder: Path, *, source: Path = ROOT) -> Distributions:
    """Build the wheel and the sdist into the folder, instead of the files of an earlier release there.

    These may have an SBOM, which lists the components that other files were tested with.
    """
    for old in folder.glob("pg_scheduler[-.]*"):
        old.unlink()
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    built = subprocess.run(
        command, cwd=source, env=build_environment(), check=False, capture_output=True, text=True
    )
    if built.returncode != 0:
        raise DevError(f"the build failed:\n{built.stderr}")
    (wheel,) = folder.glob("pg_scheduler-*.whl")
    (sdist,) = folder.glob("pg_scheduler-*.tar.gz")
    return Distributions(wheel, sdist)


def build_environment() -> dict[str, str]:
    """Return the variables of a build: the files in the archives have the date of the commit."""
    seconds = commit_time()
    return dict(os.environ) if seconds is None else {"SOURCE_DATE_EPOCH": str(seconds), **os.environ}


def read_metadata(distributions: Distributions) -> Metadata:
    """Return the metadata of the wheel, validated by the rules of the package index.

    Raises:
        ExceptionGroup: A field is invalid.
        DevError: The two files disagree, or the description does not render everywhere.
    """
    with zipfile.ZipFile(distributions.wheel) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        content = wheel.read(name)
    with tarfile.open(distributions.sdist) as sdist:
        root = sdist.getnames()[0].partition("/")[0]
        stream = sdist.extractfile(f"{root}/PKG-INFO")
        assert stream is not None
        if stream.read() != content:
            raise DevError("the metadata of wheel and sdist differ")
    metadata = Metadata.from_email(content, validate=True)
    if email.message_from_bytes(content)["Description-Content-Type"] != "text/markdown":
        raise DevError("the description is not declared as text/markdown")
    if links := RELATIVE_LINK.findall(metadata.description or ""):
        raise DevError(f"the description has relative links, which lead nowhere on a package index: {links}")
    return metadata


def read_contents(distributions: Distributions) -> dict[str, str]:
    """Return the list of the wheel and that of the sdist, by their file names in ``tools/contents``."""
    with zipfile.ZipFile(distributions.wheel) as wheel:
        shipped = [PurePosixPath(re.sub(r"^pg_scheduler-[^/]+", "DIST", name)) for name in wheel.namelist()]
    with tarfile.open(distributions.sdist) as sdist:
        # The first folder of an archive of sources has the version in its name.
        names = [PurePosixPath(member.name) for member in sdist if member.isfile()]
    sources = [name.relative_to(name.parts[0]) for name in names]
    return {"wheel.txt": list_names(shipped), "sdist.txt": list_counts(sources)}


def list_names(files: Iterable[PurePosixPath]) -> str:
    """Render a folder a line, with the names of its files in the lines below it."""
    folders = defaultdict(list)
    for file in sorted(files):
        folders[file.parent].append(file.name)
    # A break at a hyphen would divide a name.
    wrapper = textwrap.TextWrapper(
        110, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
    )
    return "".join(f"{folder}/\n{wrapper.fill(' '.join(folders[folder]))}\n" for folder in sorted(folders))


def list_counts(files: Iterable[PurePosixPath]) -> str:
    """Render a folder a line, with the number of its files of each kind; a file without suffix is a kind."""
    folders: defaultdict[PurePosixPath, Counter[str]] = defaultdict(Counter)
    for file in files:
        folders[file.parent][file.suffix or file.name] += 1
    return "".join(
        f"{folder}/  {', '.join(f'{count} {kind}' for kind, count in sorted(folders[folder].items()))}\n"
        for folder in sorted(folders)
    )


def check_contents(distributions: Distributions, lists: Path = CONTENTS) -> None:
    """Compare the files of the distributions with the lists in the repository.

    Raises:
        DevError: They differ; the message has the lines.
    """
    problems = []
    for name, actual in read_contents(distributions).items():
        expected = (lists / name).read_text(encoding="utf-8")
        lines = difflib.unified_diff(expected.splitlines(), actual.splitlines(), n=0, lineterm="")
        problems += [f"{name}: {line}" for line in lines if not line.startswith(("---", "+++", "@@"))]
    if problems:
        text = "\n".join(problems)
        raise DevError(
            f"the distributions differ from the lists in tools/contents:\n{text}\n"
            "if each of these files is to be shipped, or to be gone, run python3 dev.py build --renew and "
            "commit the lists"
        )
    note("the files are those of tools/contents")


def check_release(version: str, tag: str, changelog: str) -> None:
    """Check that the tag, the version and the changelog agree.

    Raises:
        DevError: They do not, or the version is not written as Python packages write it.
    """
    if version != (canonical := str(Version(version))):
        raise DevError(
            f"version {version} is not in the form of Python packages; write {canonical} into version.py and "
            f"CHANGELOG.md, and v{canonical} as the tag"
        )
    if tag != f"v{version}":
        raise DevError(f"tag {tag} does not match version {version}: expected v{version}")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        raise DevError(f"CHANGELOG.md has no section '## [{version}] - YYYY-MM-DD'")


def check_sdist(distributions: Distributions, scratch: Path) -> None:
    """Unpack the sdist, rebuild the wheel from it and collect its tests.

    Raises:
        DevError: The rebuilt wheel differs, or a test module cannot be imported.
    """
    with tarfile.open(distributions.sdist) as sdist:
        # Extraction filters exist from Python 3.11.4 on; older versions ignore the attribute.
        sdist.extraction_filter = getattr(tarfile, "data_filter", None)
        sdist.extractall(scratch)  # noqa: S202
    (source,) = scratch.iterdir()
    rebuilt = build(scratch / "rebuilt", source=source)
    if rebuilt.wheel.read_bytes() != distributions.wheel.read_bytes():
        raise DevError("the wheel built from the sdist differs from the wheel built from the checkout")
    note("the sdist builds the same wheel")
    collected = subprocess.run(
        [sys.executable, "-c", COLLECT], cwd=source, check=False, capture_output=True, text=True
    )
    if collected.returncode != 0:
        raise DevError(f"the sdist's tests do not collect:\n{collected.stdout}{collected.stderr}")
    note("the sdist's tests collect")


def write_constraints(path: Path, lock: Path = LOCK) -> Path:
    """Write the versions of the lock file in the form that pip and build take as constraints."""
    locked = re.findall(r"^[\w.-]+==[^\\\n]+", lock.read_text(encoding="utf-8"), re.MULTILINE)
    path.write_text("\n".join(locked), encoding="utf-8")
    return path


def check_wheel(wheel: Path, version: str, scratch: Path) -> None:
    """Install the wheel into an empty environment; run the smoke test and the demo there.

    Raises:
        DevError: The installation, the smoke test or the demo failed.
    """
    python = scratch / "venv" / "bin" / "python"
    run([sys.executable, "-m", "venv", "--without-pip", str(python.parents[1])])
    # pip chooses the dependencies by the wheel's metadata, in the versions of the lock file.
    constraints = write_constraints(scratch / "constraints.txt")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "-qq", "--disable-pip-version-check"]
    options = ["--no-input", "--only-binary", ":all:", "--constraint", str(constraints)]
    run([*pip, "install", *options, f"{wheel}[embedded]"])
    run([str(python), "-I", str(SMOKE_TEST), version], cwd=scratch)
    note("the wheel works in an empty environment")
    run([*pip, "install", *options, f"{wheel}[demo]"])
    check_demo(python.with_name("pg-scheduler"), scratch)
    note("its demo serves the dashboard")


def main() -> None:
    """Build into dist/, or check a build."""
    parser = argparse.ArgumentParser(prog="dev.py", description=__doc__)
    parser.add_argument("action", choices=["build", "package"])
    parser.add_argument("--renew", action="store_true", help="write the lists in tools/contents")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="package-") as name:
        scratch = Path(name)
        distributions = build(ROOT / "dist" if words.action == "build" else scratch / "dist")
        version = str(read_metadata(distributions).version)
        note("the metadata is valid")
        if words.renew:
            for list_name, text in read_contents(distributions).items():
                (CONTENTS / list_name).write_text(text, encoding="utf-8")
        if words.action == "package":
            check_contents(distributions)
            check_sdist(distributions, scratch / "sdist")
            check_wheel(distributions.wheel, version, scratch)
        else:
            print(*(path.relative_to(ROOT) for path in distributions), sep="\n")


if __name__ == "__main__":
    try:
        main()
    except (DevError, ExceptionGroup) as error:
        sys.exit(f"dev.py: {error}")
