-- Rows of scheduler_steps count for jobs that have the mark "steps" in their options. The statement that marks a job
-- deletes the rows of an earlier job of its id.

-- fragment: marked_options
CASE WHEN jsonb_typeof(options) = 'object' THEN options ELSE jsonb_build_object() END
        || jsonb_build_object('steps', 0)

-- Whether a job that is marked may have one more row: at most $4, with $5 bytes. Results of others are not counted.

-- fragment: has_room_for_signal
(
        SELECT count(*) < $4::bigint AND coalesce(sum(pg_column_size(value)), 0) + octet_length($3::text) <= $5::bigint
        FROM {schema}scheduler_steps
        WHERE job_id = $1 AND name <> $2 AND kind <> 'result'
    )

-- name: store_signal
-- route: caller
-- Store the value $3 of the signal $2 for an unfinished job ($1); return whether a wait for it is stored, or no row.
--
-- A signal to a job that is not marked locks the row of the job until the commit. find_signal has the reason for no
-- row, but for one: another session has marked the job meanwhile, which this snapshot lacks.
WITH marked AS (
    UPDATE {schema}scheduled_jobs SET options = {marked_options}
    WHERE job_id = $1 AND finished_at IS NULL AND (options -> 'steps') IS NULL
    RETURNING job_id, attempt
),
stale AS (
    DELETE FROM {schema}scheduler_steps WHERE job_id = (SELECT job_id FROM marked) AND name <> $2
),
job AS (
    SELECT job_id, attempt FROM marked
    UNION ALL
    SELECT job_id, attempt
    FROM {schema}scheduled_jobs
    WHERE job_id = $1 AND finished_at IS NULL AND (options -> 'steps') IS NOT NULL AND {has_room_for_signal}
)
INSERT INTO {schema}scheduler_steps AS step (job_id, name, kind, value, attempt, started_at, ended_at)
SELECT job_id, $2, 'signal', ($3::text)::jsonb, attempt, coalesce($6, now()), coalesce($6, now())
FROM job
ON CONFLICT (job_id, name) DO UPDATE SET
    kind       = EXCLUDED.kind,
    value      = EXCLUDED.value,
    until      = CASE WHEN EXISTS (SELECT FROM marked) THEN EXCLUDED.until ELSE step.until END,
    started_at = CASE WHEN EXISTS (SELECT FROM marked) THEN EXCLUDED.started_at ELSE step.started_at END,
    ended_at   = EXCLUDED.ended_at
WHERE step.kind = 'signal' AND step.ended_at IS NULL OR EXISTS (SELECT FROM marked)
RETURNING until IS NOT NULL AS was_awaited;

-- name: find_signal
-- route: caller
-- Return why store_signal stored no signal $2 for a job ($1): no row if there is no such job.
SELECT finished_at IS NOT NULL AS has_ended,
    (options -> 'steps') IS NULL OR {has_room_for_signal} AS has_room,
    (options -> 'steps') IS NOT NULL AND EXISTS (
        SELECT FROM {schema}scheduler_steps AS step
        WHERE step.job_id = $1 AND step.name = $2 AND (step.kind <> 'signal' OR step.ended_at IS NOT NULL)
    ) AS is_taken
FROM {schema}scheduled_jobs
WHERE job_id = $1;

-- name: wake_signalled
-- route: caller
-- Make a suspended job ($1) due now whose wait store_signal has ended, and return when that is.
--
-- A statement of its own: store_signal may have waited for a transaction that suspends the job, which its snapshot lacks.
UPDATE {schema}scheduled_jobs SET execution_time = coalesce($2, now())
WHERE job_id = $1 AND status = 'pending' AND blocked_on IS NULL AND execution_time > coalesce($2, now())
RETURNING execution_time AS due;

-- name: job_name
-- route: pool
-- Return the name of a job.
SELECT job_name FROM {schema}scheduled_jobs WHERE job_id = $1;
