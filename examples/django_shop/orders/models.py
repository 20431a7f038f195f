"""The tables of the orders."""

from django.db import models


class Order(models.Model):
    """An order, and its invoice once that was sent."""

    number = models.IntegerField(primary_key=True)
    invoice = models.TextField(blank=True)
