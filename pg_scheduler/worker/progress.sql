-- name: write_progress
-- route: tuned
-- Write the progress ($3) of running attempts: arrays of ids, attempts and JSON texts.
--
-- Each is fenced by worker ($4) and attempt. SKIP LOCKED: a row that another session changes is left to the next
-- call, so that no progress waits for a lock, nor deadlocks with a statement that locks rows in another order. What
-- people see of the attempt stays: it is written again only when it changes.
WITH place AS MATERIALIZED ({places})
UPDATE {schema}scheduled_jobs SET progress = ($3::text[])[{place}]::jsonb || CASE
        WHEN (progress -> 'look') IS NULL THEN jsonb_build_object()
        ELSE jsonb_build_object('look', progress -> 'look') END
WHERE job_id = ANY (ARRAY (
        SELECT job_id FROM {schema}scheduled_jobs
        WHERE job_id = ANY ($1) AND status = 'running' AND worker_id = $4
        FOR NO KEY UPDATE SKIP LOCKED
    ))
  AND status = 'running'
  AND worker_id = $4
  AND attempt = ($2::integer[])[{place}]
RETURNING job_id;

-- name: write_own_progress
-- route: caller
-- Write the last progress ($4) of an attempt in the transaction that completes its job, fenced by worker ($2) and
-- attempt ($3).
--
-- It waits for a statement of the progress writer that holds the row. That has its connection, and waits for no lock.
UPDATE {schema}scheduled_jobs SET progress = $4::jsonb
WHERE job_id = $1 AND worker_id = $2 AND attempt = $3 AND status = 'running';

-- name: write_look
-- route: tuned
-- Add what people see of an attempt ($4) to its progress, fenced by worker ($2) and attempt ($3).
--
-- SKIP LOCKED: no look at a job waits for a lock.
UPDATE {schema}scheduled_jobs AS job SET progress = coalesce(
        CASE WHEN jsonb_typeof(job.progress) = 'object' THEN job.progress END, jsonb_build_object()
    ) || jsonb_build_object('look', $4::text::jsonb)
WHERE job_id = ANY (ARRAY (
        SELECT job_id FROM {schema}scheduled_jobs
        WHERE job_id = $1 AND worker_id = $2 AND attempt = $3
        FOR NO KEY UPDATE SKIP LOCKED
    ))
  AND worker_id = $2
  AND attempt = $3
  AND status = 'running'
RETURNING job_id;

-- name: remove_look
-- route: tuned
-- Remove what people saw of attempt $2 of the job $1, or of an earlier one. Return whether it is left in the row, because
-- another session has locked that.
--
-- The worker in the row does not count: the job may have ended, or wait for its next attempt.
WITH shown AS MATERIALIZED (
    SELECT job_id FROM {schema}scheduled_jobs
    WHERE job_id = $1 AND (progress -> 'look' -> 'attempt') <= to_jsonb($2::integer)
),
removed AS (
    UPDATE {schema}scheduled_jobs AS job SET
        progress = CASE WHEN (job.progress - 'look') <> jsonb_build_object() THEN job.progress - 'look' END
    WHERE job_id = ANY (ARRAY (
            SELECT job_id FROM {schema}scheduled_jobs
            WHERE job_id = ANY (ARRAY (SELECT job_id FROM shown))
            FOR NO KEY UPDATE SKIP LOCKED
        ))
      AND (progress -> 'look' -> 'attempt') <= to_jsonb($2::integer)
    RETURNING job_id
)
SELECT EXISTS (SELECT FROM shown) AND NOT EXISTS (SELECT FROM removed) AS is_left;
