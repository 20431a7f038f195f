-- name: now
-- route: pool
-- Return the clock of the scheduler.
SELECT coalesce($1, now());

-- name: periodic_rows
-- route: shared, reserved
-- Return every schedule, and the time.
--
-- Values that Python cannot hold are limited, so that a row written by hand does not hide the others.
SELECT {schedule_columns},
    coalesce($1, now()) AS now
FROM {schema}scheduler_periodic_jobs;

-- name: lock_periodic
-- route: caller
-- Let one process at a time write its schedules. Readers do not wait.
LOCK TABLE {schema}scheduler_periodic_jobs IN SHARE ROW EXCLUSIVE MODE;

-- name: upsert_periodic
-- route: caller
-- Write a schedule as the code defines it.
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
-- route: caller
-- Delete a schedule that moved to another key.
DELETE FROM {schema}scheduler_periodic_jobs WHERE dedup_key = $1;

-- name: last_chained_run
-- route: caller
-- Return the time of the last pending job that pg_scheduler 0.2 planned for a schedule.
--
-- It planned a chain of jobs with numbered ids.
SELECT max(execution_time)
FROM {schema}scheduled_jobs
WHERE finished_at IS NULL
  AND execution_time >= {first_day}
  AND execution_time <= {last_fire_day}
  AND starts_with(job_id, 'periodic:' || $1 || ':')
  AND substr(job_id, length('periodic:' || $1 || ':') + 1) ~ '^[0-9]+$';

-- name: due_periodic
-- route: caller
-- Return and lock schedules ($1) whose fire time has come or is not computed yet.
--
-- SKIP LOCKED: another process may be planning the same schedules.
SELECT {schedule_columns}
FROM {schema}scheduler_periodic_jobs AS schedule
WHERE enabled
  AND dedup_key = ANY ($1)
  AND (schedule.next_fire_at IS NULL OR schedule.next_fire_at <= coalesce($2, now()))
ORDER BY schedule.next_fire_at
LIMIT 100
FOR UPDATE SKIP LOCKED;

-- name: move_periodic
-- route: caller
-- Advance a schedule to its next fire time.
UPDATE {schema}scheduler_periodic_jobs SET
    last_fire_at = coalesce($2, last_fire_at), next_fire_at = $3, updated_at = coalesce($4, now())
WHERE dedup_key = $1;

-- name: enable_periodic
-- route: reserved
-- Enable or disable a schedule. An enabled one continues with its first fire time from now.
UPDATE {schema}scheduler_periodic_jobs SET
    enabled = $2, next_fire_at = CASE WHEN $2 AND NOT enabled THEN NULL ELSE next_fire_at END,
    updated_at = coalesce($3, now())
WHERE dedup_key = $1
RETURNING dedup_key;
