-- name: table_blocks
-- route: pool
-- Return the size of a table in blocks.
SELECT pg_relation_size(to_regclass($1)) / current_setting('block_size')::bigint;

-- name: vacuum_blocks
-- route: pool
-- Delete within a range of blocks the jobs that finished before the cutoff of their status ($3).
--
-- A job with "on_end" stays until its consequences are applied: other jobs may wait for its outcome.
-- Walking the table in such steps needs no index on the history, which every finished job would have to pay
-- for.
WITH cutoff AS MATERIALIZED (SELECT $3::text::jsonb AS of),
gone AS (
    DELETE FROM {schema}scheduled_jobs
    USING cutoff
    WHERE scheduled_jobs.ctid >= $1::tid AND scheduled_jobs.ctid < $2::tid
      AND finished_at <= (cutoff.of ->> status)::timestamptz
      AND on_end IS NULL
    RETURNING status
)
SELECT status, count(*) FROM gone GROUP BY status;

-- name: count_in_blocks
-- route: pool
-- Count within a range of blocks the jobs that vacuum_blocks would delete.
WITH cutoff AS MATERIALIZED (SELECT $3::text::jsonb AS of)
SELECT status, count(*)
FROM {schema}scheduled_jobs, cutoff
WHERE scheduled_jobs.ctid >= $1::tid AND scheduled_jobs.ctid < $2::tid
  AND finished_at <= (cutoff.of ->> status)::timestamptz
  AND on_end IS NULL
GROUP BY status;

-- name: vacuum_surplus
-- route: pool
-- Delete at most $3 finished jobs of a status beyond the newest $2 of each name; "on_end" as in vacuum_blocks.
WITH gone AS (
    DELETE FROM {schema}scheduled_jobs
    WHERE finished_at IS NOT NULL
      AND on_end IS NULL
      AND ctid = ANY (ARRAY (
        SELECT place
        FROM (
            SELECT ctid AS place,
                row_number() OVER (PARTITION BY job_name ORDER BY finished_at DESC, job_id DESC) AS rank
            FROM {schema}scheduled_jobs
            WHERE status = $1 AND on_end IS NULL
        ) AS ranked
        WHERE rank > $2
        LIMIT $3
    ))
    RETURNING 1
)
SELECT count(*) FROM gone;

-- name: record_vacuum
-- route: pool
-- Add to the counts of the day.
INSERT INTO {schema}vacuum_stats AS day (
    stat_date, deleted_completed, deleted_failed, deleted_cancelled, deleted_expired, last_run, worker_id
)
VALUES ((coalesce($6, now()) AT TIME ZONE 'UTC')::date, $1, $2, $3, $4, coalesce($6, now()), $5)
ON CONFLICT (stat_date) DO UPDATE SET
    deleted_completed = coalesce(day.deleted_completed, 0) + EXCLUDED.deleted_completed,
    deleted_failed    = coalesce(day.deleted_failed, 0) + EXCLUDED.deleted_failed,
    deleted_cancelled = coalesce(day.deleted_cancelled, 0) + EXCLUDED.deleted_cancelled,
    deleted_expired   = day.deleted_expired + EXCLUDED.deleted_expired,
    last_run          = EXCLUDED.last_run,
    worker_id         = EXCLUDED.worker_id;

-- name: vacuum_stats
-- route: pool
-- Return the counts of the last days, newest first.
SELECT stat_date, deleted_completed, deleted_failed, deleted_cancelled, deleted_expired, last_run, worker_id
FROM {schema}vacuum_stats
WHERE stat_date > ((coalesce($2, now()) AT TIME ZONE 'UTC')::date - $1::integer)
ORDER BY stat_date DESC;

-- name: total_vacuum_stats
-- route: pool
-- Return the counts of all days.
SELECT
    coalesce(sum(deleted_completed), 0) AS total_completed,
    coalesce(sum(deleted_failed), 0)    AS total_failed,
    coalesce(sum(deleted_cancelled), 0) AS total_cancelled,
    coalesce(sum(deleted_expired), 0)   AS total_expired,
    max(last_run)                       AS last_vacuum_run
FROM {schema}vacuum_stats;
