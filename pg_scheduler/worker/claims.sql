-- name: exchange_jobs
-- route: dedicated
-- timeout: hot
-- Write completions and claim due jobs in one statement and one commit; either half may be empty.
--
-- Completions: $5, all of attempt $6, fenced by worker and attempt; deleted at once unless $11. The last row
-- lists those that were refused, for settle_jobs to decide: the lease is lost, the end of the job has consequences
-- ("on_end"), or its row would be deleted without its steps, because it was marked while it ran, or without the result of
-- an earlier end of its id (the fragment without_result, which is empty where rows are kept).
-- Locking the rows first would cost a tenth more, so a locked row is waited for until lock_timeout;
-- complete_unlocked follows.
--
-- Claims: at most $3, of the names $2, by priority, time and id, each with a new attempt number. A job past
-- its misfire grace time is returned as expired, with the number of its last attempt. One index probe per priority
-- starts at the claim cursor ($7 to $10, and the ids $12), so future, running and dead rows are not read. The worker's
-- row is locked FOR KEY SHARE, because the rescuer must not delete it meanwhile; only when a job is due, because a lock
-- writes WAL and an empty poll must write nothing. The update goes by ctid: a join could become a scan under a plan
-- that was made for an empty table.
--
-- The last row also holds the seconds until the next job is due, if fewer jobs were found than asked for.
-- They are negative for a due job that could not be claimed: its row is locked, or the lease expired. Claims
-- and answer share one snapshot, so no job becomes due unseen between them. "silence" is true if the liveness
-- lock of another worker is free. "read" is the number of entries of the claim index ($14) that the claim read, those
-- of dead rows included; NULL where $14 is NULL, since to look up the index costs 4 us. The execution_time of the last
-- row is the server's time: a column of its own would be in every row. Nothing sorts the rows, so that claims are sent
-- while completions are still being written.
--
-- Of crashed jobs, under which $15 workers died or more, at most one is claimed, and none unless $13. Its id is in
-- the last row. The others stay pending, so that the next death of a worker counts for one of them only.
--
-- While the table refuses the claims of some jobs, the fragment left_out excludes them.
--
-- A row that was written by hand must not break the claim of others: a job before the first instant of
-- Python's calendar is not claimed, and the largest attempt number is followed by 1.
WITH finished AS (
    UPDATE {schema}scheduled_jobs SET
        status        = 'completed',
        finished_at   = coalesce($4, {now}),
        error_message = NULL,
        lease_until   = NULL
    WHERE $11::boolean
      AND job_id = ANY ($5) AND status = 'running' AND worker_id = $1 AND attempt = $6 AND on_end IS NULL
    RETURNING job_id
),
deleted AS (
    DELETE FROM {schema}scheduled_jobs
    WHERE NOT $11::boolean
      AND job_id = ANY ($5) AND status = 'running' AND worker_id = $1 AND attempt = $6 AND on_end IS NULL
      AND (options -> 'steps') IS NULL{without_result}
    RETURNING job_id
),
worker AS (
    SELECT lease_until
    FROM {schema}scheduler_workers
    WHERE worker_id = $1 AND lease_until > coalesce($4, {now})
    FOR KEY SHARE
),
level (priority, since, after, read_before) AS (
    VALUES
        ({critical}, coalesce($7::timestamptz, {first_instant}), ($12::text[])[1],
            pg_stat_get_xact_tuples_returned(to_regclass($14::text))),
        ({high}, coalesce($8::timestamptz, {first_instant}), ($12::text[])[2], 0),
        ({normal}, coalesce($9::timestamptz, {first_instant}), ($12::text[])[3], 0),
        ({low}, coalesce($10::timestamptz, {first_instant}), ($12::text[])[4], 0)
),
due AS (
    SELECT job.ctid, job.crashed
    FROM level
    CROSS JOIN LATERAL (
        SELECT ctid, CASE WHEN crash_count >= $15::integer THEN job_id END AS crashed
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NULL
          AND blocked_on IS NULL
          AND priority = level.priority
          AND (execution_time, job_id COLLATE "C") >= (level.since, level.after)
          AND execution_time <= coalesce($4, {now})
          AND status = 'pending'{left_out}
          AND coalesce(function, job_name) = ANY ($2)
          AND ($13::boolean OR crash_count < $15::integer)
          AND (expires_at IS NULL OR expires_at >= coalesce($4, {now}) OR {may_expire})
        ORDER BY execution_time, job_id COLLATE "C"
        LIMIT $3
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS job
    CROSS JOIN LATERAL (SELECT FROM worker WHERE job.ctid IS NOT NULL OFFSET 0) AS alive
    LIMIT $3
),
claimed AS (
    UPDATE {schema}scheduled_jobs SET
        status         = CASE WHEN expires_at < coalesce($4, {now}) THEN 'expired' ELSE 'running' END,
        finished_at    = CASE WHEN expires_at < coalesce($4, {now}) THEN coalesce($4, {now}) END,
        error_message  = CASE WHEN expires_at < coalesce($4, {now})
            THEN coalesce(error_message, {unexplained_expiry}) ELSE error_message END,
        attempt        = CASE WHEN expires_at < coalesce($4, {now}) THEN attempt
            ELSE attempt % 2147483647 + 1 END,
        worker_id      = $1,
        started_at     = CASE WHEN expires_at < coalesce($4, {now}) THEN started_at
            ELSE coalesce($4, {now}) END,
        last_heartbeat = coalesce($4, {now}),
        lease_until    = (SELECT lease_until FROM worker)
    WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM due
        WHERE crashed IS NULL OR crashed = (SELECT crashed FROM due WHERE crashed IS NOT NULL LIMIT 1)
    ))
    RETURNING {claim_columns}, finished_at IS NOT NULL AS expired
)
SELECT claimed.*, NULL::double precision AS due, NULL::text[] AS refused, NULL::boolean AS silence,
    NULL::text AS crashed, NULL::bigint AS read
FROM claimed
UNION ALL
SELECT NULL, NULL, NULL, NULL, coalesce($4, {now}), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    CASE WHEN claims.are_few THEN (
        SELECT extract(epoch FROM min(next.execution_time) - coalesce($4, {now}))::double precision
        FROM level
        CROSS JOIN LATERAL (
            SELECT execution_time
            FROM {schema}scheduled_jobs
            WHERE finished_at IS NULL
              AND blocked_on IS NULL
              AND priority = level.priority
              AND (execution_time, job_id COLLATE "C") >= (level.since, level.after)
              AND status = 'pending'{left_out}
              AND coalesce(function, job_name) = ANY ($2)
              AND ($13::boolean OR crash_count < $15::integer)
              AND ctid <> ALL (ARRAY (SELECT ctid FROM due))
            ORDER BY execution_time
            LIMIT 1
        ) AS next
    ) END,
    CASE WHEN (SELECT count(*) FROM finished) + (SELECT count(*) FROM deleted) < cardinality($5)
        THEN ARRAY (
            SELECT unnest($5) EXCEPT (SELECT job_id FROM finished UNION ALL SELECT job_id FROM deleted)
        ) END,
    claims.are_few AND EXISTS (
        SELECT FROM {schema}scheduler_workers
        WHERE worker_id <> $1 AND pg_try_advisory_xact_lock_shared(liveness_key)
    ),
    (SELECT crashed FROM due WHERE crashed IS NOT NULL LIMIT 1),
    pg_stat_get_xact_tuples_returned(to_regclass($14)) - (SELECT max(read_before) FROM level)
FROM (SELECT count(*) < $3 AS are_few FROM claimed) AS claims;

-- name: find_claimable
-- route: tuned
-- Return when the first job of the names $1 is due that claims from the position $4 to $7 and the ids $8 overlook.
--
-- NULL if there is none. A locked job is left out, because a claim could not take it. "read" is the number of
-- entries of the index $9 that were read. Crashed jobs, under which $3 workers died or more, count only where $2.
SELECT found.due, pg_stat_get_xact_tuples_returned(to_regclass($9)) - found.read_before AS read
FROM (
    SELECT min(job.execution_time) AS due, max(level.read_before) AS read_before
    FROM (
        VALUES
            ({critical}, $4::timestamptz, ($8::text[])[1], pg_stat_get_xact_tuples_returned(to_regclass($9::text))),
            ({high}, $5::timestamptz, ($8::text[])[2], 0),
            ({normal}, $6::timestamptz, ($8::text[])[3], 0),
            ({low}, $7::timestamptz, ($8::text[])[4], 0)
    ) AS level (priority, since, after, read_before)
    LEFT JOIN LATERAL (
        SELECT execution_time
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NULL
          AND blocked_on IS NULL
          AND priority = level.priority
          AND execution_time >= {first_instant}
          AND (execution_time, job_id COLLATE "C") < (level.since, level.after)
          AND status = 'pending'
          AND coalesce(function, job_name) = ANY ($1)
          AND ($2::boolean OR crash_count < $3::integer)
        ORDER BY execution_time, job_id COLLATE "C"
        LIMIT 1
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS job ON TRUE
) AS found;

-- name: claim_jobs
-- route: dedicated
-- timeout: hot
-- Claim at most $3 due jobs of the names $2 from the start of the index, as exchange_jobs does, at half its cost.
--
-- It is for an idle worker that expects a job. The parts of exchange_jobs are set up at each execution, whatever
-- they find; the other ones can wait for the next poll. Expired and crashed jobs are left to exchange_jobs. There is
-- always a row. It holds the seconds until the next job is due, also if more than $3 jobs are. Crashed jobs,
-- under which $6 workers died or more, count only where $5.
WITH worker AS (
    SELECT lease_until
    FROM {schema}scheduler_workers
    WHERE worker_id = $1 AND lease_until > coalesce($4, {now})
    FOR KEY SHARE
),
due AS (
    SELECT job.ctid
    FROM {levels}
    CROSS JOIN LATERAL (
        SELECT ctid
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NULL
          AND blocked_on IS NULL
          AND priority = level.priority
          AND execution_time >= {first_instant}
          AND execution_time <= coalesce($4, {now})
          AND status = 'pending'
          AND coalesce(function, job_name) = ANY ($2)
          AND (expires_at >= coalesce($4, {now}) OR expires_at IS NULL)
          AND crash_count < $6::integer
        ORDER BY execution_time, job_id COLLATE "C"
        LIMIT $3
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS job
    CROSS JOIN LATERAL (SELECT FROM worker WHERE job.ctid IS NOT NULL OFFSET 0) AS alive
    LIMIT $3
),
claimed AS (
    UPDATE {schema}scheduled_jobs SET
        status         = 'running',
        attempt        = attempt % 2147483647 + 1,
        worker_id      = $1,
        started_at     = coalesce($4, {now}),
        last_heartbeat = coalesce($4, {now}),
        lease_until    = (SELECT lease_until FROM worker)
    WHERE ctid = ANY (ARRAY (SELECT ctid FROM due))
    RETURNING {claim_columns}
)
SELECT claimed.*, next.due
FROM (
    SELECT extract(epoch FROM min(job.execution_time) - coalesce($4, {now}))::double precision AS due
    FROM {levels}
    CROSS JOIN LATERAL (
        SELECT execution_time
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NULL
          AND blocked_on IS NULL
          AND priority = level.priority
          AND execution_time >= {first_instant}
          AND status = 'pending'
          AND coalesce(function, job_name) = ANY ($2)
          AND ($5::boolean OR crash_count < $6::integer)
          AND ctid <> ALL (ARRAY (SELECT ctid FROM due))
        ORDER BY execution_time
        LIMIT 1
    ) AS job
) AS next
LEFT JOIN claimed ON TRUE;

-- name: explain_expiry
-- route: dedicated
-- timeout: hot
-- Write why the jobs $3 expired, which worker $1 has just claimed as expired with the names $2; count and return them.
--
-- In exchange_jobs this text, and the result to be kept, would be set up at each execution. A row that another
-- transaction has locked meanwhile keeps the text of exchange_jobs: the jobs of the same claim do not wait for it.
WITH ended AS (
    UPDATE {schema}scheduled_jobs SET
        error_message = {expiry_reason},
        options       = {options_with_cause},
        on_end        = {on_end_with_result}
    WHERE ctid = ANY (ARRAY (
        SELECT ctid
        FROM {schema}scheduled_jobs
        WHERE job_id = ANY ($3) AND status = 'expired' AND worker_id = $1 AND expires_at < coalesce($4, {now})
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING job_id, {named}, status, worker_id, finished_at, {unexplained_expiry}::text AS text, error_message,
        on_end IS NOT NULL AS has_consequences
){counted_failures}
SELECT job_id, has_consequences, error_message FROM ended;

-- name: complete_unlocked
-- route: dedicated
-- timeout: hot
-- Write the completions whose rows are not locked, and return their ids: those that no claim takes along, and
-- those of an exchange_jobs that waited too long.
WITH done AS (
    SELECT ctid
    FROM {schema}scheduled_jobs
    WHERE job_id = ANY ($3) AND status = 'running' AND worker_id = $1 AND attempt = $4 AND on_end IS NULL
    FOR UPDATE SKIP LOCKED
),
finished AS (
    UPDATE {schema}scheduled_jobs SET
        status        = 'completed',
        finished_at   = coalesce($2, {now}),
        error_message = NULL,
        lease_until   = NULL
    WHERE $5::boolean AND ctid = ANY (ARRAY (SELECT ctid FROM done))
    RETURNING job_id
),
deleted AS (
    DELETE FROM {schema}scheduled_jobs
    WHERE NOT $5::boolean AND ctid = ANY (ARRAY (SELECT ctid FROM done))
      AND (options -> 'steps') IS NULL{without_result}
    RETURNING job_id
)
SELECT job_id FROM finished UNION ALL SELECT job_id FROM deleted;

-- name: held_claim
-- route: reserved
-- Return the claim that a worker holds on a job.
SELECT {claim_columns}
FROM {schema}scheduled_jobs
WHERE job_id = $1 AND status = 'running' AND worker_id = $2;

-- name: claim_one
-- route: reserved
-- Claim the pending job $2, whenever it is due, for a worker whose lease is valid, and return the claim.
--
-- For people who run a job by hand. The other statements find running jobs among those that were due, so it is due
-- now at the latest. A blocked job is left. A condition on finished_at would make the claim index usable, and a plan
-- that was made for an empty table would walk it.
WITH worker AS (
    SELECT lease_until
    FROM {schema}scheduler_workers
    WHERE worker_id = $1 AND lease_until > coalesce($3, {now})
    FOR KEY SHARE
)
UPDATE {schema}scheduled_jobs SET
    status         = 'running',
    attempt        = attempt % 2147483647 + 1,
    execution_time = least(execution_time, coalesce($3, {now})),
    worker_id      = $1,
    started_at     = coalesce($3, {now}),
    last_heartbeat = coalesce($3, {now}),
    lease_until    = (SELECT lease_until FROM worker)
WHERE ctid = ANY (ARRAY (
    SELECT ctid
    FROM {schema}scheduled_jobs
    WHERE job_id = $2
      AND blocked_on IS NULL
      AND status = 'pending'
      AND execution_time >= {first_instant}
      AND EXISTS (SELECT FROM worker){within_lock_limit}
    FOR NO KEY UPDATE SKIP LOCKED
))
RETURNING {claim_columns};
