-- name: now
-- The clock that decides.
SELECT coalesce($1, now());

-- name: periodic_rows
-- Every schedule, and what time it is. What somebody wrote by hand must not keep us from reading the others: the
-- calendar of Python, within which the next time is to be found, ends in the year 9999, and no schedule has
-- an interval of 4,000 days. A last time beyond it is none.
SELECT dedup_key, derived_key, job_name, function,
    CASE WHEN every > '4000 days' THEN '4000 days' ELSE every END AS every, cron, timezone, use_advisory_lock,
    priority, max_retries, enabled, enabled_in_code,
    least(greatest(anchor, '0001-01-02'), '9000-01-01') AS anchor,
    CASE WHEN last_fire_at BETWEEN '0001-01-02' AND '9000-01-01' THEN last_fire_at END AS last_fire_at,
    CASE WHEN next_fire_at IS NOT NULL
        THEN least(greatest(next_fire_at, '0001-01-02'), '9000-01-01') END AS next_fire_at,
    coalesce($1, now()) AS now
FROM {schema}scheduler_periodic_jobs;

-- name: lock_periodic
-- Code is written into the schedules by one node at a time. Readers are not kept waiting.
LOCK TABLE {schema}scheduler_periodic_jobs IN SHARE ROW EXCLUSIVE MODE;

-- name: upsert_periodic
-- A schedule as the code has it.
INSERT INTO {schema}scheduler_periodic_jobs (
    dedup_key, derived_key, job_name, function, every, cron, timezone, use_advisory_lock, priority,
    max_retries, enabled, enabled_in_code, anchor, last_fire_at, next_fire_at, updated_at
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, coalesce($16, now()))
ON CONFLICT (dedup_key) DO UPDATE SET
    derived_key = EXCLUDED.derived_key, job_name = EXCLUDED.job_name, function = EXCLUDED.function,
    every = EXCLUDED.every, cron = EXCLUDED.cron, timezone = EXCLUDED.timezone,
    use_advisory_lock = EXCLUDED.use_advisory_lock, priority = EXCLUDED.priority,
    max_retries = EXCLUDED.max_retries, enabled = EXCLUDED.enabled,
    enabled_in_code = EXCLUDED.enabled_in_code, anchor = EXCLUDED.anchor,
    last_fire_at = EXCLUDED.last_fire_at, next_fire_at = EXCLUDED.next_fire_at,
    updated_at = EXCLUDED.updated_at;

-- name: delete_periodic
-- A schedule that has moved to another key.
DELETE FROM {schema}scheduler_periodic_jobs WHERE dedup_key = $1;

-- name: last_chained_run
-- pg-scheduler 0.2.x planned a periodic job as a chain of jobs with numbered windows: the last one that
-- still waits. The calendar of Python, within which the next one is to be found, ends in the year 9999.
SELECT max(execution_time)
FROM {schema}scheduled_jobs
WHERE finished_at IS NULL
  AND execution_time BETWEEN '0001-01-02' AND '9000-01-01'
  AND starts_with(job_id, 'periodic:' || $1 || ':')
  AND substr(job_id, length('periodic:' || $1 || ':') + 1) ~ '^[0-9]+$';

-- name: due_periodic
-- Schedules of this process whose time has come, or whose next time is to be computed; locked until the
-- transaction that moves them on. Another node that plans the same ones now is not waited for. Values as above.
SELECT dedup_key, derived_key, job_name, function,
    CASE WHEN every > '4000 days' THEN '4000 days' ELSE every END AS every, cron, timezone, use_advisory_lock,
    priority, max_retries, enabled, enabled_in_code,
    least(greatest(anchor, '0001-01-02'), '9000-01-01') AS anchor,
    CASE WHEN last_fire_at BETWEEN '0001-01-02' AND '9000-01-01' THEN last_fire_at END AS last_fire_at,
    CASE WHEN next_fire_at IS NOT NULL
        THEN least(greatest(next_fire_at, '0001-01-02'), '9000-01-01') END AS next_fire_at
FROM {schema}scheduler_periodic_jobs AS schedule
WHERE enabled
  AND dedup_key = ANY ($1)
  AND (schedule.next_fire_at IS NULL OR schedule.next_fire_at <= coalesce($2, now()))
ORDER BY schedule.next_fire_at
LIMIT 100
FOR UPDATE SKIP LOCKED;

-- name: move_periodic
-- The window is planned: on to the next.
UPDATE {schema}scheduler_periodic_jobs SET
    last_fire_at = coalesce($2, last_fire_at), next_fire_at = $3, updated_at = coalesce($4, now())
WHERE dedup_key = $1;

-- name: enable_periodic
-- Switch schedules on or off. One that is switched on goes on with its first window from now.
UPDATE {schema}scheduler_periodic_jobs SET
    enabled = $2, next_fire_at = CASE WHEN $2 AND NOT enabled THEN NULL ELSE next_fire_at END,
    updated_at = coalesce($3, now())
WHERE dedup_key = $1
RETURNING dedup_key;
