"""The application, in projects with and without ``django.tasks``."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.docs.snippets import ROOT

pytest.importorskip("django", reason="dev.py has not updated this environment")

START = """
import sys
from importlib import import_module
from importlib.util import find_spec

sys.modules["django_tasks"] = None
import django
from django.conf import settings

settings.configure(INSTALLED_APPS=["pg_scheduler.integrations.django"])
django.setup()
try:
    import_module("pg_scheduler.integrations.django").Backend
except Exception as error:
    print(bool(find_spec("django.tasks")), type(error).__name__, error)
else:
    print(bool(find_spec("django.tasks")), "imported")
"""


@pytest.mark.slow
def test_application_starts_without_tasks_and_the_backend_names_the_package() -> None:
    words = [sys.executable, "-c", START]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    has_tasks, _, found = done.stdout.partition(" ")
    if has_tasks == "True":
        assert found == "imported\n"
    else:
        assert found.startswith("ImproperlyConfigured")
        assert found.endswith("pip install django-tasks\n")
