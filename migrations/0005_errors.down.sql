-- Drop the counts of errors, the index of open steps, and whether pauses suspend the expiry of jobs.

ALTER TABLE {schema}scheduler_tasks DROP COLUMN names, DROP COLUMN suspends_expiry;

DROP INDEX {schema}scheduler_steps_open;

DROP TABLE {schema}scheduler_error_counts;

DROP TABLE {schema}scheduler_error_groups;

DROP TABLE {schema}scheduler_failures;
