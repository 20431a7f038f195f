"""The table of the orders."""
