-- Restore the tables of pg-scheduler 0.2 with every job. 0.2 finds functions by their bare names. Blocked jobs become
-- plain pending ones, because nothing would unblock them.

DROP INDEX {schema}scheduled_jobs_claim, {schema}scheduled_jobs_blocked, {schema}scheduled_jobs_unique,
    {schema}scheduled_jobs_ended;
DROP INDEX IF EXISTS {schema}scheduled_jobs_unsuccessful;

-- Before the rows are written: some of 0.2 violate scheduled_jobs_payload.
ALTER TABLE {schema}scheduled_jobs
    DROP CONSTRAINT scheduled_jobs_states,
    DROP CONSTRAINT scheduled_jobs_values,
    DROP CONSTRAINT scheduled_jobs_payload;

UPDATE {schema}scheduled_jobs
SET job_name = regexp_replace(coalesce(function, job_name), '^.*\.', '')
WHERE finished_at IS NULL;

ALTER TABLE {schema}scheduled_jobs
    DROP COLUMN function,
    DROP COLUMN attempt,
    DROP COLUMN timeout_seconds,
    DROP COLUMN lock_key,
    DROP COLUMN expires_at,
    DROP COLUMN started_at,
    DROP COLUMN finished_at,
    DROP COLUMN on_end,
    DROP COLUMN crash_count,
    DROP COLUMN blocked_on,
    DROP COLUMN unique_key,
    DROP COLUMN options,
    DROP COLUMN progress,
    DROP COLUMN errors,
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

DROP TABLE
    {schema}scheduler_vacuum_passes,
    {schema}scheduler_vacuum_ranges,
    {schema}scheduler_workers,
    {schema}scheduler_after,
    {schema}scheduler_results,
    {schema}scheduler_schedules,
    {schema}scheduler_starts,
    {schema}scheduler_tasks,
    {schema}scheduler_stats,
    {schema}scheduler_totals,
    {schema}scheduler_audit,
    {schema}scheduler_bulk_runs;

DROP FUNCTION IF EXISTS {schema}scheduler_add_job(text, jsonb, jsonb, timestamptz, text, jsonb);
DROP FUNCTION IF EXISTS {schema}scheduler_cancel_job(text);
