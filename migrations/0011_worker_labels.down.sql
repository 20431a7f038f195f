ALTER TABLE {schema}scheduler_workers
    DROP COLUMN stopping,
    DROP COLUMN role,
    DROP COLUMN identity,
    DROP COLUMN metadata;
