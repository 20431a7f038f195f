-- Number the records by a sequence again, from the last one on, and drop the key of the edges and the database.

DROP TABLE {schema}scheduler_database;

ALTER TABLE {schema}scheduler_audit
    ALTER COLUMN id DROP DEFAULT,
    ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY;

SELECT setval(
    pg_get_serial_sequence($table${schema}scheduler_audit$table$, 'id'),
    coalesce((SELECT max(id) FROM {schema}scheduler_audit), 0) + 1,
    false
);

ALTER TABLE {schema}scheduler_steps DROP COLUMN timeouts;
DROP TRIGGER scheduler_after_mark ON {schema}scheduler_after;
DROP FUNCTION {schema}scheduler_after_mark();

ALTER TABLE {schema}scheduler_after DROP COLUMN edge_id;

-- Drop the definitions of jobs from their steps and edges. The mark in the rows of jobs remains.

ALTER TABLE {schema}scheduler_after DROP COLUMN definition;

ALTER TABLE {schema}scheduler_steps DROP COLUMN definition;

-- Drop what is known about functions that declared schedules.

ALTER TABLE {schema}scheduler_schedules DROP COLUMN module, DROP COLUMN retired_at;
