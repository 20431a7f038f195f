"""The settings of the project. They are for development."""

import os

SECRET_KEY = "for development"  # noqa: S105 - no secret
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "urls"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"]}}
INSTALLED_APPS = [
    "orders",
    "pg_scheduler.integrations.django",  # glue: the tasks and tables of the library
]
TASKS = {  # glue: the tasks and tables of the library
    "default": {"BACKEND": "pg_scheduler.integrations.django.Backend"}
}
