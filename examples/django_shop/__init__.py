"""A shop with Django: an order and its task exist together or not at all.

Start it from its folder. The variables of libpq, such as ``PGHOST`` and ``PGDATABASE``, name the database:

==========================================  =======================================
``python manage.py migrate``                creates the tables of the library too
``python manage.py test``                   runs ``orders/tests.py``
``python manage.py pg_scheduler worker``    runs the tasks
==========================================  =======================================

The comments ``# glue`` mark the statements that connect the libraries with one another.
"""
