ALTER TABLE {schema}scheduled_jobs
    DROP CONSTRAINT scheduled_jobs_states,
    DROP CONSTRAINT scheduled_jobs_values,
    ADD CONSTRAINT scheduled_jobs_status_known
        CHECK (status IN ('pending', 'running', 'completed', 'failed', 'cancelled', 'expired')),
    ADD CONSTRAINT scheduled_jobs_priority_known
        CHECK (priority IN (1, 3, 5, 8)),
    ADD CONSTRAINT scheduled_jobs_execution_time_finite
        CHECK (isfinite(execution_time)),
    ADD CONSTRAINT scheduled_jobs_counts_not_negative
        CHECK (retry_count >= 0 AND max_retries >= 0 AND attempt >= 0
               AND misfire_grace_time >= 0 AND timeout_seconds > 0),
    ADD CONSTRAINT scheduled_jobs_running_has_a_worker
        CHECK (status <> 'running' OR (worker_id IS NOT NULL AND attempt > 0)),
    ADD CONSTRAINT scheduled_jobs_finished_has_an_end
        CHECK ((status IN ('pending', 'running')) = (finished_at IS NULL)),
    ADD CONSTRAINT scheduled_jobs_only_running_is_replaced_later
        CHECK (replacement IS NULL OR status = 'running');

DROP INDEX {schema}scheduled_jobs_claim;

CREATE INDEX scheduled_jobs_claim
    ON {schema}scheduled_jobs (priority, execution_time, job_id)
    WHERE finished_at IS NULL;
