"""A shop whose orders and jobs commit together: FastAPI, SQLAlchemy and Alembic.

Its endpoints are in ``app``, its jobs in ``jobs``, its tables in ``database`` and ``migrations``, and its
tests in ``test_shop``. Start it in the repository::

    export DATABASE_URL=postgresql+asyncpg://localhost/shop
    alembic --config examples/fastapi_shop/alembic.ini upgrade head
    uvicorn --workers 4 examples.fastapi_shop.app:app

The comments ``# glue`` mark the statements that connect the libraries with one another.
"""
