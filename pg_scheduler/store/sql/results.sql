-- name: settle_jobs
-- route: caller
-- Write the row changes of attempts that ended: arrays of ids, attempts, statuses, errors, delays in seconds,
-- retries and crashes.
--
-- Each change is fenced by worker ($8) and attempt. A job that becomes pending gets its whole misfire grace
-- time again. The position of a row's values in the arrays is looked up row by row, in an object built once.
-- A join by id could become a scan under a plan that was made for an empty table; a join by ctid would miss a
-- row that a heartbeat has just moved.
WITH place AS MATERIALIZED ({places})
UPDATE {schema}scheduled_jobs SET
    status         = ($3::text[])[{place}],
    error_message  = CASE WHEN ($3::text[])[{place}] <> 'completed'
        THEN coalesce(($4::text[])[{place}], error_message) END,
    retry_count    = least(retry_count, 2147483646) + ($6::integer[])[{place}],
    crash_count    = least(crash_count, 2147483646) + ($7::integer[])[{place}],
    execution_time = CASE WHEN ($5::double precision[])[{place}] > 0
        THEN coalesce($9, now()) + make_interval(secs => ($5::double precision[])[{place}])
        ELSE execution_time END,
    expires_at     = CASE WHEN ($3::text[])[{place}] = 'pending'
        THEN coalesce($9, now()) + make_interval(
            secs => ($5::double precision[])[{place}] + misfire_grace_time)
        ELSE expires_at END,
    finished_at    = CASE WHEN ($3::text[])[{place}] <> 'pending' THEN coalesce($9, now()) END,
    worker_id      = CASE WHEN ($3::text[])[{place}] <> 'pending' THEN worker_id END,
    started_at     = CASE WHEN ($3::text[])[{place}] <> 'pending' THEN started_at END,
    last_heartbeat = CASE WHEN ($3::text[])[{place}] <> 'pending' THEN last_heartbeat END,
    lease_until    = NULL
FROM place
WHERE job_id = ANY ($1)
  AND status = 'running'
  AND worker_id = $8
  AND attempt = ($2::integer[])[{place}]
  AND replacement IS NULL
RETURNING job_id;

-- name: already_settled
-- route: caller
-- Return the ids of changes ($1, $2 attempts, $3 statuses) that are in their rows: the answer was lost.
WITH place AS MATERIALIZED ({places})
SELECT job_id
FROM {schema}scheduled_jobs, place
WHERE job_id = ANY ($1)
  AND status = ($3::text[])[{place}]
  AND worker_id = $4
  AND attempt = ($2::integer[])[{place}]
  AND finished_at IS NOT NULL;

-- name: apply_replacements
-- route: caller
-- Give the rows of attempts that ended ($1, $2 attempts) the new definitions that waited for that.
--
-- Fenced like settle_jobs. Fails for a definition that no row can hold.
WITH place AS MATERIALIZED ({places})
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
FROM place
WHERE job_id = ANY ($1)
  AND status = 'running'
  AND worker_id = $3
  AND attempt = ($2::integer[])[{place}]
  AND replacement IS NOT NULL
RETURNING job_id;

-- name: refuse_replacement
-- route: caller
-- Fail a job whose new definition no row can hold: it was written by hand.
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
