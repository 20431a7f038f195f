"""Everything that speaks to PostgreSQL on behalf of a running Scheduler."""
