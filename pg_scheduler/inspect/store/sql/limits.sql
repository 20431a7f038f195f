-- name: inspect_blocked
-- route: tuned
-- Count by what they wait for the first $1 blocked jobs; return $2 groups, the largest first.
WITH examined AS MATERIALIZED (
    SELECT blocked_on
    FROM {schema}scheduled_jobs
    WHERE blocked_on IS NOT NULL
    ORDER BY blocked_on
    LIMIT $1::bigint
)
SELECT blocked_on, count(*) AS jobs, (SELECT count(*) FROM examined) AS examined
FROM examined
GROUP BY blocked_on
ORDER BY count(*) DESC, blocked_on
LIMIT $2::bigint;

-- name: inspect_blocked_names
-- route: tuned
-- Count by name the first $1 blocked jobs; return $2 names, the one with most jobs first.
WITH examined AS MATERIALIZED (
    SELECT coalesce(function, job_name) AS name
    FROM {schema}scheduled_jobs
    WHERE blocked_on IS NOT NULL
    ORDER BY blocked_on
    LIMIT $1::bigint
)
SELECT name, count(*) AS jobs, (SELECT count(*) FROM examined) AS examined
FROM examined
GROUP BY name
ORDER BY count(*) DESC, name
LIMIT $2::bigint;

-- name: inspect_limit
-- route: pool
-- Count the attempts of a limit ($1) that run, and its starts that still count; examine $3.
SELECT count(*) FILTER (WHERE {is_running}) AS running,
    count(*) FILTER (WHERE start.at > (clock.at
        - make_interval(secs => least(greatest(start.keep_s, 0), {longest_extension_s})))) AS starts
FROM (SELECT * FROM {schema}scheduler_starts WHERE key = $1 LIMIT $3) AS start
CROSS JOIN (SELECT coalesce($2, now()) AS at) AS clock;

-- name: inspect_limit_keys
-- route: pool
-- Return at most $2 limits that have admitted attempts, from $1 on in the order of the index.
--
-- One index probe for each. Those that begin with $1 follow it in every collation, and others may be among them.
WITH RECURSIVE found AS (
    (SELECT key, 1 AS n
     FROM {schema}scheduler_starts
     WHERE key >= $1
     ORDER BY key
     LIMIT 1)
    UNION ALL
    SELECT (
        SELECT next.key
        FROM {schema}scheduler_starts AS next
        WHERE next.key > found.key
        ORDER BY next.key
        LIMIT 1
    ), found.n + 1
    FROM found
    WHERE found.key IS NOT NULL AND found.n < $2::integer
)
SELECT key FROM found WHERE key IS NOT NULL;

-- name: inspect_next_starts
-- route: pool
-- Return when each of the limits $1, that admit $2 starts within $3 seconds and are full, admits the next one.
--
-- As far as $4 starts of each tell.
SELECT wanted.key, least(greatest(start.at, {first_day}), {last_fire_day})
    + make_interval(secs => least(greatest(wanted.per_s, 0), {longest_extension_s})) AS at
FROM ROWS FROM (unnest($1::text[]), unnest($2::bigint[]), unnest($3::double precision[])) AS wanted (key, starts, per_s)
CROSS JOIN LATERAL (
    SELECT newest.at
    FROM (SELECT at FROM {schema}scheduler_starts WHERE key = wanted.key LIMIT $4::bigint) AS newest
    ORDER BY newest.at DESC
    OFFSET wanted.starts - 1
    LIMIT 1
) AS start;

-- name: inspect_limit_holders
-- route: pool
-- Return $2 attempts that run within each of the limits $1, and when they were admitted, among $3 starts of each.
SELECT wanted.key, holder.job_id, job.job_name, least(greatest(holder.at, {first_instant}), {last_instant}) AS at
FROM unnest($1::text[]) AS wanted (key)
CROSS JOIN LATERAL (
    SELECT start.job_id, start.at
    FROM (SELECT * FROM {schema}scheduler_starts WHERE key = wanted.key LIMIT $3::bigint) AS start
    CROSS JOIN (SELECT coalesce($4, now()) AS at) AS clock
    WHERE {is_running}
    ORDER BY start.at
    LIMIT $2::bigint
) AS holder
CROSS JOIN LATERAL (
    SELECT {named}
    FROM {schema}scheduled_jobs
    WHERE job_id = holder.job_id
    OFFSET 0  -- not joined in another way, which reads all jobs
) AS job;

-- name: inspect_limit_queue
-- route: tuned
-- Return the $2 jobs that start next within each of the limits $1, and when they were due.
SELECT wanted.key, next.job_id, next.job_name,
    least(greatest(next.execution_time, {first_instant}), {last_instant}) AS at
FROM unnest($1::text[]) AS wanted (key)
CROSS JOIN LATERAL (
    SELECT job_id, {named}, execution_time, priority
    FROM {schema}scheduled_jobs
    WHERE blocked_on IS NOT NULL AND blocked_on = wanted.key
    ORDER BY priority, execution_time, job_id COLLATE "C"
    LIMIT $2::bigint
) AS next
ORDER BY wanted.key, next.priority, next.execution_time, next.job_id COLLATE "C";

-- name: inspect_tenants
-- route: tuned
-- Count the jobs that wait for the turns of each of the tenants $1, at most $2 of each; return when its last turn was.
SELECT tenant.key, waiting.jobs, (
    SELECT least(greatest(turn.at, {first_instant}), {last_instant})
    FROM {schema}scheduler_starts AS turn
    WHERE turn.key = ('fed' || substr(tenant.key, 6)) AND turn.job_id = '' AND turn.attempt = 0
) AS last_turn_at
FROM unnest($1::text[]) AS tenant (key)
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs
    FROM (
        SELECT FROM {schema}scheduled_jobs
        WHERE blocked_on IS NOT NULL AND blocked_on = tenant.key
        ORDER BY priority, execution_time, job_id COLLATE "C"
        LIMIT $2::bigint
    ) AS each
) AS waiting;

-- name: inspect_in_flight
-- route: pool
-- Count the jobs in flight by tenant, as feed_shares counts them: those that it moved, and that have neither ended nor
-- wait for a later time or other jobs. At most $1 are read. Those that run are counted apart.
WITH moved AS MATERIALIZED (
    SELECT key, job_id FROM {schema}scheduler_starts WHERE key > 'share:' AND attempt = 0 LIMIT $1::bigint
)
SELECT moved.key, count(*) FILTER (WHERE job.status = 'running') AS running,
    count(*) FILTER (WHERE job.status <> 'running') AS admitted, (SELECT count(*) FROM moved) AS examined
FROM moved
CROSS JOIN (SELECT coalesce($2, clock_timestamp()) AS at) AS clock
CROSS JOIN LATERAL (
    SELECT finished_at, blocked_on, status, execution_time
    FROM {schema}scheduled_jobs
    WHERE job_id = moved.job_id
    OFFSET 0  -- not joined in another way, which reads all jobs
) AS job
WHERE job.finished_at IS NULL
  AND (job.blocked_on > 'share:' OR job.blocked_on = 'after') IS NOT TRUE
  AND (
      job.blocked_on IS NOT NULL
      OR job.status = 'running'
      OR job.execution_time <= (clock.at + interval '4 seconds')
  )
GROUP BY moved.key;

-- name: inspect_sequences
-- route: pool
-- Return at most $1 sequences that have a head, those that have stopped first, among the first $2.
SELECT listed.key
FROM (SELECT key, stopped_at FROM {schema}scheduler_sequences LIMIT $2::bigint) AS listed
ORDER BY listed.stopped_at, listed.key COLLATE "C"
LIMIT $1::bigint;

-- name: inspect_heads
-- route: tuned
-- Return the heads of those of the sequences $1 that have one.
--
-- A failed job at which a sequence has stopped is first again if it was retried. If it has a new definition, it waits for
-- its place as others do, and the sequence has no head.
SELECT sequence.key, sequence.job_id, head.job_name, head.status,
    CASE WHEN sequence.stopped_at IS NOT NULL AND (head.status IS NULL OR head.finished_at IS NOT NULL)
        THEN least(greatest(sequence.stopped_at, {first_instant}), {last_instant}) END AS stopped_at
FROM {schema}scheduler_sequences AS sequence
LEFT JOIN LATERAL (
    SELECT {named}, status, finished_at, blocked_on, (options -> 'retried_by_hand') = to_jsonb(attempt) AS is_retried
    FROM {schema}scheduled_jobs
    WHERE job_id = sequence.job_id
    OFFSET 0
) AS head ON true
WHERE sequence.key = ANY ($1::text[])
  AND ((head.blocked_on = sequence.key) IS NOT TRUE OR sequence.stopped_at IS NOT NULL AND head.is_retried IS TRUE);

-- name: inspect_sequence_queue
-- route: tuned
-- Count the jobs that precede a job, due at $2 with the id $3, in the sequence $1; at most $4 of each priority.
SELECT coalesce(sum(earlier.jobs), 0)::bigint AS ahead, 0 AS outranked_by,
    coalesce(bool_or(earlier.jobs >= $4), false) AS is_capped
FROM {levels}
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs
    FROM (
        SELECT FROM {schema}scheduled_jobs
        WHERE blocked_on = $1
          AND priority = level.priority
          AND (execution_time, job_id COLLATE "C") < ($2::timestamptz, $3::text)
        LIMIT $4::bigint
    ) AS each
) AS earlier;

-- name: inspect_sequence_of
-- route: pool
-- Return the sequence that the job $1 is in; NULL if it is in none.
SELECT {sequence_key} AS key FROM {schema}scheduled_jobs WHERE job_id = $1;
