"""Correct the functions for triggers, psql and programs in other languages."""

from typing import ClassVar

from django.db import migrations

from pg_scheduler.integrations.django.operations import MigrateTables


class Migration(migrations.Migration):
    """The SQL functions that add and cancel jobs."""

    dependencies: ClassVar = [("pg_scheduler", "0003_identity")]
    operations: ClassVar = [MigrateTables(4)]
