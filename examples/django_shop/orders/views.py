"""The pages of the shop."""

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from orders.models import Order
from orders.tasks import send_invoice


@transaction.atomic
def place_order(_request: HttpRequest, number: int) -> HttpResponse:
    """Store an order and its task, in one transaction."""
    Order.objects.create(number=number)
    send_invoice.enqueue(number)
    return HttpResponse(status=201)
