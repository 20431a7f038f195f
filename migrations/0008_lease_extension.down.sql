ALTER TABLE {schema}scheduler_workers
    DROP COLUMN lease_extension;
