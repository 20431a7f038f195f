-- What claims were measured to want. Ids are compared byte by byte, on any database, as the claim's answer is
-- sorted. And the rules of a row are two constraints instead of seven, since each is looked at in every update:
-- one for the states, one for the values.

DROP INDEX {schema}scheduled_jobs_claim;

CREATE INDEX scheduled_jobs_claim
    ON {schema}scheduled_jobs (priority, execution_time, job_id COLLATE "C")
    WHERE finished_at IS NULL;

ALTER TABLE {schema}scheduled_jobs
    DROP CONSTRAINT scheduled_jobs_status_known,
    DROP CONSTRAINT scheduled_jobs_priority_known,
    DROP CONSTRAINT scheduled_jobs_execution_time_finite,
    DROP CONSTRAINT scheduled_jobs_counts_not_negative,
    DROP CONSTRAINT scheduled_jobs_running_has_a_worker,
    DROP CONSTRAINT scheduled_jobs_finished_has_an_end,
    DROP CONSTRAINT scheduled_jobs_only_running_is_replaced_later,
    ADD CONSTRAINT scheduled_jobs_states CHECK (
        CASE status
            WHEN 'pending' THEN finished_at IS NULL AND replacement IS NULL
            WHEN 'running' THEN finished_at IS NULL AND worker_id IS NOT NULL AND attempt > 0
            WHEN 'completed' THEN finished_at IS NOT NULL AND replacement IS NULL
            ELSE status IN ('failed', 'cancelled', 'expired') AND finished_at IS NOT NULL AND replacement IS NULL
        END),
    ADD CONSTRAINT scheduled_jobs_values CHECK (
        priority IN (1, 3, 5, 8) AND isfinite(execution_time)
        AND retry_count >= 0 AND max_retries >= 0 AND attempt >= 0
        AND misfire_grace_time >= 0 AND timeout_seconds > 0);
