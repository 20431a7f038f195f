"""The rehearsal of an upgrade: workers of two releases on one database, and 0.2.3 with millions of jobs."""
