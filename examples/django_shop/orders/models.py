"""The tables of the orders."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order, and its invoice once that was sent."""

    number: models.IntegerField[int, int] = models.IntegerField(primary_key=True)
    invoice: models.TextField[str, str] = models.TextField(blank=True)
