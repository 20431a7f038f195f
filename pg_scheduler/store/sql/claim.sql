-- name: claim_jobs
-- Take due jobs of known names, by priority, time and id, under a fresh token each; a job past its grace
-- comes back as expired instead. One probe of the claim index per priority, so rows of the future and of
-- other priorities are never walked. The worker's own row is locked FOR KEY SHARE: the rescuer waits for
-- us, and a worker it has deleted gets nothing. The update goes by ctid, which no plan made for an empty
-- table can turn into a scan (under the settings in store/pool.py).
WITH worker AS (
    SELECT lease_until
    FROM {schema}scheduler_workers
    WHERE worker_id = $1 AND lease_until > coalesce($4, now())
    FOR KEY SHARE
),
due AS (
    SELECT job.ctid
    FROM worker
    CROSS JOIN (VALUES (1), (3), (5), (8)) AS level (priority)
    CROSS JOIN LATERAL (
        SELECT ctid
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NULL
          AND priority = level.priority
          AND execution_time <= coalesce($4, now())
          AND status = 'pending'
          AND coalesce(function, job_name) = ANY ($2)
        ORDER BY execution_time, job_id
        LIMIT $3
        FOR UPDATE SKIP LOCKED
    ) AS job
    LIMIT $3
),
claimed AS (
    UPDATE {schema}scheduled_jobs SET
        status         = CASE WHEN expires_at < coalesce($4, now()) THEN 'expired' ELSE 'running' END,
        finished_at    = CASE WHEN expires_at < coalesce($4, now()) THEN coalesce($4, now()) END,
        attempt        = attempt + 1,
        worker_id      = $1,
        started_at     = CASE WHEN expires_at < coalesce($4, now()) THEN started_at ELSE coalesce($4, now()) END,
        last_heartbeat = coalesce($4, now()),
        lease_until    = (SELECT lease_until FROM worker)
    WHERE ctid = ANY (ARRAY (SELECT ctid FROM due))
    RETURNING job_id, job_name, coalesce(function, job_name) AS function, attempt, execution_time,
        task_data::text, priority, retry_count, max_retries, timeout_seconds, lock_key, status = 'expired' AS expired
)
SELECT * FROM claimed ORDER BY priority, execution_time, job_id;

-- name: seconds_until_due
-- Seconds until the next pending job of a known name is due, negative if it is already; NULL if none
-- waits. No lower bound: a job that came due since the claim must be seen.
SELECT extract(epoch FROM min(next.execution_time) - coalesce($2, now()))::double precision
FROM (VALUES (1), (3), (5), (8)) AS level (priority)
CROSS JOIN LATERAL (
    SELECT execution_time
    FROM {schema}scheduled_jobs
    WHERE finished_at IS NULL
      AND priority = level.priority
      AND status = 'pending'
      AND coalesce(function, job_name) = ANY ($1)
    ORDER BY execution_time
    LIMIT 1
) AS next;

-- name: waiting_names
-- Names of waiting jobs, to tell which of them nobody here can run.
SELECT DISTINCT coalesce(function, job_name)
FROM {schema}scheduled_jobs
WHERE finished_at IS NULL AND status = 'pending';
