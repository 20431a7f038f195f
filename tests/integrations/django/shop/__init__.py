"""An application of a Django project, with tasks."""
