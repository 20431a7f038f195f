"""What durable jobs need besides their steps."""

from typing import ClassVar

from django.db import migrations

from pg_scheduler.integrations.django.operations import MigrateTables


class Migration(migrations.Migration):
    """The table of the deadlines of jobs."""

    dependencies: ClassVar = [("pg_scheduler", "0005_errors")]
    operations: ClassVar = [MigrateTables(6)]
