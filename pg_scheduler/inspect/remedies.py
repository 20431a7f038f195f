"""Commands that a person can copy, whatever the names in them are."""

from __future__ import annotations

import shlex


def command(*words: str) -> str:
    """Return a command of ``pg-scheduler``, quoted for a shell.

    Example:
        >>> command("jobs", "explain", "mail:9")
        'pg-scheduler jobs explain mail:9'
    """
    return f"pg-scheduler {shlex.join(words)}"


def term(name: str) -> str:
    """Return the search for a job name.

    Example:
        >>> print(term("mail.send"), term("send mail"))
        name:mail.send name:"send mail"
    """
    is_plain = all(each.isalnum() or each in "._-" for each in name)
    return f"name:{name}" if is_plain else f'name:"{name}"'
