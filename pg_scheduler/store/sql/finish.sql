-- name: settle_jobs
-- Write outcomes of any kind, each under its token: $2 maps job ids to {attempt, status, error, delay
-- (seconds), retries, crashes}. A job that is pending again gets its whole grace from the moment it is due. The
-- values are looked up row by row: a join that is safe from bad plans would go by ctid, and would miss a
-- row that a heartbeat has just moved.
WITH outcome AS MATERIALIZED (SELECT $2::text::jsonb AS of)
UPDATE {schema}scheduled_jobs SET
    status         = outcome.of -> job_id ->> 'status',
    error_message  = CASE WHEN outcome.of -> job_id ->> 'status' <> 'completed'
        THEN coalesce(outcome.of -> job_id ->> 'error', error_message) END,
    retry_count    = least(retry_count, 2147483646) + (outcome.of -> job_id ->> 'retries')::integer,
    crash_count    = least(crash_count, 2147483646) + (outcome.of -> job_id ->> 'crashes')::integer,
    execution_time = CASE WHEN (outcome.of -> job_id ->> 'delay')::double precision > 0
        THEN coalesce($4, now()) + make_interval(secs => (outcome.of -> job_id ->> 'delay')::double precision)
        ELSE execution_time END,
    expires_at     = CASE WHEN outcome.of -> job_id ->> 'status' = 'pending'
        THEN coalesce($4, now()) + make_interval(
            secs => (outcome.of -> job_id ->> 'delay')::double precision + misfire_grace_time)
        ELSE expires_at END,
    finished_at    = CASE WHEN outcome.of -> job_id ->> 'status' <> 'pending' THEN coalesce($4, now()) END,
    worker_id      = CASE WHEN outcome.of -> job_id ->> 'status' <> 'pending' THEN worker_id END,
    started_at     = CASE WHEN outcome.of -> job_id ->> 'status' <> 'pending' THEN started_at END,
    last_heartbeat = CASE WHEN outcome.of -> job_id ->> 'status' <> 'pending' THEN last_heartbeat END,
    lease_until    = NULL
FROM outcome
WHERE job_id = ANY ($1)
  AND status = 'running'
  AND worker_id = $3
  AND attempt = (outcome.of -> job_id ->> 'attempt')::integer
  AND replacement IS NULL
RETURNING job_id;

-- name: already_settled
-- Which of these outcomes are in their rows, under their tokens: they were written, and the answer was lost.
WITH outcome AS MATERIALIZED (SELECT $2::text::jsonb AS of)
SELECT job_id
FROM {schema}scheduled_jobs, outcome
WHERE job_id = ANY ($1)
  AND status = outcome.of -> job_id ->> 'status'
  AND worker_id = $3
  AND attempt = (outcome.of -> job_id ->> 'attempt')::integer
  AND finished_at IS NOT NULL;

-- name: apply_replacements
-- A try that ended, however it ended, of jobs for which a new definition waits: the new one takes the
-- row. Under the same tokens as the statements above. Fails for a definition that no row can take.
WITH outcome AS MATERIALIZED (SELECT $2::text::jsonb AS of)
UPDATE {schema}scheduled_jobs SET
    status             = 'pending',
    job_name           = replacement ->> 'job_name',
    execution_time     = (replacement ->> 'execution_time')::timestamptz,
    task_data          = replacement -> 'task_data',
    priority           = (replacement ->> 'priority')::integer,
    max_retries        = (replacement ->> 'max_retries')::integer,
    misfire_grace_time = (replacement ->> 'misfire_grace_time')::integer,
    timeout_seconds    = (replacement ->> 'timeout_seconds')::double precision,
    function           = replacement ->> 'function',
    lock_key           = (replacement ->> 'lock_key')::bigint,
    expires_at         = greatest((replacement ->> 'execution_time')::timestamptz, coalesce($4, now()))
        + make_interval(secs => (replacement ->> 'misfire_grace_time')::integer),
    retry_count        = 0,
    crash_count        = 0,
    error_message      = NULL,
    worker_id          = NULL,
    started_at         = NULL,
    last_heartbeat     = NULL,
    lease_until        = NULL,
    replacement        = NULL
FROM outcome
WHERE job_id = ANY ($1)
  AND status = 'running'
  AND worker_id = $3
  AND attempt = (outcome.of -> job_id ->> 'attempt')::integer
  AND replacement IS NOT NULL
RETURNING job_id;

-- name: refuse_replacement
-- A new definition that no row can take, since somebody wrote it by hand: the job fails for good.
UPDATE {schema}scheduled_jobs SET
    status        = 'failed',
    error_message = $4,
    finished_at   = coalesce($5, now()),
    lease_until   = NULL,
    replacement   = NULL
WHERE job_id = $1
  AND status = 'running'
  AND worker_id = $2
  AND attempt = $3
  AND replacement IS NOT NULL;
