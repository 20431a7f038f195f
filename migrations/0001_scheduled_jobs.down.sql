-- Back to the tables of pg-scheduler 0.2.x, with every job still in them. 0.2.x knows a function by its
-- bare name only.

UPDATE {schema}scheduled_jobs
SET job_name = regexp_replace(coalesce(function, job_name), '^.*\.', '')
WHERE finished_at IS NULL;

DROP INDEX {schema}scheduled_jobs_claim;

ALTER TABLE {schema}scheduled_jobs
    DROP CONSTRAINT scheduled_jobs_status_known,
    DROP CONSTRAINT scheduled_jobs_priority_known,
    DROP CONSTRAINT scheduled_jobs_execution_time_finite,
    DROP CONSTRAINT scheduled_jobs_counts_not_negative,
    DROP CONSTRAINT scheduled_jobs_running_has_a_worker,
    DROP CONSTRAINT scheduled_jobs_finished_has_an_end,
    DROP CONSTRAINT scheduled_jobs_only_running_is_replaced_later,
    DROP COLUMN function,
    DROP COLUMN attempt,
    DROP COLUMN timeout_seconds,
    DROP COLUMN lock_key,
    DROP COLUMN expires_at,
    DROP COLUMN started_at,
    DROP COLUMN finished_at,
    DROP COLUMN replacement,
    ALTER COLUMN status DROP NOT NULL,
    ALTER COLUMN task_data DROP NOT NULL,
    ALTER COLUMN task_data DROP DEFAULT,
    ALTER COLUMN created_at DROP NOT NULL,
    ALTER COLUMN priority DROP NOT NULL,
    ALTER COLUMN retry_count DROP NOT NULL,
    ALTER COLUMN max_retries DROP NOT NULL,
    RESET (
        fillfactor,
        autovacuum_vacuum_scale_factor,
        autovacuum_vacuum_threshold,
        autovacuum_vacuum_cost_delay,
        vacuum_truncate
    );

CREATE INDEX IF NOT EXISTS idx_jobs_pending_priority
    ON {schema}scheduled_jobs (status, priority, execution_time) WHERE status = 'pending';
CREATE INDEX IF NOT EXISTS idx_jobs_lease_expiration
    ON {schema}scheduled_jobs (status, lease_until, execution_time) WHERE status = 'pending';
CREATE INDEX IF NOT EXISTS idx_jobs_running_heartbeat
    ON {schema}scheduled_jobs (status, last_heartbeat, worker_id) WHERE status = 'running';
CREATE INDEX IF NOT EXISTS idx_jobs_worker_cleanup
    ON {schema}scheduled_jobs (worker_id, status) WHERE worker_id IS NOT NULL;

ALTER TABLE {schema}vacuum_stats
    DROP COLUMN deleted_expired;
