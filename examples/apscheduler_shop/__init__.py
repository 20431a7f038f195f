"""A shop that is moved from APScheduler 3, with the jobs of its customers in a job store.

======================================== ===================================================
APScheduler                              here
======================================== ===================================================
one process with a scheduler             ``pg-scheduler worker examples.apscheduler_shop.after``
``add_job()`` at each start              ``@periodic``
``add_job()`` at run time                ``schedule()``; the stored ones are imported
======================================== ===================================================

Stop the old process, import its job store, and remove the schedules that are code now::

    pg-scheduler import apscheduler postgresql+psycopg://localhost/shop
    pg-scheduler schedules remove aps:sync --yes

The comments ``# glue`` mark the statements that connect the shop with its jobs.
"""
