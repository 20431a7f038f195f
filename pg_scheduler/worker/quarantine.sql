-- name: oversized_due
-- route: dedicated
-- timeout: hot
-- Return the due jobs of the names $1, among those that a claim of at most $2 jobs may read, of which a claim
-- would send more than $4 bytes of text. Nothing is locked: a claim that timed out may still hold the rows.
--
-- Jobs under which $5 workers died or more are excluded, unless NULL. Up to 2,000 bytes that are not compressed
-- have less than 16.4 MB of text.
SELECT job_id, size
FROM {levels}
CROSS JOIN LATERAL (
    SELECT job_id, task_data, octet_length(job_name) + coalesce(octet_length(function), 0) AS names
    FROM {schema}scheduled_jobs
    WHERE finished_at IS NULL
      AND blocked_on IS NULL
      AND priority = level.priority
      AND execution_time >= {first_instant} AND execution_time <= coalesce($3, {now})
      AND status = 'pending'
      AND coalesce(function, job_name) = ANY ($1)
      AND ($5::integer IS NULL OR crash_count < $5)
    ORDER BY execution_time, job_id COLLATE "C"
    LIMIT $2
) AS job
CROSS JOIN LATERAL (
    SELECT names::bigint + CASE
        WHEN pg_column_size(task_data) <= 2000 AND pg_column_compression(task_data) IS NULL THEN 0
        ELSE octet_length(task_data::text)
    END AS size
    OFFSET 0
) AS measured
WHERE size > $4;

-- name: lock_due
-- route: caller
-- Lock each due job of the names $1 that a claim of at most $2 jobs may read, and return the ids and the names.
--
-- Arguments are not read. The claim runs from the start of the index, without jobs under which $4
-- workers died or more, unless NULL, and without the jobs $5.
SELECT job.job_id, job.function
FROM {levels}
CROSS JOIN LATERAL (
    SELECT job_id, coalesce(function, job_name) AS function
    FROM {schema}scheduled_jobs
    WHERE finished_at IS NULL
      AND blocked_on IS NULL
      AND priority = level.priority
      AND execution_time >= {first_instant}
      AND execution_time <= coalesce($3, {now})
      AND status = 'pending'
      AND coalesce(function, job_name) = ANY ($1)
      AND ($4::integer IS NULL OR crash_count < $4)
      AND job_id <> ALL ($5::text[])
    ORDER BY execution_time, job_id COLLATE "C"
    LIMIT $2
    FOR NO KEY UPDATE SKIP LOCKED
) AS job;

-- name: lock_for_claims
-- route: caller
-- Lock the table as a claim and an outcome do. After it, they wait only for the locks that triggers need.
LOCK TABLE {schema}scheduled_jobs IN ROW EXCLUSIVE MODE;

-- name: limit_waits
-- route: caller
-- Let each later statement of the transaction wait for a lock for the time $1 at most.
SELECT set_config('lock_timeout', $1::text, true);

-- name: pending_claim
-- route: caller
-- Read a row as a claim does.
SELECT {claim_columns}
FROM {schema}scheduled_jobs
WHERE job_id = $1;

-- name: try_claim
-- route: caller
-- Change a pending job as a claim of worker $1 does, to find out whether the table refuses that; it is rolled back.
UPDATE {schema}scheduled_jobs SET
    status         = CASE WHEN expires_at < coalesce($3, {now}) THEN 'expired' ELSE 'running' END,
    finished_at    = CASE WHEN expires_at < coalesce($3, {now}) THEN coalesce($3, {now}) END,
    error_message  = CASE WHEN expires_at < coalesce($3, {now})
        THEN coalesce(error_message, {unexplained_expiry}) ELSE error_message END,
    attempt        = CASE WHEN expires_at < coalesce($3, {now}) THEN attempt ELSE attempt % 2147483647 + 1 END,
    worker_id      = $1,
    started_at     = CASE WHEN expires_at < coalesce($3, {now}) THEN started_at ELSE coalesce($3, {now}) END,
    last_heartbeat = coalesce($3, {now}),
    lease_until    = (SELECT lease_until FROM {schema}scheduler_workers WHERE worker_id = $1)
WHERE job_id = $2 AND status = 'pending'
RETURNING job_id;

-- name: apply_deferred
-- route: caller
-- Run the deferred checks of the application now, which a savepoint that is rolled back would never reach, and those of
-- later statements with each of them.
--
-- The rollback to the savepoint restores their mode.
SET CONSTRAINTS ALL IMMEDIATE;

-- name: quarantine_job
-- route: caller
-- Fail a pending job whose row cannot be read. Its arguments are not read. $4 is the text by which the failure counts.
WITH ended AS (
    UPDATE {schema}scheduled_jobs AS job SET
        status        = 'failed',
        finished_at   = coalesce($3, {now}),
        error_message = $2,
        attempt       = attempt % 2147483647 + 1,
        on_end        = {on_end_with_result},
        errors        = {kept_errors} || jsonb_build_array(jsonb_build_object(
            'attempt', attempt % 2147483647 + 1, 'outcome', 'error', 'message', $2::text,
            'ended_at', coalesce($3, {now})))
    WHERE job_id = $1 AND status = 'pending'
    RETURNING job_id, {named}, attempt, status, NULL::text AS worker_id, finished_at, $4::text AS text,
        on_end IS NOT NULL AS has_consequences
){counted_failures}
SELECT job_id, job_name, attempt, has_consequences FROM ended;
