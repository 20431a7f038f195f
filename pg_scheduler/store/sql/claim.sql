-- name: exchange_jobs
-- Write completions and take due jobs, in one statement and one commit: either half may be empty.
--
-- The completions ($5, all of attempt $6) are guarded by their tokens; where completed jobs are not to be
-- kept ($11) they are deleted at once. Those that were refused are told, for settle_jobs: the lease is lost, or a
-- new definition waits. The rows are not locked first, which would be a tenth of the work: one that somebody
-- has locked is waited for until lock_timeout, and then complete_unlocked is for them.
--
-- The claims ($3 at most, of the names $2) go by priority, time and id, under a fresh token each; a job past
-- its grace comes back as expired instead. One probe of the claim index per priority, from the instant up
-- to which nothing is left for this worker ($7 to $10, and of that instant the ids of $12), so rows of the future, of other priorities, that
-- run, and dead ones that somebody's snapshot keeps, are not walked. The worker's own row is locked FOR KEY
-- SHARE: the rescuer waits for us, and a worker it has deleted gets nothing; but only when a job is due, since a
-- lock is written down, and an empty poll should write nothing. The update goes by ctid: a join would be a
-- scan under a plan made for an empty table.
--
-- One row that somebody wrote by hand must not break the claim of all: the calendar of Python begins in the
-- year 1, so what lies before it is not looked at, and the largest attempt number is followed by 1.
--
-- The last row tells the seconds until the next job is due, when there were fewer than asked for; negative,
-- when one is due that could not be had: somebody has locked it, or our lease is over. The claims and
-- the answer share one snapshot and one now(), so no job can come due between them unseen. And it tells whether
-- another worker's liveness lock can be had, which means that its process may be dead. It comes last,
-- and nothing sorts the rows, so that they are on their way while completions are still being written.
WITH finished AS (
    UPDATE {schema}scheduled_jobs SET
        status        = 'completed',
        finished_at   = coalesce($4, now()),
        error_message = NULL,
        lease_until   = NULL
    WHERE $11::boolean
      AND job_id = ANY ($5) AND status = 'running' AND worker_id = $1 AND attempt = $6 AND replacement IS NULL
    RETURNING job_id
),
deleted AS (
    DELETE FROM {schema}scheduled_jobs
    WHERE NOT $11::boolean
      AND job_id = ANY ($5) AND status = 'running' AND worker_id = $1 AND attempt = $6 AND replacement IS NULL
    RETURNING job_id
),
worker AS (
    SELECT lease_until
    FROM {schema}scheduler_workers
    WHERE worker_id = $1 AND lease_until > coalesce($4, now())
    FOR KEY SHARE
),
level (priority, since, after) AS (
    VALUES
        (1, coalesce($7::timestamptz, '0001-01-01 00:00:00.000001Z'), ($12::text[])[1]),
        (3, coalesce($8::timestamptz, '0001-01-01 00:00:00.000001Z'), ($12::text[])[2]),
        (5, coalesce($9::timestamptz, '0001-01-01 00:00:00.000001Z'), ($12::text[])[3]),
        (8, coalesce($10::timestamptz, '0001-01-01 00:00:00.000001Z'), ($12::text[])[4])
),
due AS (
    SELECT job.ctid
    FROM level
    CROSS JOIN LATERAL (
        SELECT ctid
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NULL
          AND priority = level.priority
          AND (execution_time, job_id COLLATE "C") >= (level.since, level.after)
          AND execution_time <= coalesce($4, now())
          AND status = 'pending'
          AND coalesce(function, job_name) = ANY ($2)
        ORDER BY execution_time, job_id COLLATE "C"
        LIMIT $3
        FOR UPDATE SKIP LOCKED
    ) AS job
    CROSS JOIN LATERAL (SELECT FROM worker WHERE job.ctid IS NOT NULL OFFSET 0) AS alive
    LIMIT $3
),
claimed AS (
    UPDATE {schema}scheduled_jobs SET
        status         = CASE WHEN expires_at < coalesce($4, now()) THEN 'expired' ELSE 'running' END,
        finished_at    = CASE WHEN expires_at < coalesce($4, now()) THEN coalesce($4, now()) END,
        attempt        = attempt % 2147483647 + 1,
        worker_id      = $1,
        started_at     = CASE WHEN expires_at < coalesce($4, now()) THEN started_at ELSE coalesce($4, now()) END,
        last_heartbeat = coalesce($4, now()),
        lease_until    = (SELECT lease_until FROM worker)
    WHERE ctid = ANY (ARRAY (SELECT ctid FROM due))
    RETURNING job_id, job_name, coalesce(function, job_name) AS function, attempt, execution_time,
        task_data::text, priority, retry_count, max_retries, timeout_seconds, lock_key,
        finished_at IS NOT NULL AS expired
)
SELECT job_id, job_name, function, attempt, execution_time, task_data, priority, retry_count, max_retries,
    timeout_seconds, lock_key, expired, NULL::double precision AS due, NULL::text[] AS refused, NULL::boolean AS silence
FROM claimed
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    CASE WHEN (SELECT count(*) FROM claimed) < $3 THEN (
        SELECT extract(epoch FROM min(next.execution_time) - coalesce($4, now()))::double precision
        FROM level
        CROSS JOIN LATERAL (
            SELECT execution_time
            FROM {schema}scheduled_jobs
            WHERE finished_at IS NULL
              AND priority = level.priority
              AND (execution_time, job_id COLLATE "C") >= (level.since, level.after)
              AND status = 'pending'
              AND coalesce(function, job_name) = ANY ($2)
              AND ctid <> ALL (ARRAY (SELECT ctid FROM due))
            ORDER BY execution_time
            LIMIT 1
        ) AS next
    ) END,
    CASE WHEN (SELECT count(*) FROM finished) + (SELECT count(*) FROM deleted) < cardinality($5)
        THEN ARRAY (SELECT unnest($5) EXCEPT (SELECT job_id FROM finished UNION ALL SELECT job_id FROM deleted)) END,
    (SELECT count(*) FROM claimed) < $3 AND EXISTS (
        SELECT FROM {schema}scheduler_workers
        WHERE worker_id <> $1 AND pg_try_advisory_xact_lock_shared(liveness_key)
    );

-- name: complete_unlocked
-- The completions of exchange_jobs, but for rows that somebody has locked; returns those that were written.
WITH done AS (
    SELECT ctid
    FROM {schema}scheduled_jobs
    WHERE job_id = ANY ($3) AND status = 'running' AND worker_id = $1 AND attempt = $4 AND replacement IS NULL
    FOR UPDATE SKIP LOCKED
),
finished AS (
    UPDATE {schema}scheduled_jobs SET
        status        = 'completed',
        finished_at   = coalesce($2, now()),
        error_message = NULL,
        lease_until   = NULL
    WHERE $5::boolean AND ctid = ANY (ARRAY (SELECT ctid FROM done))
    RETURNING job_id
),
deleted AS (
    DELETE FROM {schema}scheduled_jobs
    WHERE NOT $5::boolean AND ctid = ANY (ARRAY (SELECT ctid FROM done))
    RETURNING job_id
)
SELECT job_id FROM finished UNION ALL SELECT job_id FROM deleted;

-- name: waiting_names
-- Names of waiting jobs, to tell which of them nobody here can run.
SELECT DISTINCT coalesce(function, job_name)
FROM {schema}scheduled_jobs
WHERE finished_at IS NULL AND status = 'pending';
