"""The files for GitHub and pre-commit: they parse, pin what they use and agree with dev.py."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import dev
from tests.support.cases import each_case
from tests.support.source import calls_of, parsed
from tools.environment import ROOT
from tools.matrix import COMBINATIONS, PYTHONS, Combination
from tools.rehearsal import SBOM

WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
YAML_FILES = [
    *sorted(ROOT.glob(".github/**/*.yml")),
    ROOT / ".pre-commit-config.yaml",
    ROOT / "docker-compose.yml",
]
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
COMMANDS = set(re.findall(r"^  (\w+) {2,}\w", dev.HELP, re.MULTILINE))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def workflow(stem: str) -> Any:
    return load(ROOT / ".github" / "workflows" / f"{stem}.yml")


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in load(path)["jobs"].values() for step in job.get("steps", ())]


@each_case("path", YAML_FILES, ids=name)
def test_yaml_file_parses_to_a_mapping(path: Path) -> None:
    assert isinstance(load(path), dict)


def test_repository_has_its_workflows_and_templates() -> None:
    assert [path.stem for path in WORKFLOWS] == ["ci", "docs", "nightly", "release"]
    templates = {path.name for path in (ROOT / ".github" / "ISSUE_TEMPLATE").iterdir()}
    assert templates == {"bug.yml", "config.yml", "feature.yml"}
    for path in (".github/CODEOWNERS", ".github/pull_request_template.md", "SECURITY.md"):
        assert (ROOT / path).read_text(encoding="utf-8").strip(), path


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_workflow_pins_every_action_by_commit_and_names_its_version(path: Path) -> None:
    used = re.findall(r"^ *(?:- )?uses: (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert used
    for action in used:
        assert action.startswith("$/.github/workflows/") or PINNED.fullmatch(action), action


def test_workflows_pin_one_commit_per_action() -> None:
    used = {action for path in WORKFLOWS for action in PINNED.findall(path.read_text(encoding="utf-8"))}
    actions = [action.partition("@")[0] for action in used]
    assert sorted(actions) == sorted(set(actions))


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_workflow_has_read_only_permissions_unless_a_job_declares_more(path: Path) -> None:
    assert load(path)["permissions"] == {"contents": "read"}
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_workflow_has_a_time_limit_for_every_job_with_steps(path: Path) -> None:
    for job in load(path)["jobs"].values():
        assert "uses" in job or job["timeout-minutes"] <= 330


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_workflow_calls_commands_that_exist(path: Path) -> None:
    for step in steps(path):
        for line in step.get("run", "").splitlines():
            if line.startswith("python dev.py"):
                assert line.split()[2] in COMMANDS, line
            else:
                assert line == ".ci/run" or line.startswith(
                    ("gh release create ", "tag=$(gh release list ")
                ), line


def test_ci_matrix_equals_the_local_matrix() -> None:
    jobs = workflow("ci")["jobs"]
    covered = [
        Combination(python, postgres, lowest=job == "lowest")
        for job in ("test", "lowest")
        for python, postgres in itertools.product(
            jobs[job]["strategy"]["matrix"]["python"], jobs[job]["strategy"]["matrix"]["postgres"]
        )
    ]
    assert covered == list(COMBINATIONS)


def test_nightly_workflow_runs_each_file_with_long_stories_or_further_cases() -> None:
    (step,) = [step for step in workflow("nightly")["jobs"]["stories"]["steps"] if "run" in step]
    pattern = re.compile(r"^from tests\.support\.stories import .*\b(LONG|NIGHTLY)\b", re.MULTILINE)
    users = {
        name(path)
        for path in (ROOT / "tests").rglob("test_*.py")
        if pattern.search(path.read_text(encoding="utf-8"))
    }
    assert step["env"] == {"PG_SCHEDULER_PROTOCOL": "long"}
    assert {*step["run"].split()[3:]} == users


def test_release_workflow_publishes_only_after_ci_and_attested_builds() -> None:
    jobs = workflow("release")["jobs"]
    assert jobs["ci"] == {"uses": "$/.github/workflows/ci.yml"}
    assert jobs["publish"]["needs"] == ["ci", "build", "upgrade"]
    assert jobs["github-release"]["needs"] == "publish"
    rehearsal, provenance, components, *uploads = jobs["build"]["steps"][2:]
    assert rehearsal["run"] == 'python dev.py rehearse "$GITHUB_REF_NAME"'
    assert provenance["with"] == {"subject-path": "dist/*"}
    assert components["with"]["sbom-path"] == f"dist/{SBOM}"
    assert components["with"]["subject-path"].split() == ["dist/*.whl", "dist/*.tar.gz"]
    files = [step["with"]["path"].split() for step in uploads]
    assert files == [["dist/*.whl", "dist/*.tar.gz"], [f"dist/{SBOM}"]]


def test_release_workflow_rehearses_with_every_python() -> None:
    [setup] = [
        step for step in workflow("release")["jobs"]["build"]["steps"] if "python-version" in str(step)
    ]
    assert sorted(setup["with"]["python-version"].split()) == [*PYTHONS]


def test_release_workflow_publishes_wheel_and_sdist_without_a_password() -> None:
    download, publish = workflow("release")["jobs"]["publish"]["steps"]
    assert download["with"] == {"name": "release", "path": "dist/"}
    assert publish["with"] == {"attestations": True}


def test_documentation_is_published_by_pushes_and_after_a_release_from_main_and_the_latest_release() -> None:
    job = workflow("release")["jobs"]["docs"]
    assert (job["needs"], job["uses"]) == ("github-release", "$/.github/workflows/docs.yml")
    publish = workflow("docs")["jobs"]["publish"]
    assert job["permissions"] == publish["permissions"]
    checkout, *_, build, upload, _ = publish["steps"]
    assert checkout["with"] == {"ref": "main", "fetch-depth": 0, "persist-credentials": False}
    assert build["run"].splitlines()[-1] == f"python dev.py docs --publish {upload['with']['path']} $tag"


def test_candidate_is_a_prerelease_so_that_the_documentation_of_the_latest_release_stays() -> None:
    create = workflow("release")["jobs"]["github-release"]["steps"][-1]
    assert create["run"].startswith('gh release create "$GITHUB_REF_NAME" "$KIND" ')
    assert create["env"]["KIND"] == "${{ contains(github.ref_name, 'rc') && '--prerelease' || '--latest' }}"


def test_release_workflow_does_not_wait_for_the_ci_that_it_calls() -> None:
    """Within a called workflow, the name is that of the caller, and names of groups ignore case."""
    groups = {name: workflow(name)["concurrency"]["group"] for name in ("ci", "release")}
    assert groups["ci"] == "${{ github.workflow }}-${{ github.ref }}"
    assert not groups["release"].lower().startswith("release")


def test_only_jobs_that_publish_have_write_permissions_and_only_those_that_they_use() -> None:
    permissions = {
        f"{path.stem}/{name}": body["permissions"]
        for path in WORKFLOWS
        for name, body in load(path)["jobs"].items()
        if "permissions" in body
    }
    assert permissions == {
        "docs/publish": {"contents": "read", "id-token": "write", "pages": "write"},
        "release/build": {"contents": "read", "id-token": "write", "attestations": "write"},
        "release/publish": {"id-token": "write"},
        "release/github-release": {"contents": "write"},
        "release/docs": {"contents": "read", "id-token": "write", "pages": "write"},
    }


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_workflow_runs_no_text_of_strangers(path: Path) -> None:
    """An event such as pull_request_target would run the code of a fork with our permissions."""
    triggers = load(path)[True]  # what YAML makes of the key "on"
    assert {*triggers} <= {"push", "pull_request", "schedule", "workflow_call", "workflow_dispatch"}
    assert [step["run"] for step in steps(path) if "${{" in step.get("run", "")] == []


def test_dependabot_renews_the_actions_and_each_image_after_a_week() -> None:
    updates = load(ROOT / ".github" / "dependabot.yml")["updates"]
    folders = {update["directory"] for update in updates if update["package-ecosystem"] == "docker"}
    # The Dockerfile in the package is an example that users copy.
    assert folders == {f"/{name(path.parent)}" for path in ROOT.glob("examples/**/Dockerfile")}
    assert "github-actions" in {update["package-ecosystem"] for update in updates}
    assert {update["cooldown"]["default-days"] for update in updates} == {7}


def test_every_file_has_an_owner() -> None:
    [owners] = (ROOT / ".github" / "CODEOWNERS").read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(r"\* @[\w-]+/[\w-]+", owners)


def test_security_policy_has_an_address_for_reports_and_a_time_for_the_answer() -> None:
    policy = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "/security/advisories/new" in policy
    assert re.search(r"\b\d+ working days\b", policy)


def test_license_is_the_one_of_the_metadata_and_covers_each_shipped_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (project["license"], project["license-files"]) == ("MIT", ["LICENSE"])
    license_text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert license_text.startswith("MIT License\n")
    assert project["authors"][0]["name"].removeprefix("The ") in license_text
    foreign = re.compile(
        r"@license|SPDX-|Copyright \(c\)|\(c\) \d{4}|Licensed under|@font-face", re.IGNORECASE
    )
    shipped = [
        path for folder in ("pg_scheduler", "pg_scheduler_plugins", "migrations") for path in files(folder)
    ]
    assert [name(path) for path in shipped if foreign.search(path.read_text(encoding="utf-8"))] == []


def files(folder: str) -> list[Path]:
    return [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def test_repository_has_no_programs_in_binary_form() -> None:
    """Reviewers cannot read them; pictures are the only files that are no text."""
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no checkout")
    paths = [ROOT / path for path in listed.stdout.split("\0") if path]
    assert [name(path) for path in paths if path.suffix != ".png" and b"\0" in path.read_bytes()] == []


def test_pre_commit_hooks_are_local_and_call_dev_py() -> None:
    (repository,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        python, script, command, *_ = hook["entry"].split()
        assert (python, script) == ("python3", "dev.py")
        assert command in COMMANDS


BY_EXCEPTION = "exit_on_signals() in its __main__, or in that of the command that imports it"
BY_ITSELF = "after a moment, by itself"
STARTING = {
    "dev.py": BY_EXCEPTION,
    "pg_scheduler/cli/demo/nodes.py": "when its stdin ends",
    "pg_scheduler/cli/worker/reload.py": f"{BY_ITSELF}: it tries a start",
    "pg_scheduler/cli/worker/supervisor.py": "by a forwarded signal, or when its pipe ends",
    "pg_scheduler/embedded/__main__.py": "by a forwarded signal",
    "pg_scheduler/embedded/server.py": "when its pipe ends",
    "pg_scheduler/embedded/supervisor_process.py": "by the supervisor, or by the kernel",
    "pg_scheduler/worker/runners/process.py": "when its socket ends",
    "tools/alerts/fleet.py": "by SIGTERM in finally; a handler raises KeyboardInterrupt",
    "tools/chaos/fleet.py": "when its stdin ends",
    "tools/compat.py": BY_EXCEPTION,
    "tools/compat_django.py": BY_EXCEPTION,
    "tools/environment.py": BY_EXCEPTION,
    "tools/fuzz/search.py": BY_EXCEPTION,
    "tools/installed_demo.py": BY_EXCEPTION,
    "tools/mutants/trial.py": BY_EXCEPTION,
    "tools/mutations.py": BY_EXCEPTION,
    "tools/processes.py": BY_EXCEPTION,
    "tools/rehearsal.py": BY_EXCEPTION,
    "tools/upgrade/fleet.py": BY_EXCEPTION,
    "tools/upgrade/legacy.py": BY_EXCEPTION,
    "tools/upgrade/releases.py": BY_EXCEPTION,
    **dict.fromkeys(("tools/debian.py", "tools/interpreters.py", "tools/lock.py"), BY_ITSELF),
    **dict.fromkeys(("tools/changed.py", "tools/figures/programs.py"), BY_ITSELF),
    "tools/mutants/checkout.py": BY_ITSELF,
    **dict.fromkeys(("tools/package.py", "tools/reference/stub.py", "tools/versions.py"), BY_ITSELF),
}
"""The modules that start a program, and how it ends when a signal ends the process that has started it."""


def test_program_ends_with_the_process_that_has_started_it() -> None:
    """``python -m pg_scheduler.embedded`` left its command without a database after SIGTERM."""
    starts = {"Popen", "create_subprocess_exec", "create_subprocess_shell", "fork"}
    modules = [ROOT / "dev.py", *(ROOT / "pg_scheduler").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]
    starting = {
        name(path)
        for path in modules
        for call in calls_of(path, starts | {"run", "call", "check_call", "check_output"})
        if ast.unparse(call.func).startswith(("subprocess.", "asyncio.create_", "os.fork"))
    }
    assert starting == STARTING.keys()


def test_every_mark_of_pytest_is_on_a_test() -> None:
    """A helper that is inserted between a mark and its test takes the mark, and pytest is silent about it."""
    functions = [
        (path, node)
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("test_")
    ]
    misplaced_marks = [
        f"{name(path)}:{node.name}"
        for path, node in functions
        if any(ast.unparse(decorator).startswith("pytest.mark.") for decorator in node.decorator_list)
    ]
    assert misplaced_marks == []


def test_project_urls_share_one_repository() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert {"Homepage", "Documentation", "Changelog", "Issues"} == urls.keys()
    for key in ("Changelog", "Issues"):
        assert urls[key].startswith(f"{urls['Homepage']}/")
    linked = set()
    for path in ("SECURITY.md", ".github/ISSUE_TEMPLATE/config.yml"):
        linked |= set(re.findall(r"https://github\.com/[\w-]+/[\w-]+", (ROOT / path).read_text("utf-8")))
    assert linked == {urls["Homepage"]}


def test_image_of_the_demo_has_each_package_of_the_wheel() -> None:
    """Hatchling builds a wheel without a package that is absent, and its command does not start."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    packages = build["targets"]["wheel"]["packages"]
    dockerfile = (ROOT / "examples" / "demo" / "Dockerfile").read_text(encoding="utf-8")
    assert [package for package in packages if f"\nCOPY {package} {package}\n" not in dockerfile] == []
