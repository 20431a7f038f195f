ALTER TABLE {schema}scheduler_workers
    DROP COLUMN liveness_key;

ALTER TABLE {schema}scheduled_jobs
    DROP COLUMN crash_count;
