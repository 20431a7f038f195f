"""The examples with a prompt in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import pg_scheduler

MODULES = [module.name for module in pkgutil.walk_packages(pg_scheduler.__path__, "pg_scheduler.")]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS, extraglobs={"__name__": name})
    assert failed == 0
