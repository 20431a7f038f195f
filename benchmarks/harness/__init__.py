"""pg_scheduler in a public harness, with PostgreSQL and the adapter as processes of this machine."""
