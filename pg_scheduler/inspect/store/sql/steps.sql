-- name: inspect_steps
-- route: pool
-- Return $3 stored steps of the job $1, or the one named $2; no row if there is no such job.
--
-- Those of the job itself come first, the oldest first, and at most 10,000 rows are read. A row of NULLs stands for
-- none. Large values, and compressed ones, which hide their size, are read by their names only.
SELECT step.name, step.kind,
    CASE WHEN $2::text IS NOT NULL OR (step.size <= 2000 AND pg_column_compression(step.value) IS NULL)
        THEN step.value::text
    END AS value,
    coalesce(step.size, 0) AS size, step.attempt, step.until, step.started_at, step.ended_at
FROM {schema}scheduled_jobs AS job
LEFT JOIN LATERAL (
    SELECT each.*
    FROM (
        SELECT name, kind, value, pg_column_size(value) AS size, attempt, {bounded_until} AS until,
            least(greatest(started_at, {first_instant}), {last_instant}) AS started_at,
            CASE WHEN ended_at IS NOT NULL
                THEN least(greatest(ended_at, {first_instant}), {last_instant})
            END AS ended_at
        FROM {schema}scheduler_steps
        WHERE job_id = $1 AND (name = $2 OR $2 IS NULL)
        LIMIT 10000
    ) AS each
    ORDER BY each.kind = 'result', each.started_at, each.name
    LIMIT $3::bigint
) AS step ON (job.options -> 'steps') IS NOT NULL
WHERE job.job_id = $1
ORDER BY step.kind = 'result', step.started_at, step.name;

-- name: inspect_waits
-- route: pool
-- Return $2 sleeps and waits of the job $1, which is marked, that last, and signals that came before a wait.
SELECT name, kind, {bounded_until} AS until, least(greatest(started_at, {first_instant}), {last_instant}) AS since,
    ended_at IS NULL AS is_open
FROM {schema}scheduler_steps
WHERE job_id = $1 AND (ended_at IS NULL OR kind = 'signal' AND until IS NULL)
ORDER BY until, name
LIMIT $2::bigint;
