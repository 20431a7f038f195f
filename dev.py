"""All development commands, with nothing but Python 3.11 or newer: ``python3 dev.py`` lists them.

The first command creates a virtual environment in .venv from the hashed lock file; later commands reuse it
until a lock file, pyproject.toml or the version changes. This file and the helpers it imports use the
standard library only. An older Python can parse this file, so that it can report the version it needs.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

if sys.version_info < (3, 11):  # noqa: UP036 - the message addresses users of older versions
    from tools.old_python import explain_old_python

    sys.exit(explain_old_python())

from tools import changed, debian, matrix, processes, suite
from tools.environment import ROOT, DevError, Environment, call, exit_on_signals, note
from tools.suite import CORES, SLOW, SLOW_WORKERS, USUAL

MIN_COVERAGE_PERCENT = 98.4
"""Raise it when coverage rises. Commands that run as processes are not measured."""

SELECTIONS = ("--all", "--changed", "--matrix", "--rest", "--slice")
"""The options of the command test that select tests."""

CODE_CHECKS = ("lint", "format", "types", "layers")
OTHER_CHECKS = ("language", "workflows", "docs", "package", "site")
ALL_CHECKS = (*CODE_CHECKS, *OTHER_CHECKS)

PICTURES = ["tests/browser/test_trees.py", "tests/docs/test_tutorial.py", "tests/repository/test_diagrams.py"]
"""The tests that renew pictures of the documentation."""

HELP = """\
usage: python3 dev.py COMMAND [--python PYTHON] [--pg VERSION] [--lowest] [arguments of the tool]

  demo     run the demo: a server and two worker processes on one screen, about 20 seconds;
           --dashboard then serves the dashboard on its data until Ctrl-C
  test     run lint, types and layers, then the tests that cost least, with one for each guard: about six
           minutes on 2 cores with the first installation
           --changed [REF]  lint, types and layers, and tests of what has changed since REF: a minute
           --all            all checks (also language, workflows, docs, site, package) and all tests
           --rest           what is in --all, but not in test
           With arguments, run pytest with these and nothing else:
           dev.py test tests/store        dev.py test -- -k bulk
  coverage  run the whole suite, and fail if too few lines and branches of the package ran
  lint     run ruff check and ruff format --check; --fix applies the fixes
  types    run mypy --strict
  figures  print what shows whether the package can still be changed; --against REF prints what changed
           since that commit, --list WORDS what a figure counts
  docs     build the documentation into docs/_build/html; warnings are errors, and so is
           a file of another site. --publish FOLDER [TAG] also assembles the site: the build
           as dev, and that of the release with the tag as stable
  build    build wheel and sdist into dist/; --renew writes the lists of their files, tools/contents
  package  build, then test the wheel in an empty environment and the tests of the sdist
  renew    write all files that are derived from others, and say what changed; --all also writes what
           Chromium makes, the pictures and the accessibility trees
  rehearse  make a release candidate in dist/ from a tag, dev.py rehearse v1.2.3, and install it with
           pip, uv, poetry and pdm, with each extra and each Python, about 40 minutes on 2 cores
  bench    run the benchmarks
  scale    measure the pages of the dashboard on a table with millions of jobs (--rows N)
  soak     run for hours as a service does, and judge what grows (--hours N, --rate R)
  chaos    inject faults under load and verify that no job is lost (--minutes N, --seed S)
  alerts   cause each shipped alert under a real Prometheus, and follow its page of the runbook
           to the cure, for each way to run workers, about 25 minutes (--way W, --only ALERT)
  fuzz     search for texts that break a parser of foreign text, with atheris: dev.py fuzz
           [--minutes M] [--corpus FOLDER] [PARSER ...]; a minute for each parser by default
  mutants  change functions and statements at random, those of the last week first, and report which changes
           no test notices: dev.py mutants [--count N] [--seed S] [--minutes M] [--report FILE] [PATH ...];
           --mutant NAME repeats one of a report, --tests TEST ... with these tests
  upgrade  run workers of the last release and of this one on one database, up and down, and migrate
           two million jobs of pg-scheduler 0.2.3 (--from REF, --rows N, --report FILE)
  compat   run the tests of pg-scheduler 0.2.3 on this package: dev.py compat FOLDER, a checkout
           of its repository; or Django's own tests of its tasks on our backend:
           dev.py compat django [6.0 | 6.1.3 | FOLDER], a checkout of django-tasks
  picture  record the demo into docs/figures/demo.svg
  screenshots  photograph the dashboard into docs/figures: on the data of the demo, light and dark, and on
           those of the tutorial; write the accessibility trees of its pages; draw the diagrams
  shell    open a prompt with await, a pool, a started scheduler and a private server (--data .pgdata keeps
           its data); with a program on standard input, run that

  --python PYTHON   use this interpreter, in an environment of its own: --python python3.13
  --pg VERSION      test with this PostgreSQL, 14 to 18, or with the programs in a folder:
                    --pg 14, --pg /usr/lib/postgresql/15/bin
  --lowest          test with Python 3.11 and the lowest supported version of each dependency of users
  --slice           test one combination of the matrix, with the tests that depend on versions most; the date
                    of the commit selects it, and the next one runs where it cannot be had
  --matrix          test every supported Python with every supported PostgreSQL; --python,
                    --pg and --lowest narrow the matrix:  dev.py test --matrix --pg 14 -- -k bulk

To update the lock files after a change of dependencies (the only task that needs uv):
  python3 -m tools.lock    (with --upgrade: to the newest versions)
"""


def replace_process(command: list[str]) -> NoReturn:
    """Replace this process by the command, so that it receives every signal."""
    os.chdir(ROOT)
    os.execv(command[0], command)  # noqa: S606


def checks(python: str) -> dict[str, list[str]]:
    """Return the steps before pytest, by name."""
    tools = str(Path(python).parent)
    return {
        "lint": [f"{tools}/ruff", "check", "--quiet"],
        "format": [f"{tools}/ruff", "format", "--check", "--quiet"],
        "types": [python, "-m", "mypy", "--no-error-summary"],
        "layers": [f"{tools}/lint-imports", "--no-logo"],
        "language": [python, "-m", "tools.language"],
        "workflows": [f"{tools}/zizmor", "--offline", "--pedantic", "--quiet", "--no-progress", "."],
        "docs": sphinx(python),
    }


def sphinx(python: str) -> list[str]:
    """Return the command that builds the documentation."""
    return [python, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", "docs/_build/html"]


def site(python: str) -> list[str]:
    """Return the command that checks that the documentation loads nothing from other sites."""
    return [python, "-m", "tools.site", "docs/_build/html"]


def docs(python: str, arguments: list[str]) -> int:
    """Build the documentation and check what it loads; with --publish, assemble the site of all versions."""
    if arguments[:1] != ["--publish"]:
        return call([*sphinx(python), *arguments]) or call(site(python))
    return docs(python, []) or call([python, "-m", "tools.versions", *arguments[1:]])


def package(python: str, action: str, arguments: list[str]) -> list[str]:
    """Return the command that builds the distributions, or builds and checks them."""
    return [python, "-m", "tools.package", action, *arguments]


def compat(python: str, arguments: list[str]) -> list[str]:
    """Return the command that runs the tests of 0.2.3, or those of Django."""
    if arguments[:1] == ["django"]:
        return [python, "-m", "tools.compat_django", *arguments[1:]]
    return [python, "-m", "tools.compat", *arguments]


def step(name: str, command: list[str]) -> bool:
    """Run one step, then print its output and how long it took."""
    started = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    print(done.stdout, end="", flush=True)
    note(f"{name} {'FAILED' if done.returncode else 'ok'} in {time.monotonic() - started:.1f} s")
    return done.returncode == 0


def run_steps(steps: dict[str, list[str]]) -> list[str]:
    """Run the steps side by side and return the names of those that failed."""
    note(f"{', '.join(steps)} ...")
    with ThreadPoolExecutor(CORES + 1) as threads:
        return [
            name for name, ok in zip(steps, threads.map(step, steps, steps.values()), strict=True) if not ok
        ]


def run_chosen(environment: Environment, arguments: list[str]) -> int:
    """Run pytest with the arguments and nothing else."""
    debian.fetch(environment.folder / "debian", note)
    if any(argument.startswith(("-n", "--numprocesses")) for argument in arguments):
        # Tests that run at once wait for one another.
        os.environ.setdefault("PG_SCHEDULER_PATIENCE", "60")
    code = call([str(environment.python), "-m", "pytest", *arguments])
    return conclude(code, [], "tests that these arguments leave out, checks (dev.py test)")


def test(environment: Environment) -> int:
    """Run the checks of the code, then the tests of the tier."""
    python = str(environment.python)
    tests = suite.load()
    failed = check(environment, CODE_CHECKS, ["--tier"])
    files = [file for file in suite.beside_checks(suite.files()) if tests.tier_has(file)]
    code = processes.run_files(python, files, ["--tier"], is_tier=True)
    return conclude(code, failed, "other checks, slow and expensive tests (dev.py test --rest, or --all)")


def test_more(environment: Environment, *, has_tier: bool) -> int:
    """Run all checks and all tests, or what `test()` leaves out of them."""
    python = str(environment.python)
    options, is_tier, names = ([], None, ALL_CHECKS) if has_tier else (["--rest"], False, OTHER_CHECKS)
    records = suite.empty_records() if has_tier else None
    failed = check(environment, names, options, records)
    usual = suite.beside_checks(suite.usual_files())
    codes = [
        processes.run_files(
            python, usual, [*options, *USUAL], is_tier=is_tier, is_slow=False, records=records
        ),
        processes.run_files(
            python,
            suite.slow_files(),
            [*options, *SLOW],
            is_tier=is_tier,
            is_slow=True,
            records=records,
            workers=SLOW_WORKERS,
        ),
    ]
    not_run = "nothing" if has_tier else "what dev.py test runs"
    return conclude(max(codes), failed, not_run)


def test_changed(environment: Environment, commit: str | None) -> int:
    """Run the checks of the code, then the tests of what has changed since a commit."""
    python = str(environment.python)
    commit = commit or changed.base()
    choice = changed.choose(changed.changed_lines(commit))
    note(f"changed since {commit}: {len(choice.files)} files of tests and {len(choice.tests)} tests")
    failed = run_steps(selected(checks(python), CODE_CHECKS))
    code = 0
    if choice.files or choice.tests:
        with tempfile.NamedTemporaryFile("w", prefix="tests-", encoding="utf-8") as names:
            print(*choice.files, *choice.tests, sep="\n", file=names, flush=True)
            parts = suite.divide(choice.durations_s(), CORES)
            code = processes.run(python, parts, ["--only", names.name])
    for path in choice.untested:
        note(f"no recorded test of {path}")
    return conclude(
        code, failed, f"{choice.omitted} more tests that call what has changed (dev.py test --all)"
    )


def conclude(code: int, failed: list[str], not_run: str) -> int:
    """Print which steps before pytest failed and what did not run, and return the exit code."""
    if failed:
        note(f"FAILED before pytest: {', '.join(failed)}")
    note(f"not run: {not_run}")
    return code or bool(failed)


def coverage(environment: Environment, arguments: list[str]) -> int:
    """Run the whole suite, which takes 1.75 times the processor time with coverage."""
    debian.fetch(environment.folder / "debian", note)
    options = ["--cov", "--cov-report=term", f"--cov-fail-under={MIN_COVERAGE_PERCENT}"]
    parallel = ["--numprocesses", str(2 * CORES), "--dist", "worksteal"]
    os.environ.setdefault("PG_SCHEDULER_PATIENCE", "60")
    code = call([str(environment.python), "-m", "pytest", *parallel, *options, *arguments])
    return conclude(code, [], "checks (dev.py test --all)")


def check(
    environment: Environment, names: Collection[str], options: list[str], records: Path | None = None
) -> list[str]:
    """Run checks and the tests of the repository during the downloads; return what failed."""
    python = str(environment.python)
    if environment.lowest:  # the linters expect the locked versions
        names = ()
    steps = selected({"package": package(python, "package", []), **checks(python)}, names)
    if records:
        os.environ[processes.RECORDING] = str(records)
    tests = [*processes.command(python), *options, *USUAL, suite.REPOSITORY]
    with ThreadPoolExecutor() as threads:
        downloads = threads.submit(debian.fetch, environment.folder / "debian", note)
        failed = run_steps({"repository": tests, **steps})
        downloads.result()
    return [*failed, *run_steps(selected({"site": site(python)}, names))]


def selected(steps: dict[str, list[str]], names: Collection[str]) -> dict[str, list[str]]:
    """Return the steps of these names."""
    return {name: command for name, command in steps.items() if name in names}


def screenshots(environment: Environment, arguments: list[str]) -> int:
    """Renew the pictures of the documentation, and the trees that a test in a browser compares pages with."""
    debian.fetch(environment.folder / "debian", note)
    os.environ["PG_SCHEDULER_RENEW"] = "1"
    replace_process([str(environment.python), "-m", "pytest", *PICTURES, *arguments])


def fuzz(environment: Environment, arguments: list[str]) -> int:
    """Search for texts that break a parser; atheris is on the path of that process only."""
    os.environ["PYTHONPATH"] = str(environment.fuzzer())
    replace_process([str(environment.python), "-m", "tools.fuzz", *arguments])


def lint(python: str, arguments: list[str]) -> int:
    """Check style and format; with --fix, apply the fixes."""
    ruff = str(Path(python).with_name("ruff"))
    fix = "--fix" in arguments
    paths = [word for word in arguments if word != "--fix"]
    results = [
        call([ruff, "check", *(["--fix"] if fix else []), *paths]),
        call([ruff, "format", *([] if fix else ["--check"]), *paths]),
    ]
    return max(results)


def split(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Separate the options of dev.py from the other words; words after ``--`` are not parsed."""
    options: dict[str, str] = {}
    rest: list[str] = []
    words = list(words)
    while words:
        word = words.pop(0)
        name, has_value, value = word.partition("=")
        if word == "--":
            rest += words
            break
        if word in ("--lowest", *SELECTIONS):
            options[word] = ""
        elif name not in ("--python", "--pg"):
            rest.append(word)
        elif has_value:
            options[name] = value
        elif words:
            options[name] = words.pop(0)
        else:
            raise DevError(f"{name} needs a value; see python3 dev.py")
    return options, rest


def run_matrix(options: dict[str, str], arguments: list[str]) -> int:
    """Run pytest for each combination of the matrix that the options leave."""
    chosen = matrix.select(options.get("--python"), options.get("--pg"), lowest="--lowest" in options)
    base = Environment()
    base.ensure()
    if arguments or any(combination.is_corner for combination in chosen):
        debian.fetch(base.folder / "debian", note)
    os.environ["PG_SCHEDULER_DEBIAN"] = str(base.folder / "debian")
    os.environ.setdefault("PG_SCHEDULER_PATIENCE", "60")
    return matrix.run_matrix(chosen, base, arguments)


def check_selection(command: str, options: dict[str, str], arguments: list[str]) -> None:
    """Raise `DevError` where the options that select tests do not fit."""
    chosen = [option for option in SELECTIONS if option in options]
    if chosen and command != "test":
        raise DevError(f"{chosen[0]} belongs to the command test, not to {command}")
    if "--slice" in options and (len(options) > 1 or arguments):
        raise DevError("--slice takes no other options and no arguments: the date of the commit selects")
    if len(chosen) > 1:
        raise DevError(f"{' and '.join(chosen)} select different tests; pass one of them")
    if chosen and arguments and chosen[0] in ("--all", "--rest"):
        raise DevError(f"{chosen[0]} takes no arguments: a path selects all of its tests")
    if "--changed" in options and len(arguments) > 1:
        raise DevError(f"--changed takes one commit, not {' '.join(arguments)}")


def run_tests(environment: Environment, options: dict[str, str], arguments: list[str]) -> int:
    """Run the tests that the options select, or pytest with the arguments."""
    if "--changed" in options:
        return test_changed(environment, arguments[0] if arguments else None)
    if arguments:
        return run_chosen(environment, arguments)
    if "--all" in options or "--rest" in options:
        return test_more(environment, has_tier="--all" in options)
    return test(environment)


def main(words: list[str]) -> int:
    """Run one command."""
    options, rest = split(words)
    if not rest or rest[0] in ("help", "-h", "--help"):
        print(HELP, end="")
        return 0
    command, arguments = rest[0], rest[1:]
    lowest = "--lowest" in options
    environment = Environment(options.get("--python"), lowest=lowest)
    python = str(environment.python)
    embedded = [python, "-m", "pg_scheduler.embedded"]
    commands: dict[str, Callable[[], int]] = {
        "demo": lambda: replace_process([python, "-m", "pg_scheduler", "demo", *arguments]),
        "picture": lambda: replace_process([python, "-m", "tools.record_demo", *arguments]),
        "screenshots": lambda: screenshots(environment, arguments),
        "bench": lambda: replace_process([python, "-m", "benchmarks", *arguments]),
        "scale": lambda: replace_process([python, "-m", "benchmarks.scale", *arguments]),
        "soak": lambda: replace_process([python, "-m", "benchmarks.soak", *arguments]),
        "chaos": lambda: replace_process([python, "-m", "tools.chaos", *arguments]),
        "alerts": lambda: replace_process([python, "-m", "tools.alerts", *arguments]),
        "fuzz": lambda: fuzz(environment, arguments),
        "mutants": lambda: replace_process([python, "-m", "tools.mutants", *arguments]),
        "upgrade": lambda: replace_process([python, "-m", "tools.upgrade", *arguments]),
        "compat": lambda: replace_process(compat(python, arguments)),
        "figures": lambda: replace_process([python, "-m", "tools.figures", *arguments]),
        "types": lambda: replace_process([*checks(python)["types"], *arguments]),
        "docs": lambda: docs(python, arguments),
        "build": lambda: replace_process(package(python, "build", arguments)),
        "package": lambda: replace_process(package(python, "package", arguments)),
        "renew": lambda: replace_process([python, "-m", "tools.renew", *arguments]),
        "rehearse": lambda: replace_process([python, "-m", "tools.rehearsal", *arguments]),
        "shell": lambda: replace_process([*embedded, *arguments, "--", python, "-m", "tools.shell"]),
        "lint": lambda: lint(python, arguments),
        "test": lambda: run_tests(environment, options, arguments),
        "coverage": lambda: coverage(environment, arguments),
    }
    if command not in commands:
        raise DevError(f"unknown command {command!r}; commands: {', '.join(sorted(commands))}")
    check_selection(command, options, arguments)
    # Without bytecode, each of the many processes that a command starts would compile everything anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if "--matrix" in options:
        return run_matrix(options, arguments)
    if "--slice" in options:
        environment.ensure()
        os.environ["PG_SCHEDULER_DEBIAN"] = str(environment.folder / "debian")
        return matrix.run_slice(matrix.commit_hour(), environment)
    environment.ensure()
    if "--pg" in options:
        os.environ["PG_SCHEDULER_PG_BIN"] = str(environment.postgres(options["--pg"]))
    return commands[command]()


if __name__ == "__main__":
    # A process started in the background of a shell would pass an ignored Ctrl-C on to its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    exit_on_signals()
    try:
        sys.exit(main(sys.argv[1:]))
    except DevError as error:
        sys.exit(f"dev.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
