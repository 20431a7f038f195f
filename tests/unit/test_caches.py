"""Caches of functions: equal arguments get one value, so what is equal must also mean the same.

True equals 1, and a union equals one of the same types in another order. Texts are equal only if they are the
same. Whatever else is the key of a cache has a reason here.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import pg_scheduler
from tests.support.source import parsed

PACKAGE: Final = Path(pg_scheduler.__file__).parent

CACHES: Final = {"cache", "lru_cache"}

PLAIN: Final = {"self", "str", "str | None"}

REASONS: Final = {
    ("base/validators.py", "_cached_adapter"): "the text of the annotation has the order of its types",
    ("cli/assistant/server.py", "_describe"): "one of the tools of the module, which is no other one",
    ("cluster_events/wire.py", "_carried_fields"): "a class equals no other one",
    ("cluster_events/wire.py", "_stand_ins"): "the same",
    ("database/callers/adapter.py", "_library_of"): "the same, for classes in their order",
    ("worker/runners/jobs_view.py", "_blocking_class"): "the same",
    ("database/callers/connection.py", "rewrite"): "texts in their order",
    ("database/queries.py", "load_variant"): "booleans, which are never passed as numbers",
    ("inspect/clock_changes.py", "_changes"): "instants: equal ones are the same in any zone",
    ("inspect/store/searches.py", "load_search"): "texts and booleans in their order",
    (
        "jobs/shared_names.py",
        "_fingerprint",
    ): "equal code does the same; it compares the types of its constants",
    ("triggers/cron_fields.py", "_days_of_month"): "numbers and sets of them, which are no booleans",
}


def keys_of_caches() -> dict[tuple[str, str], set[str]]:
    """Return the types of the parameters of each cached function, by file and name."""
    keys = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef) and any(map(is_cache, node.decorator_list)):
                parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                types = {ast.unparse(parameter.annotation or ast.Name("self")) for parameter in parameters}
                keys[path.relative_to(PACKAGE).as_posix(), node.name] = types
    return keys


def is_cache(decorator: ast.expr) -> bool:
    """Return whether a decorator keeps the values of a function."""
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(function).rpartition(".")[2] in CACHES


def test_each_key_of_a_cache_is_text_or_has_a_reason() -> None:
    keys = keys_of_caches()
    assert len(keys) > 30
    assert {cache for cache, types in keys.items() if types - PLAIN} == set(REASONS)
