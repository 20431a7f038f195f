-- name: exchange_jobs
-- route: dedicated
-- timeout: hot
-- Write completions and claim due jobs in one statement and one commit; either half may be empty.
--
-- Completions: $5, all of attempt $6, fenced by worker and attempt; deleted at once unless $11. The last row
-- lists those that were refused, for settle_jobs to decide: the lease is lost, or a replacement waits.
-- Locking the rows first would cost a tenth more, so a locked row is waited for until lock_timeout;
-- complete_unlocked follows.
--
-- Claims: at most $3, of the names $2, by priority, time and id, each with a new attempt number. A job past
-- its misfire grace time is returned as expired. One index probe per priority starts at the claim cursor ($7
-- to $10, and the ids $12), so future, running and dead rows are not read. The worker's row is locked FOR KEY
-- SHARE, because the rescuer must not delete it meanwhile; only when a job is due, because a lock writes WAL
-- and an empty poll must write nothing. The update goes by ctid: a join could become a scan under a plan that
-- was made for an empty table.
--
-- The last row also holds the seconds until the next job is due, if fewer jobs were found than asked for.
-- They are negative for a due job that could not be claimed: its row is locked, or the lease expired. Claims
-- and answer share one snapshot, so no job becomes due unseen between them. "silence" is true if the liveness
-- lock of another worker is free. Nothing sorts the rows, so that claims are sent while completions are still
-- being written.
--
-- A row that was written by hand must not break the claim of others: a job before the first instant of
-- Python's calendar is not claimed, and the largest attempt number is followed by 1.
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
        ({critical}, coalesce($7::timestamptz, {first_instant}), ($12::text[])[1]),
        ({high}, coalesce($8::timestamptz, {first_instant}), ($12::text[])[2]),
        ({normal}, coalesce($9::timestamptz, {first_instant}), ($12::text[])[3]),
        ({low}, coalesce($10::timestamptz, {first_instant}), ($12::text[])[4])
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
        started_at     = CASE WHEN expires_at < coalesce($4, now()) THEN started_at
            ELSE coalesce($4, now()) END,
        last_heartbeat = coalesce($4, now()),
        lease_until    = (SELECT lease_until FROM worker)
    WHERE ctid = ANY (ARRAY (SELECT ctid FROM due))
    RETURNING {claim_columns}, finished_at IS NOT NULL AS expired
)
SELECT claimed.*, NULL::double precision AS due, NULL::text[] AS refused, NULL::boolean AS silence
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
        THEN ARRAY (
            SELECT unnest($5) EXCEPT (SELECT job_id FROM finished UNION ALL SELECT job_id FROM deleted)
        ) END,
    (SELECT count(*) FROM claimed) < $3 AND EXISTS (
        SELECT FROM {schema}scheduler_workers
        WHERE worker_id <> $1 AND pg_try_advisory_xact_lock_shared(liveness_key)
    );

-- name: complete_unlocked
-- route: dedicated
-- timeout: hot
-- Write those completions of exchange_jobs whose rows are not locked, and return their ids.
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

-- name: lock_due
-- route: caller
-- Lock every due job of the names $1 that a claim of at most $2 jobs may have read, and return the ids.
--
-- Arguments are not read. The claim runs from the start of the index.
SELECT job.job_id
FROM {levels}
CROSS JOIN LATERAL (
    SELECT job_id
    FROM {schema}scheduled_jobs
    WHERE finished_at IS NULL
      AND priority = level.priority
      AND execution_time BETWEEN {first_instant} AND coalesce($3, now())
      AND status = 'pending'
      AND coalesce(function, job_name) = ANY ($1)
    ORDER BY execution_time, job_id COLLATE "C"
    LIMIT $2
    FOR UPDATE SKIP LOCKED
) AS job;

-- name: pending_claim
-- route: caller
-- Read a row as a claim does.
SELECT {claim_columns}
FROM {schema}scheduled_jobs
WHERE job_id = $1;

-- name: quarantine_job
-- route: caller
-- Fail a pending job whose row cannot be read. Its arguments are not read.
UPDATE {schema}scheduled_jobs SET
    status        = 'failed',
    finished_at   = coalesce($3, now()),
    error_message = $2,
    attempt       = attempt % 2147483647 + 1
WHERE job_id = $1 AND status = 'pending'
RETURNING job_id, job_name, attempt;

-- name: waiting_names
-- route: pool
-- Return the names of pending jobs.
SELECT DISTINCT coalesce(function, job_name)
FROM {schema}scheduled_jobs
WHERE finished_at IS NULL AND status = 'pending';

-- name: held_claim
-- route: reserved
-- Return the claim that a worker holds on a job.
SELECT {claim_columns}
FROM {schema}scheduled_jobs
WHERE job_id = $1 AND status = 'running' AND worker_id = $2;
