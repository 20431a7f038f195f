"""A FastAPI application with schedules of its tenants, ported from APScheduler's AsyncIOScheduler."""
