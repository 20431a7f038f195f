"""Orders."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order."""

    number = models.IntegerField(unique=True)

    class Meta:
        app_label = "shop"
        db_table = "shop_order"
