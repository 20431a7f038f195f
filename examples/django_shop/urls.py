"""The addresses of the project."""

from django.urls import path
from orders.views import place_order

urlpatterns = [path("orders/<int:number>", place_order)]
