"""Orders that wait for an approval: a job of five durable steps, with FastAPI and asyncpg.

The steps are in ``jobs``, the endpoints in ``app``, stand-ins for other services in ``services``, the tables
in ``schema.sql``, and the tests in ``test_orders``: one of them lets the worker crash at each statement of an
order. Start it in the repository::

    export DATABASE_URL=postgresql://localhost/orders
    psql "$DATABASE_URL" --file examples/order_approval/schema.sql
    uvicorn --workers 4 examples.order_approval.app:app
    curl --json '{"number": 7, "item": "chair"}' localhost:8000/orders
    curl --json '{"by": "ann", "granted": true}' localhost:8000/orders/7/approval
    curl localhost:8000/orders/7
"""
