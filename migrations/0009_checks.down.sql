ALTER TABLE {schema}scheduled_jobs
    DROP CONSTRAINT scheduled_jobs_payload,
    ADD CONSTRAINT scheduled_jobs_payload
    CHECK (attempt > 0 OR pg_catalog.pg_column_size(task_data) <= 16777216) NOT VALID;

ALTER TABLE {schema}scheduled_jobs
    DROP CONSTRAINT scheduled_jobs_states,
    ADD CONSTRAINT scheduled_jobs_states CHECK (
        CASE status
            WHEN 'pending' THEN finished_at IS NULL AND replacement IS NULL
            WHEN 'running' THEN finished_at IS NULL AND worker_id IS NOT NULL AND attempt > 0
            WHEN 'completed' THEN finished_at IS NOT NULL AND replacement IS NULL
            ELSE status IN ('failed', 'cancelled', 'expired') AND finished_at IS NOT NULL AND replacement IS NULL
        END),
    DROP CONSTRAINT scheduled_jobs_values,
    ADD CONSTRAINT scheduled_jobs_values CHECK (
        priority IN (1, 3, 5, 8) AND isfinite(execution_time)
        AND retry_count >= 0 AND max_retries >= 0 AND attempt >= 0
        AND misfire_grace_time >= 0 AND timeout_seconds > 0);
