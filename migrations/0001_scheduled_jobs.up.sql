-- The jobs and the vacuum's book-keeping. A database of pg-scheduler 0.2.x already holds both tables:
-- CREATE ... IF NOT EXISTS leaves them be, and everything after it makes the old shape the new one, so
-- a fresh and an upgraded database end up the same, column for column.

CREATE TABLE IF NOT EXISTS {schema}scheduled_jobs (
    job_id             text PRIMARY KEY DEFAULT gen_random_uuid()::text,
    job_name           text NOT NULL,
    execution_time     timestamptz NOT NULL,
    status             text DEFAULT 'pending',
    task_data          jsonb,
    created_at         timestamptz DEFAULT CURRENT_TIMESTAMP,
    last_heartbeat     timestamptz,
    lease_until        timestamptz,
    priority           integer DEFAULT 5,
    retry_count        integer DEFAULT 0,
    max_retries        integer DEFAULT 0,
    worker_id          text,
    error_message      text,
    misfire_grace_time integer
);

ALTER TABLE {schema}scheduled_jobs
    ADD COLUMN IF NOT EXISTS misfire_grace_time integer,
    ADD COLUMN function        text,
    ADD COLUMN attempt         integer NOT NULL DEFAULT 0,
    ADD COLUMN timeout_seconds double precision DEFAULT 3600,
    ADD COLUMN lock_key        bigint,
    ADD COLUMN expires_at      timestamptz,
    ADD COLUMN started_at      timestamptz,
    ADD COLUMN finished_at     timestamptz,
    ADD COLUMN replacement     jsonb;

DROP INDEX IF EXISTS
    {schema}idx_jobs_pending_priority,
    {schema}idx_jobs_lease_expiration,
    {schema}idx_jobs_running_heartbeat,
    {schema}idx_jobs_worker_cleanup;

-- Before the rows are written: half of each page is left free, so that every row of a page can be claimed on it.
ALTER TABLE {schema}scheduled_jobs SET (
    fillfactor = 45,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);

-- What 0.2.x allowed and the CHECKs below do not. A running job keeps its worker and its lease: if that
-- worker is gone, the rescuer gives the job to another one when the lease is over.
UPDATE {schema}scheduled_jobs SET
    status = CASE
        WHEN status IS NULL THEN 'pending'
        WHEN status IN ('pending', 'running', 'completed', 'failed', 'cancelled', 'expired') THEN status
        ELSE 'failed'
    END,
    execution_time = CASE execution_time
        WHEN 'infinity' THEN '9999-12-31 00:00:00+00' WHEN '-infinity' THEN created_at ELSE execution_time
    END,
    error_message = CASE
        WHEN status NOT IN ('pending', 'running', 'completed', 'failed', 'cancelled', 'expired')
        THEN 'unknown status ' || quote_literal(status) || ' met by the migration'
        ELSE error_message
    END,
    task_data   = coalesce(task_data, '{"args": [], "kwargs": {}}'),
    created_at  = coalesce(created_at, now()),
    priority    = CASE WHEN priority IN (1, 3, 5, 8) THEN priority ELSE 5 END,
    retry_count = greatest(coalesce(retry_count, 0), 0),
    max_retries = greatest(coalesce(max_retries, 0), 0),
    misfire_grace_time = CASE WHEN misfire_grace_time < 0 THEN 0 ELSE misfire_grace_time END,
    attempt     = CASE WHEN status = 'running' THEN 1 ELSE 0 END,
    worker_id   = CASE WHEN status = 'running' THEN coalesce(worker_id, 'unknown') ELSE worker_id END,
    started_at  = CASE WHEN status = 'running' THEN coalesce(last_heartbeat, now()) END,
    finished_at = CASE WHEN status NOT IN ('pending', 'running') THEN coalesce(last_heartbeat, now()) END,
    expires_at  = CASE WHEN coalesce(status, 'pending') = 'pending'
        THEN execution_time + make_interval(
            secs => CASE WHEN misfire_grace_time < 0 THEN 0 ELSE misfire_grace_time END)
    END;

ALTER TABLE {schema}scheduled_jobs
    ALTER COLUMN status SET NOT NULL,
    ALTER COLUMN task_data SET NOT NULL,
    ALTER COLUMN task_data SET DEFAULT '{"args": [], "kwargs": {}}',
    ALTER COLUMN created_at SET NOT NULL,
    ALTER COLUMN priority SET NOT NULL,
    ALTER COLUMN retry_count SET NOT NULL,
    ALTER COLUMN max_retries SET NOT NULL,
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

-- The one index besides the key. Nothing in it changes when a job is claimed, so the claim is a HOT
-- update; a status or worker_id in here would end that.
CREATE INDEX scheduled_jobs_claim
    ON {schema}scheduled_jobs (priority, execution_time, job_id)
    WHERE finished_at IS NULL;

CREATE TABLE IF NOT EXISTS {schema}vacuum_stats (
    stat_date         date PRIMARY KEY DEFAULT CURRENT_DATE,
    deleted_completed integer DEFAULT 0,
    deleted_failed    integer DEFAULT 0,
    deleted_cancelled integer DEFAULT 0,
    last_run          timestamptz,
    worker_id         text
);

ALTER TABLE {schema}vacuum_stats
    ADD COLUMN deleted_expired integer NOT NULL DEFAULT 0;
