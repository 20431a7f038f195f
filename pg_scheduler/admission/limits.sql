-- name: block_surplus
-- route: shared, tuned
-- Block due jobs of the names $2 on a full limit ($1): those among the next $6 rows of a priority ($3) after the
-- position $4 and $5; only these ids ($8) unless that is NULL.
--
-- Each of them would be claimed and then blocked by admission control, which delays the jobs behind them. To block
-- too many is harmless, because the limit is checked afterwards. Jobs past their misfire grace time are left to
-- expire.
WITH due AS MATERIALIZED (
    SELECT ctid, job_id, status, coalesce(function, job_name) AS name, expires_at
    FROM {schema}scheduled_jobs
    WHERE finished_at IS NULL
      AND blocked_on IS NULL
      AND priority = $3
      AND (execution_time, job_id COLLATE "C") > ($4::timestamptz, $5::text)
      AND execution_time <= coalesce($7, {now})
    ORDER BY execution_time, job_id COLLATE "C"
    LIMIT $6
),
surplus AS MATERIALIZED (
    -- The limit is here as well, because a variant of the statement lacks the part below that uses it.
    SELECT job.ctid, job.job_id, $1::text AS blocked_on
    FROM {schema}scheduled_jobs AS job
    WHERE job.ctid = ANY (ARRAY (
        SELECT due.ctid
        FROM due
        WHERE due.status = 'pending'
          AND due.name = ANY ($2)
          AND ($8::text[] IS NULL OR due.job_id = ANY ($8))
          AND (due.expires_at IS NULL OR due.expires_at >= coalesce($7, {now}))
    ))
      AND job.status = 'pending'
      AND job.blocked_on IS NULL{left_out}
    FOR NO KEY UPDATE SKIP LOCKED
),
changed AS (
    UPDATE {schema}scheduled_jobs SET blocked_on = $1
    WHERE ctid = ANY (ARRAY (SELECT ctid FROM surplus))
    RETURNING job_id, {named}, attempt, execution_time
)
SELECT changed.* FROM changed;

-- name: read_surplus
-- route: shared, tuned
-- Return the due jobs that block_surplus would block with the same names ($1), priority ($2), position ($3, $4) and
-- number of rows ($5), and their arguments if these have at most $6 bytes, for key functions.
SELECT due.job_id, due.job_name, due.task_data::text AS task_data
FROM (
    SELECT job_id, job_name, status, coalesce(function, job_name) AS name, task_data
    FROM {schema}scheduled_jobs
    WHERE finished_at IS NULL
      AND blocked_on IS NULL
      AND priority = $2
      AND (execution_time, job_id COLLATE "C") > ($3::timestamptz, $4::text)
      AND execution_time <= coalesce($7, {now})
    ORDER BY execution_time, job_id COLLATE "C"
    LIMIT $5
) AS due
WHERE due.status = 'pending'
  AND due.name = ANY ($1)
  AND CASE WHEN pg_column_size(due.task_data) <= $6 THEN octet_length(due.task_data::text) <= $6 ELSE false END;

-- name: unblock_limited
-- route: shared, tuned
-- Unblock as many jobs of the limits ($2) as these have room for, at most $7 of each, in the order of claims.
--
-- $3 to $6 are the numbers of each limit, by set: the set with the most room decides. To unblock too many is
-- harmless, because they pass admission control again. The result has a row for each limit with blocked jobs:
-- how many were unblocked, their names, how many of them are past their misfire grace time, when the first one is due,
-- and the seconds until one more attempt may start, NULL if that depends on the end of an attempt.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1, clock_timestamp()) AS at
),
room AS MATERIALIZED (
    SELECT each.key, max(each.free) AS free, min(each.free_in) AS free_in
    FROM (
        SELECT
            declared.key,
            declared.number,
            min(least(declared.max_running - used.running, declared.max_starts - used.started)) AS free,
            max(CASE WHEN used.started >= declared.max_starts THEN (
                SELECT extract(epoch FROM start.at - clock.at)::double precision + declared.per_s
                FROM {starts_within}
                ORDER BY start.at
                OFFSET used.started - declared.max_starts
                LIMIT 1
            ) END) AS free_in
        FROM ROWS FROM (
            unnest($2::text[]), unnest($3::integer[]), unnest($4::integer[]), unnest($5::integer[]),
            unnest($6::double precision[])
        ) AS declared (key, number, max_running, max_starts, per_s)
        CROSS JOIN clock
        CROSS JOIN LATERAL (
            SELECT
                CASE WHEN declared.max_running IS NOT NULL THEN (
                    SELECT count(*)
                    FROM {schema}scheduler_starts AS start
                    WHERE start.key = declared.key AND {is_running}
                ) END AS running,
                CASE WHEN declared.max_starts IS NOT NULL
                    THEN (SELECT count(*) FROM {starts_within}) END AS started
            OFFSET 0
        ) AS used
        WHERE (SELECT true FROM {schema}scheduled_jobs WHERE blocked_on = declared.key LIMIT 1)
        GROUP BY declared.key, declared.number
    ) AS each
    GROUP BY each.key
),
first AS MATERIALIZED (
    SELECT room.key, job.ctid, job.job_id, job.name, job.is_late, job.due
    FROM room
    CROSS JOIN LATERAL (
        SELECT ctid, job_id, coalesce(function, job_name) AS name,
            expires_at < coalesce($1, {now}) AND {may_expire} AS is_late, {bounded_due}
        FROM {schema}scheduled_jobs
        WHERE blocked_on = room.key{left_out}
        ORDER BY priority, execution_time, job_id COLLATE "C"
        LIMIT greatest(least(room.free, $7::integer), 0)
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS job
),
changed AS (
    UPDATE {schema}scheduled_jobs SET
        blocked_on = NULL,
        error_message = CASE WHEN expires_at < coalesce($1, {now}) AND {may_expire}
            THEN {limit_wait_note} ELSE error_message END,
        options = CASE WHEN expires_at < coalesce($1, {now}) AND {may_expire}
            THEN {options_with_limit_wait} ELSE options END
    WHERE ctid = ANY (ARRAY (SELECT ctid FROM first))
)
SELECT room.key, room.free_in, count(first.ctid) AS jobs, array_agg(DISTINCT first.name) AS names,
    count(first.ctid) FILTER (WHERE first.is_late) AS late, min(first.due) AS due
FROM room
LEFT JOIN first ON first.key = room.key
GROUP BY room.key, room.free_in;

-- name: unblock_unclaimed
-- route: shared, tuned
-- Unblock the jobs of those names ($2) that no live worker but $3 claims, among the first $4 jobs of the limits ($1).
--
-- Their tasks are paused, or their workers are down. Jobs of other tasks would wait behind them, although the limit has
-- room. They wait in the claim index, as other due jobs of these tasks do, and pass admission control when they are
-- claimed. To unblock too many is harmless for that reason. The names that no other live worker claims are the result.
-- coalesce(), because the partial index of the blocked jobs does not fit then: see move_to_front.
WITH unclaimed AS MATERIALIZED (
    SELECT waiting.name
    FROM unnest($2::text[]) AS waiting (name)
    WHERE NOT EXISTS (
        SELECT FROM {schema}scheduler_workers AS worker
        WHERE worker.worker_id <> $3
          AND worker.lease_until > coalesce($5, {now})
          AND {claims_jobs}
          AND (worker.names IS NULL OR waiting.name = ANY (worker.names))
    )
),
head AS MATERIALIZED (
    SELECT job.ctid, job.name
    FROM unnest($1::text[]) AS declared (key)
    CROSS JOIN LATERAL (
        SELECT ctid, coalesce(function, job_name) AS name
        FROM {schema}scheduled_jobs
        WHERE blocked_on = declared.key AND (SELECT count(*) FROM unclaimed) > 0
        ORDER BY priority, execution_time, job_id COLLATE "C"
        LIMIT $4
    ) AS job
),
first AS MATERIALIZED (
    SELECT job.ctid, job.job_id
    FROM {schema}scheduled_jobs AS job
    WHERE job.ctid = ANY (ARRAY (
        SELECT head.ctid FROM head WHERE head.name = ANY (ARRAY (SELECT unclaimed.name FROM unclaimed))
    ))
      AND coalesce(job.blocked_on, '') <> ''{left_out}
    FOR NO KEY UPDATE SKIP LOCKED
),
changed AS (
    UPDATE {schema}scheduled_jobs SET blocked_on = NULL
    WHERE ctid = ANY (ARRAY (SELECT ctid FROM first))
)
SELECT unclaimed.name FROM unclaimed;

-- name: blocked_keys
-- route: shared, tuned
-- Return at most $3 limits that block jobs, or tenants, between $1 and $2 in the order of the index.
--
-- One index probe for each. In any collation, limits lie between 'after', which is none, and 'share:', which tenants
-- follow.
WITH RECURSIVE found AS (
    (SELECT blocked_on
     FROM {schema}scheduled_jobs
     WHERE blocked_on > $1::text AND blocked_on < $2
     ORDER BY blocked_on
     LIMIT 1)
    UNION ALL
    SELECT (
        SELECT next.blocked_on
        FROM {schema}scheduled_jobs AS next
        WHERE next.blocked_on > found.blocked_on AND next.blocked_on < $2
        ORDER BY next.blocked_on
        LIMIT 1
    )
    FROM found
    WHERE found.blocked_on IS NOT NULL
)
SELECT blocked_on FROM found WHERE blocked_on IS NOT NULL LIMIT $3;

-- name: unblock_late
-- route: shared, tuned
-- Unblock the jobs of limits or tenants ($1) that are past their misfire grace time, so that they expire as others do.
-- Their error messages note what they waited for, until they expire with that as the reason.
--
-- It reads at most $5 jobs, of each those after the positions $2 to $4. The last row that was read is the
-- result: its limit or tenant, position and number, and how many jobs were unblocked. coalesce() as in unblock_unclaimed.
WITH walked AS MATERIALIZED (
    SELECT job.*, row_number() OVER () AS n
    FROM ROWS FROM (unnest($1::text[]), unnest($2::integer[]), unnest($3::timestamptz[]), unnest($4::text[]))
        AS each (key, priority, since, job_id)
    CROSS JOIN LATERAL (
        SELECT ctid, blocked_on, priority, execution_time, job_id, expires_at
        FROM {schema}scheduled_jobs
        WHERE blocked_on = each.key
          AND (priority, execution_time, job_id COLLATE "C")
              > (coalesce(each.priority, 0), coalesce(each.since, '-infinity'), each.job_id)
        ORDER BY priority, execution_time, job_id COLLATE "C"
        LIMIT $5
    ) AS job
    LIMIT $5
),
late AS MATERIALIZED (
    SELECT job.ctid, job.job_id
    FROM {schema}scheduled_jobs AS job
    WHERE job.ctid = ANY (ARRAY (SELECT ctid FROM walked WHERE expires_at < coalesce($6, {now})))
      AND coalesce(job.blocked_on, '') <> ''
      AND {may_expire}{left_out}
    FOR NO KEY UPDATE SKIP LOCKED
),
changed AS (
    UPDATE {schema}scheduled_jobs SET
        blocked_on    = NULL,
        error_message = {limit_wait_note},
        options       = {options_with_limit_wait}
    WHERE ctid = ANY (ARRAY (SELECT ctid FROM late))
)
SELECT blocked_on, priority,
    CASE WHEN execution_time >= {first_instant} THEN least(execution_time, {last_instant}) END AS execution_time,
    job_id, n,
    (SELECT count(*) FROM late) AS jobs
FROM walked
ORDER BY n DESC
LIMIT 1;

-- name: unblock_forgotten
-- route: shared, tuned
-- Unblock at most $3 jobs of limits or shares ($1) that the code of their names ($2) does not have any more.
WITH first AS MATERIALIZED (
    SELECT job.ctid, job.job_id
    FROM unnest($1::text[]) AS forgotten (key)
    CROSS JOIN LATERAL (
        SELECT ctid, job_id
        FROM {schema}scheduled_jobs
        WHERE blocked_on = forgotten.key
          AND coalesce(function, job_name) = ANY ($2){left_out}
        ORDER BY priority, execution_time, job_id COLLATE "C"
        LIMIT $3
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS job
    LIMIT $3
),
changed AS (
    UPDATE {schema}scheduled_jobs SET blocked_on = NULL
    WHERE ctid = ANY (ARRAY (SELECT ctid FROM first))
)
SELECT count(*) FROM first;
