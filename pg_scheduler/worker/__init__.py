"""Background services of a started Scheduler, and the runtime that builds and connects them."""
