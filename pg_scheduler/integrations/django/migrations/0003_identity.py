"""Give every table a key that no sequence numbers, and record the database."""

from typing import ClassVar

from django.db import migrations

from pg_scheduler.integrations.django.operations import MigrateTables


class Migration(migrations.Migration):
    """The keys of all tables, and the identity of the database."""

    dependencies: ClassVar = [("pg_scheduler", "0002_steps")]
    operations: ClassVar = [MigrateTables(3)]
