-- A worker's row names the advisory lock that its process holds while it lives, and a job's row counts the
-- workers that died while they ran it. Old code leaves both as they are.

ALTER TABLE {schema}scheduler_workers
    ADD COLUMN liveness_key bigint;

ALTER TABLE {schema}scheduled_jobs
    ADD COLUMN crash_count integer NOT NULL DEFAULT 0;
