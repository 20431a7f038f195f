-- name: write_progress
-- route: tuned
-- Write the progress ($3) of running attempts: arrays of ids, attempts and JSON texts.
--
-- Each is fenced by worker ($4) and attempt. SKIP LOCKED: a row that another session changes is left to the next
-- call, so that no progress waits for a lock, nor deadlocks with a statement that locks rows in another order.
WITH place AS MATERIALIZED ({places})
UPDATE {schema}scheduled_jobs SET progress = ($3::text[])[{place}]::jsonb
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
-- Add what people see of an attempt ($4) to its progress, fenced by worker ($2) and attempt ($3); NULL removes it.
--
-- SKIP LOCKED: no look at a job waits for a lock. What is in the row of a job that has ended meanwhile is removed too.
UPDATE {schema}scheduled_jobs AS job SET progress = (
        SELECT CASE WHEN shown.progress <> jsonb_build_object() THEN shown.progress END
        FROM (
            SELECT (coalesce(CASE WHEN jsonb_typeof(job.progress) = 'object' THEN job.progress END, jsonb_build_object())
                - 'look') || CASE WHEN $4::text IS NULL THEN jsonb_build_object()
                ELSE jsonb_build_object('look', $4::text::jsonb) END AS progress
        ) AS shown
    )
WHERE job_id = ANY (ARRAY (
        SELECT job_id FROM {schema}scheduled_jobs
        WHERE job_id = $1 AND worker_id = $2 AND attempt = $3
        FOR NO KEY UPDATE SKIP LOCKED
    ))
  AND worker_id = $2
  AND attempt = $3
  AND CASE WHEN $4::text IS NULL THEN (progress -> 'look') IS NOT NULL ELSE status = 'running' END
RETURNING job_id;
