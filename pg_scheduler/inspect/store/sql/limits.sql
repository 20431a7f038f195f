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
    SELECT job_name
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
    SELECT job_id, job_name, execution_time, priority
    FROM {schema}scheduled_jobs
    WHERE blocked_on IS NOT NULL AND blocked_on = wanted.key
    ORDER BY priority, execution_time, job_id COLLATE "C"
    LIMIT $2::bigint
) AS next
ORDER BY wanted.key, next.priority, next.execution_time, next.job_id COLLATE "C";
