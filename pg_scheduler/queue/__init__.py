"""How a job enters the table and leaves it: calls, rows, dependencies, kept results."""
