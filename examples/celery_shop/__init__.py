"""A shop that is moved from Celery: ``before`` needs a broker and ``beat``, ``after`` only the database.

======================================== ===============================================
Celery                                   here
======================================== ===============================================
``celery -A before worker``              ``pg-scheduler worker examples.celery_shop.after``
``celery -A before beat``                none: every worker plans
``session.commit()``, then ``delay()``   ``enqueue(..., connection=session)``, then ``commit()``
======================================== ===============================================

The comments ``# glue`` mark the statements that connect the shop with its jobs.
"""
