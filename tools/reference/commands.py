"""The reference of the command line, from the commands as Typer runs them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

PROGRAM: Final = "pg-scheduler"
COMMENT: Final = "<!-- commands -->"
"""A page has the reference of the command line in the place of this comment."""


def with_commands(page: str) -> str:
    """Return a page with the reference of the command line, if it has the comment for it."""
    return page.replace(COMMENT, _commands()) if COMMENT in page else page


def summaries_of_commands(address: str) -> str:
    """Return a list of the commands with the first sentence of each, and a link to its place in that page."""
    from pg_scheduler.cli.main import program  # noqa: PLC0415 - only the page of the commands needs the extra

    def entries(command: Any, path: str) -> Iterator[str]:
        if path:
            sentence = _plain(command.help.split("\n\n")[0]).partition(". ")[0].removesuffix(".")
            yield f"- [`{path}`]({address}#{path.replace(' ', '-')}): {sentence}."
        for word, subcommand in getattr(command, "commands", {}).items():
            yield from entries(subcommand, f"{path} {word}".strip())

    return "\n".join(entries(program(), ""))


def _commands() -> str:
    import typer  # noqa: PLC0415 - only the page of the commands needs the extra

    from pg_scheduler.cli.main import program  # noqa: PLC0415
    from pg_scheduler.cli.settings import VARIABLES  # noqa: PLC0415

    settings = {name.replace("-", "_") for name in VARIABLES}

    def sections(command: Any, name: str, parent: Any = None) -> Iterator[str]:
        context = typer.Context(command, info_name=name, parent=parent)
        path = context.command_path
        yield f"{'##' if parent is None or parent.parent is None else '###'} `{_shown(path)}`"
        yield "\n\n".join(_plain(each) for each in command.help.split("\n\n"))
        yield f"`{' '.join([path, *command.collect_usage_pieces(context)])}`"
        own = [each for each in command.params if parent is None or each.name not in settings]
        for each in own:
            each.show_envvar = False  # the guide states the rule for all
        records = [each.get_help_record(context) for each in own]
        if rows := [
            f"| `{_cell(what)}` | {_cell(_plain(effect))} |" for what, effect in filter(None, records)
        ]:
            yield "\n".join(["| Argument or option | Effect |", "|---|---|", *rows])
        for word, each in getattr(command, "commands", {}).items():
            yield from sections(each, word, context)

    return "\n\n".join(sections(program(), PROGRAM))


def _shown(path: str) -> str:
    return path.removeprefix(f"{PROGRAM} ")


def _plain(text: str) -> str:
    """Return text of a terminal in one line of Markdown."""
    return re.sub(r"([*<])", r"\\\1", " ".join(text.split()))


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
