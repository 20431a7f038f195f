"""Files that the package contains: for a deployment, alerting rules with their runbook, and dashboards."""

from __future__ import annotations

import re
import shlex
import textwrap
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import typer

from .commands import Command
from .errors import NotFoundError, RefusedError, hint_at

_OPS: Final = files("pg_scheduler") / "ops"

FILES: Final[dict[str, tuple[str, ...]]] = {
    "systemd": ("pg-scheduler-worker.service",),
    "compose": (
        "compose.yaml",
        "Dockerfile",
        "prometheus.yml",
        "alertmanager.yml",
        "grafana-datasource.yml",
        "grafana-dashboards.yml",
    ),
    "k8s": (
        "migrate.yaml",
        "worker.yaml",
        "exporter.yaml",
        "dashboard.yaml",
        "monitors.yaml",
        "kustomization.yaml",
        "keda/kustomization.yaml",
        "keda/prometheus.yaml",
        "keda/postgresql.yaml",
    ),
}
"""The files of each command, of which it prints the first `PRINTED`."""

PRINTED: Final[dict[str, int]] = {"systemd": 1, "compose": 1, "k8s": 5}
"""How many files each command prints. Those of KEDA are not printed with the worker, whose number of replicas
they would contradict, and a ``kustomization.yaml`` is no manifest.
"""

MOUNTED: Final[dict[str, str]] = {"rules": "alerts", "dashboards": "grafana"}
"""By each folder that Compose mounts, the other command whose files are in it."""

RULES: Final = "rules.yaml"
"""The file of ``k8s`` that is made of the rules of ``alerts``."""

_RULE: Final = """\
# For the Prometheus Operator: the alerting rules. Add the labels by which your Prometheus selects rules.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: pg-scheduler
spec:
"""

Into = Annotated[
    Path | None,
    typer.Option("--into", metavar="FOLDER", help="Write the files there instead, if they are new."),
]


def systemd(command: Command, into: Into = None) -> None:
    """Print the unit file of a worker for systemd."""
    _print_or_write(command, "systemd", into)


def compose(command: Command, into: Into = None) -> None:
    """Print a Compose file: database, workers, metrics. --into writes the files that it mounts too."""
    _print_or_write(command, "compose", into)


def k8s(command: Command, into: Into = None) -> None:
    """Print manifests for Kubernetes: migration, workers, metrics. --into adds Kustomize and KEDA."""
    _print_or_write(command, "k8s", into)


def _print_or_write(command: Command, kind: str, into: Path | None) -> None:
    """Print the first files of a command; with a folder, write all of its files into that instead."""
    printed_names = list(FILES[kind][: PRINTED[kind]])
    # The texts of all files of the command, by their paths in the folder.
    texts = {name: (_OPS / kind / name).read_text(encoding="utf-8") for name in FILES[kind]}
    if kind == "compose":
        for folder, other_command in MOUNTED.items():
            for name, text in _shipped(other_command).items():
                texts[f"{folder}/{name}"] = text
    elif kind == "k8s":
        # There is one file of rules. Its text becomes a part of a manifest.
        (rules,) = _shipped("alerts").values()
        texts[RULES] = _RULE + textwrap.indent(rules, "  ")
        printed_names.append(RULES)
    if into is None:
        command.output.write_text("---\n".join(texts[name] for name in printed_names))
        return
    # If one of the files exists, none is written.
    existing = [name for name in texts if (into / name).exists()]
    if existing:
        raise RefusedError(f"{into} has {', '.join(existing)} already; nothing was written")
    try:
        for name, text in texts.items():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            (into / name).write_text(text, encoding="utf-8")
            command.output.say(f"wrote {into / name}")
    except OSError as error:
        raise RefusedError(f"{into} cannot be written: {error.strerror or error}") from error


def _shipped(kind: str) -> dict[str, str]:
    """Return the files of another command, by their names."""
    files = sorted((_OPS / kind).iterdir(), key=lambda file: file.name)
    return {file.name: file.read_text(encoding="utf-8") for file in files}


def alerts(command: Command) -> None:
    """Print the alerting rules for Prometheus, as YAML."""
    command.output.write_text((_OPS / "alerts" / "pg_scheduler.rules.yaml").read_text(encoding="utf-8"))


def skill(command: Command) -> None:
    """Print the file SKILL.md, by which an assistant learns to use the library."""
    command.output.write_text((_OPS / "skill" / "SKILL.md").read_text(encoding="utf-8"))


PREFIX: Final = "PgScheduler"
"""The start of the name of each alert."""


def runbook(
    command: Command,
    alert: Annotated[
        str | None,
        typer.Argument(metavar="ALERT", help="An alert, such as JobsLate, or a code of doctor."),
    ] = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The job name of the alert.")] = None,
    subject: Annotated[str | None, typer.Option("--id", help="The id of a job or a schedule.")] = None,
) -> None:
    """Print what to do about an alert, also offline; without one, the alerts. NAME completes its commands."""
    entries = _alert_entries()
    if alert is None:
        command.output.write_text("".join(f"{title}\n" for title in entries))
        return
    title = find_alert(alert)
    if title is None:
        # It may be a code of the doctor.
        finding_entry = _finding_entry(alert)
        if finding_entry is not None:
            command.output.write_paragraph(finding_entry)
            return
        names = [key.removeprefix(PREFIX) for key in entries]
        hint = hint_at(alert.removeprefix(PREFIX), names, title="alerts")
        raise NotFoundError(f"no alert is named {alert!r}{hint}")
    entry = entries[title]
    for placeholder, value in (("NAME", name), ("ID", subject)):
        if value is not None:
            entry = _complete(entry, placeholder, value)
    command.output.write_paragraph(f"{title}\n\n{entry}")


def _complete(entry: str, placeholder: str, value: str) -> str:
    """Return an entry of the runbook with a value in place of a placeholder, such as ``NAME``.

    In a command, the value is quoted, so that a shell reads one word.
    """
    from pg_scheduler.inspect.texts import quoted  # noqa: PLC0415 - not needed to complete words

    # The placeholder alone, where it is no part of a longer word.
    word = rf"(?<![\w-]){placeholder}(?![\w-])"

    def complete(argument: re.Match[str]) -> str:
        """Complete an argument of a command: a search between quotation marks, or the placeholder."""
        if not argument[0].startswith("'"):
            return shlex.quote(value)
        # The value is quoted for the search, and then the whole search for the shell.
        search = argument[0][1:-1]
        completed = quoted(value).join(re.split(word, search))
        # A search without the placeholder keeps its quotation marks.
        return argument[0] if completed == search else shlex.quote(completed)

    lines = []
    for line in entry.split("\n"):
        # A line after "$ " is a command, up to the comment that follows it. Any other line is text.
        command, mark, text = line.partition("  #") if line.startswith("$ ") else ("", "", line)
        completed_command = re.sub(rf"'[^']*'|{word}", complete, command)
        # The value is not passed to re.sub(), which would interpret its backslashes.
        completed_text = value.join(re.split(word, text))
        lines.append(completed_command + mark + completed_text)
    return "\n".join(lines)


def _alert_entries() -> dict[str, str]:
    """Return the entries of the runbook by the whole names of the alerts."""
    text = (_OPS / "runbook" / "alerts.md").read_text(encoding="utf-8")
    # An entry begins below the heading with the name of its alert, and ends before the next such heading.
    return dict(re.findall(r"^### (\w+)\n\n(.*?)\n*(?=^### |\Z)", text, re.MULTILINE | re.DOTALL))


def _finding_entry(code: str) -> str | None:
    """Return what a code of the doctor means and what to do about it; None if there is no such code."""
    from pg_scheduler.inspect.doctor.codes import ADVICE  # noqa: PLC0415 - not needed to complete words

    advice_by_code = {str(name): advice for name, advice in ADVICE.items()}
    advice = advice_by_code.get(code.upper())
    return None if advice is None else f"{code.upper()}\n\n{advice.meaning}\n\n{advice.remedy}"


def find_alert(name: str) -> str | None:
    """Return the whole name of an alert, given with or without `PREFIX`; None if there is no such alert."""
    titles = {title.removeprefix(PREFIX).lower(): title for title in _alert_entries()}
    return titles.get(name.lower().removeprefix(PREFIX.lower()))


def grafana(
    command: Command,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Dashboard to print.")] = None,
) -> None:
    """Print a dashboard for Grafana, as JSON; without a name, the names of the dashboards."""
    folder = _OPS / "grafana"
    names = sorted(path.name.removesuffix(".json") for path in folder.iterdir())
    if name is None:
        command.output.write_text("".join(f"{dashboard}\n" for dashboard in names))
        return
    if name not in names:
        raise NotFoundError(f"no dashboard is named {name!r}{hint_at(name, names, title='dashboards')}")
    command.output.write_text((folder / f"{name}.json").read_text(encoding="utf-8"))
