-- name: cancel_job
-- Cancel a job that is pending or running, and whatever definition waits for it; returns the worker that
-- has to be told. SELECT ... FOR UPDATE first: RETURNING would show the new row.
WITH old AS (
    SELECT job_id, worker_id, status
    FROM {schema}scheduled_jobs
    WHERE job_id = $1 AND finished_at IS NULL
    FOR UPDATE
)
UPDATE {schema}scheduled_jobs AS job SET
    status      = 'cancelled',
    finished_at = coalesce($2, now()),
    lease_until = NULL,
    replacement = NULL
FROM old
WHERE job.job_id = old.job_id
RETURNING CASE WHEN old.status = 'running' THEN old.worker_id END AS told, job.job_name, job.attempt;

-- name: set_status
-- Set a status by hand. Whoever runs the job loses it and is told. 'running' is a reservation for one
-- lease ($3) by nobody: the rescuer ends it.
WITH old AS (
    SELECT job_id, worker_id, status
    FROM {schema}scheduled_jobs
    WHERE job_id = $1
    FOR UPDATE
)
UPDATE {schema}scheduled_jobs AS job SET
    status         = $2,
    attempt        = CASE WHEN $2 = 'running' THEN job.attempt % 2147483647 + 1 ELSE job.attempt END,
    worker_id      = CASE $2 WHEN 'running' THEN 'set by hand' WHEN 'pending' THEN NULL ELSE job.worker_id END,
    started_at     = CASE $2 WHEN 'running' THEN coalesce($4, now()) WHEN 'pending' THEN NULL
        ELSE job.started_at END,
    last_heartbeat = CASE $2 WHEN 'running' THEN coalesce($4, now()) WHEN 'pending' THEN NULL
        ELSE job.last_heartbeat END,
    lease_until    = CASE WHEN $2 = 'running' THEN coalesce($4, now()) + make_interval(secs => $3) END,
    finished_at    = CASE WHEN $2 IN ('pending', 'running') THEN NULL ELSE coalesce($4, now()) END,
    expires_at     = CASE WHEN $2 = 'pending'
        THEN least(greatest(job.execution_time, coalesce($4, now())), '9999-12-31 23:59:59.999998Z')
            + make_interval(secs => job.misfire_grace_time)
        ELSE job.expires_at END,
    replacement    = NULL
FROM old
WHERE job.job_id = old.job_id
RETURNING CASE WHEN old.status = 'running' THEN old.worker_id END AS told, job.job_name, job.attempt;

-- name: retry_job
-- Run a job that ended once more, now, with its retries and crashes unused. attempt goes on: it is half of the fence.
UPDATE {schema}scheduled_jobs SET
    status         = 'pending',
    execution_time = coalesce($2, now()),
    expires_at     = coalesce($2, now()) + make_interval(secs => misfire_grace_time),
    retry_count    = 0,
    crash_count    = 0,
    error_message  = NULL,
    worker_id      = NULL,
    started_at     = NULL,
    finished_at    = NULL,
    last_heartbeat = NULL,
    lease_until    = NULL
WHERE job_id = $1 AND finished_at IS NOT NULL
RETURNING job_id;

-- name: get_job
-- One job. Instants beyond the calendar of Python are its ends, or none.
SELECT job_id, job_name, status, task_data::text, priority, attempt, retry_count, max_retries,
    misfire_grace_time, timeout_seconds, worker_id, error_message, replacement IS NOT NULL AS replacement,
    least(greatest(execution_time, '0001-01-01 00:00:00.000001Z'), '9999-12-31 23:59:59.999998Z') AS execution_time,
    least(greatest(created_at, '0001-01-01 00:00:00.000001Z'), '9999-12-31 23:59:59.999998Z') AS created_at,
    CASE WHEN started_at BETWEEN '0001-01-02' AND '9999-12-31' THEN started_at END AS started_at,
    CASE WHEN finished_at BETWEEN '0001-01-02' AND '9999-12-31' THEN finished_at END AS finished_at,
    CASE WHEN expires_at BETWEEN '0001-01-02' AND '9999-12-31' THEN expires_at END AS expires_at,
    CASE WHEN last_heartbeat BETWEEN '0001-01-02' AND '9999-12-31' THEN last_heartbeat END AS last_heartbeat,
    CASE WHEN lease_until BETWEEN '0001-01-02' AND '9999-12-31' THEN lease_until END AS lease_until
FROM {schema}scheduled_jobs
WHERE job_id = $1;

-- name: statuses_of
-- The ids of a list that exist, with their statuses.
SELECT job_id, status FROM {schema}scheduled_jobs WHERE job_id = ANY ($1);

-- name: list_jobs
-- A page of jobs after an id, in the order of the ids: the one order that no later change of a row
-- disturbs, and the primary key serves it.
SELECT job_id, job_name, status, task_data::text, priority, attempt, retry_count, max_retries,
    misfire_grace_time, timeout_seconds, worker_id, error_message, replacement IS NOT NULL AS replacement,
    least(greatest(execution_time, '0001-01-01 00:00:00.000001Z'), '9999-12-31 23:59:59.999998Z') AS execution_time,
    least(greatest(created_at, '0001-01-01 00:00:00.000001Z'), '9999-12-31 23:59:59.999998Z') AS created_at,
    CASE WHEN started_at BETWEEN '0001-01-02' AND '9999-12-31' THEN started_at END AS started_at,
    CASE WHEN finished_at BETWEEN '0001-01-02' AND '9999-12-31' THEN finished_at END AS finished_at,
    CASE WHEN expires_at BETWEEN '0001-01-02' AND '9999-12-31' THEN expires_at END AS expires_at,
    CASE WHEN last_heartbeat BETWEEN '0001-01-02' AND '9999-12-31' THEN last_heartbeat END AS last_heartbeat,
    CASE WHEN lease_until BETWEEN '0001-01-02' AND '9999-12-31' THEN lease_until END AS lease_until
FROM {schema}scheduled_jobs
WHERE ($1::text IS NULL OR job_id > $1)
  AND ($2::text[] IS NULL OR status = ANY ($2))
  AND ($3::text IS NULL OR job_name = $3)
  AND ($4::text IS NULL OR worker_id = $4)
  AND ($5::timestamptz IS NULL OR execution_time >= $5)
  AND ($6::timestamptz IS NULL OR execution_time < $6)
ORDER BY job_id
LIMIT $7;

-- name: count_jobs
-- How many jobs have each status.
SELECT status, count(*) FROM {schema}scheduled_jobs
WHERE $1::text IS NULL OR job_name = $1
GROUP BY status;

-- name: expire_jobs
-- Pending jobs past their grace that no claim has met, because no worker knows their name or has a slot.
UPDATE {schema}scheduled_jobs SET
    status      = 'expired',
    finished_at = coalesce($1, now())
WHERE ctid = ANY (ARRAY (
    SELECT late.ctid
    FROM (VALUES (1), (3), (5), (8)) AS level (priority)
    CROSS JOIN LATERAL (
        SELECT ctid
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NULL
          AND priority = level.priority
          AND execution_time <= coalesce($1, now())
          AND status = 'pending'
          AND expires_at < coalesce($1, now())
        LIMIT $2
        FOR UPDATE SKIP LOCKED
    ) AS late
    LIMIT $2
))
RETURNING job_id, job_name, attempt;

-- name: held_claim
-- The claim that a worker has on a job.
SELECT job_id, job_name, coalesce(function, job_name) AS function, attempt, execution_time, task_data::text,
    priority, retry_count, max_retries, timeout_seconds, lock_key
FROM {schema}scheduled_jobs
WHERE job_id = $1 AND status = 'running' AND worker_id = $2;
