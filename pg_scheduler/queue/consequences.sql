-- name: lock_ended
-- route: caller
-- Lock those of the jobs $1 that have ended and whose consequences have not been applied, and return them.
SELECT job_id, {named}, status, {failed_attempts_of_job} AS failed_attempts, error_message, on_end::text AS on_end,
    options::text AS options
FROM {schema}scheduled_jobs
WHERE job_id = ANY ($1) AND finished_at IS NOT NULL AND on_end IS NOT NULL AND NOT {may_run_on}
ORDER BY job_id COLLATE "C"
FOR NO KEY UPDATE;

-- fragment: failed_attempts_of_job
-- The failed attempts of the definition of a job that has ended, since its last step: those that were retried, those
-- whose worker died, and the one that ended the job. The last one is counted already if its worker died or if the job
-- expired. If the status was set by hand while the job waited, no attempt ended it. So the last one counts only if the
-- job was running, or if a worker could not read the job and therefore did not start it.
retry_count::bigint + crash_count + CASE
        WHEN status <> 'failed' THEN 0
        WHEN (errors #> ARRAY ['-1']) @> jsonb_build_object('attempt', attempt, 'outcome', 'crashed') THEN 0
        WHEN started_at IS NOT NULL THEN 1
        WHEN (errors #> ARRAY ['-1']) @> jsonb_build_object('attempt', attempt)
            AND ((errors #> ARRAY ['-1']) -> 'started_at') IS NULL THEN 1
        ELSE 0 END

-- name: leave_consequences
-- route: caller
-- Return a row if services are to apply the consequences of jobs that have ended, and notify them at the commit.
--
-- At another isolation level than READ COMMITTED, statements of this transaction see neither the jobs that wait for these
-- since its first statement, nor the other jobs that have ended meanwhile.
SELECT pg_notify({channel}, 'ended') WHERE current_setting('transaction_isolation') <> 'read committed';

-- name: clear_consequences
-- route: caller
-- Record that the consequences of jobs that have ended are applied.
--
-- Those that belong to the definition of a job are moved to "options", from where retry_job takes them back. A job has
-- one alert: that of a failure or an expiry is not among them.
UPDATE {schema}scheduled_jobs SET
    on_end  = NULL,
    options = CASE WHEN {retriable_on_end} <> jsonb_build_object()
        THEN {options_after_end}
            || jsonb_build_object('ended', {taken_at_end} || jsonb_build_object('on_end', {retriable_on_end}))
        ELSE options END
WHERE job_id = ANY ($1) AND finished_at IS NOT NULL
RETURNING job_id;

-- name: find_ended
-- route: reserved
-- Return at most $1 jobs that have ended and whose consequences have not been applied, without the jobs $2.
SELECT job_id
FROM {schema}scheduled_jobs
WHERE finished_at IS NOT NULL AND on_end IS NOT NULL AND NOT {may_run_on} AND job_id <> ALL ($2)
LIMIT $1;

-- name: report_ends
-- route: caller
-- Record that attempts (numbers $2) of jobs ($1) that were ended before have really ended, on worker $3.
WITH place AS MATERIALIZED ({places})
UPDATE {schema}scheduled_jobs SET on_end = on_end - 'alive'
WHERE job_id = ANY ($1)
  AND finished_at IS NOT NULL
  AND worker_id = $3
  AND attempt = ($2::integer[])[{place}]
  AND {may_run_on}
RETURNING job_id;

-- name: report_gone
-- route: tuned
-- Record the end of at most $4 attempts whose worker is gone, or that worker $1 no longer knows.
--
-- $2 maps the jobs that worker $1 knows to their attempts. It does not know the jobs of a claim yet whose response is on
-- its way, so only jobs count that ended 30 seconds ago. A job without a worker was cancelled while it waited. Its
-- consequences wait for the end of other jobs, and not for an attempt.
WITH known AS MATERIALIZED (SELECT $2::text::jsonb AS attempts),
gone AS MATERIALIZED (
    SELECT job_id
    FROM {schema}scheduled_jobs AS job
    WHERE finished_at IS NOT NULL
      AND on_end IS NOT NULL
      AND {may_run_on}
      AND (worker_id IS NOT NULL
           OR NOT EXISTS (SELECT FROM {schema}scheduler_after AS edge WHERE edge.child_id = job.job_id OFFSET 0))
      AND (NOT EXISTS (SELECT FROM {schema}scheduler_workers AS worker WHERE worker.worker_id = job.worker_id)
           OR worker_id = $1
              AND finished_at < (coalesce($3, {now}) - interval '30 seconds')
              AND (((SELECT attempts FROM known) ->> job_id)::integer = attempt) IS NOT TRUE){left_out}
    LIMIT $4
    FOR NO KEY UPDATE SKIP LOCKED
),
changed AS (
    UPDATE {schema}scheduled_jobs SET on_end = on_end - 'alive'
    WHERE job_id = ANY (ARRAY (SELECT job_id FROM gone))
    RETURNING job_id
)
SELECT job_id FROM changed;
