"""Count the errors of jobs in groups."""

from typing import ClassVar

from django.db import migrations

from pg_scheduler.integrations.django.operations import MigrateTables


class Migration(migrations.Migration):
    """The tables of the errors of jobs, the index of open steps, and the expiry of jobs of paused tasks."""

    dependencies: ClassVar = [("pg_scheduler", "0004_functions")]
    operations: ClassVar = [MigrateTables(5)]
