-- name: lock_ended
-- route: caller
-- Lock those of the jobs $1 that have ended and whose consequences have not been applied, and return them.
SELECT job_id, job_name, status, attempt, error_message, on_end::text AS on_end, options::text AS options
FROM {schema}scheduled_jobs
WHERE job_id = ANY ($1) AND finished_at IS NOT NULL AND on_end <> {only_alive}
ORDER BY job_id COLLATE "C"
FOR NO KEY UPDATE;

-- name: clear_consequences
-- route: caller
-- Record that the consequences of jobs that have ended are applied. "alive" is left to the worker of the attempt.
UPDATE {schema}scheduled_jobs SET
    on_end = CASE WHEN (on_end -> 'alive') IS NOT NULL THEN jsonb_build_object('alive', true) END
WHERE job_id = ANY ($1) AND finished_at IS NOT NULL;

-- name: find_ended
-- route: reserved
-- Return at most $1 jobs that have ended and whose consequences have not been applied.
SELECT job_id
FROM {schema}scheduled_jobs
WHERE finished_at IS NOT NULL AND on_end IS NOT NULL AND on_end <> {only_alive}
LIMIT $1;
