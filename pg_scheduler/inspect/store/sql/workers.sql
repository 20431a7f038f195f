-- The attempts of a worker are read by three indexes, because none has the worker: a claim would have to write it.

-- The running jobs among the first $1 due ones of each priority at $2.

-- fragment: first_running
{levels}
CROSS JOIN LATERAL (
    SELECT examined.*
    FROM (
        SELECT *
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NULL
          AND blocked_on IS NULL
          AND priority = level.priority
          AND execution_time <= coalesce($2, now())
        ORDER BY execution_time, job_id COLLATE "C"
        LIMIT $1::bigint
    ) AS examined
    WHERE examined.status = 'running'
) AS due

-- fragment: attempt_times
CASE WHEN started_at IS NOT NULL THEN least(greatest(started_at, {first_instant}), {last_instant}) END AS started_at,
    CASE WHEN finished_at IS NOT NULL THEN least(greatest(finished_at, {first_instant}), {last_instant}) END
        AS finished_at

-- The attempts of worker $1 that did not simply complete, without their errors and logs.

-- fragment: attempt_history
(SELECT jsonb_agg(entry - ARRAY ['message', 'traceback', 'log', 'trace'])::text
     FROM jsonb_array_elements(CASE WHEN jsonb_typeof(errors) = 'array' THEN errors END) AS each (entry)
     WHERE jsonb_typeof(entry) = 'object' AND entry ->> 'worker_id' = $1)

-- name: inspect_running_attempts
-- route: tuned
-- Return running attempts, as far as the first $1 due jobs of each priority tell.
SELECT job_id, {named}, status, worker_id, attempt, {attempt_times}, NULL AS history, false AS is_last
FROM {first_running};

-- name: inspect_slots
-- route: tuned
-- Count the running attempts by worker, as far as the first $1 due jobs of each priority tell, and those of them that
-- wait for children; tell whether one of them waits for the job $3.
SELECT due.worker_id, count(*) AS running, count(*) FILTER (WHERE EXISTS (
        SELECT FROM {schema}scheduler_after AS edge WHERE edge.child_id = due.job_id
    )) AS waiting,
    bool_or(EXISTS (
        SELECT FROM {schema}scheduler_after AS edge WHERE edge.child_id = due.job_id AND edge.parent_id = $3
    )) AS has_parent
FROM {first_running}
GROUP BY due.worker_id;

-- name: inspect_unsuccessful_attempts
-- route: tuned
-- Return the last attempts by the worker $1 of jobs that ended with an error at or after $2, among the newest $3.
--
-- The last one of so many jobs is returned in any case: it shows that others were not examined.
SELECT job_id, {named}, status, worker_id, attempt, {attempt_times}, {attempt_history} AS history,
    place = $3 AS is_last
FROM (
    SELECT newest.*, row_number() OVER () AS place
    FROM (
        SELECT *
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NOT NULL AND error_message IS NOT NULL AND finished_at >= $2::timestamptz
        ORDER BY finished_at DESC, job_id COLLATE "C" DESC
        LIMIT $3::bigint
    ) AS newest
) AS examined
WHERE worker_id = $1 OR place = $3;

-- name: inspect_completed_attempts
-- route: tuned
-- Return the last attempts by the worker $1 of jobs that completed at or after $2, among those with the greatest ids
-- of ranges: from $3 on and before $4, at most $5 of each.
--
-- The last one of so many jobs is returned in any case: it shows that others were not examined.
SELECT examined.job_id, {named}, examined.status, examined.worker_id, examined.attempt, {attempt_times},
    {attempt_history} AS history, examined.place = range.most AS is_last
FROM ROWS FROM (unnest($3::text[]), unnest($4::text[]), unnest($5::bigint[])) AS range (low, high, most)
CROSS JOIN LATERAL (
    SELECT greatest_ids.*, row_number() OVER () AS place
    FROM (
        SELECT *
        FROM {schema}scheduled_jobs AS job
        WHERE job.job_id >= range.low AND job.job_id < range.high
        ORDER BY job.job_id DESC
        LIMIT range.most
    ) AS greatest_ids
) AS examined
WHERE (examined.worker_id = $1 AND examined.status = 'completed' AND examined.finished_at >= $2::timestamptz)
   OR examined.place = range.most;

-- name: inspect_workers
-- route: pool
-- Return $2 workers, what they claim and report, and when their jobs are reclaimed at the latest.
SELECT worker_id, hostname, max_concurrent_jobs AS slots, running_jobs,
    lease_until > coalesce($1, now()) AS is_alive,
    role = ANY (ARRAY ['both', 'worker']) AS claims_jobs,
    stopping OR coalesce(wanted = 'drain', false) OR coalesce(state = ANY (ARRAY ['draining', 'stopping']), false)
        AS is_draining,
    names, (settings -> 'aliases')::text AS aliases, health::text AS health,
    least(greatest(lease_until, {first_instant}), {last_instant}) AS lease_until,
    CASE WHEN liveness_key IS NOT NULL AND lease_until > {first_day} AND lease_until < {last_fire_day}
        THEN lease_until + make_interval(
            secs => greatest(least(coalesce(lease_extension, 0), {longest_extension_s}), 0))
    END AS reclaim_at
FROM {schema}scheduler_workers AS worker
ORDER BY worker.started_at, worker_id
LIMIT $2;
