"""Create the table of the steps of jobs."""

from typing import ClassVar

from django.db import migrations

from pg_scheduler.integrations.django.operations import MigrateTables


class Migration(migrations.Migration):
    """The steps of durable jobs."""

    dependencies: ClassVar = [("pg_scheduler", "0001_from_0_2")]
    operations: ClassVar = [MigrateTables(2)]
