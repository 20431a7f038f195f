DROP TABLE {schema}scheduler_audit;
DROP TABLE {schema}scheduler_totals;
DROP TABLE {schema}scheduler_stats;

ALTER TABLE {schema}scheduler_workers
    DROP COLUMN names,
    DROP COLUMN state,
    DROP COLUMN health,
    DROP COLUMN settings,
    DROP COLUMN wanted,
    DROP COLUMN statistics_batch;

DROP INDEX IF EXISTS {schema}scheduled_jobs_unsuccessful;
