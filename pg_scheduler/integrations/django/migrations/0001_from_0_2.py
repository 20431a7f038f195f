"""Create the tables, or upgrade those of pg-scheduler 0.2."""

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations import SeparateDatabaseAndState

from pg_scheduler.integrations.django.operations import MigrateTables, create_models


class Migration(migrations.Migration):
    """The tables of the first release."""

    initial = True
    operations: ClassVar = [
        SeparateDatabaseAndState(database_operations=[MigrateTables(1)], state_operations=create_models())
    ]
