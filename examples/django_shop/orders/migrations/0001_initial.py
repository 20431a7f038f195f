"""Create the table of the orders."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first version."""

    initial = True
    operations: ClassVar = [
        migrations.CreateModel(
            "Order",
            [
                ("number", models.IntegerField(primary_key=True, serialize=False)),
                ("invoice", models.TextField(blank=True)),
            ],
        )
    ]
