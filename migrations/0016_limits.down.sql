-- Jobs that a limit blocked become plain pending ones: nothing would ever unblock them.

UPDATE {schema}scheduled_jobs SET blocked_on = NULL WHERE pg_catalog.starts_with(blocked_on, 'limit:');

DROP TABLE {schema}scheduler_starts;
