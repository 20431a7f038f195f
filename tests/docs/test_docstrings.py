"""The examples with a prompt in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pg_scheduler
from tests.support.libraries import is_left_out

PROJECT = "pg_scheduler.integrations.django."
"""Modules that can be imported in a project of Django only."""

MODULES = [
    module.name
    for module in pkgutil.walk_packages(pg_scheduler.__path__, "pg_scheduler.")
    if not module.name.startswith(PROJECT)
]


def test_docstring_examples_run() -> None:
    failed = {}
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not is_left_out(error):
                raise
            continue
        failed[name], _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS, extraglobs={"__name__": name})
    assert {name: number for name, number in failed.items() if number} == {}
