-- name: lock_batch
-- route: caller
-- Lock those of the jobs $1 that exist, in the order of all statements that lock several, and return them. A transaction
-- that adds jobs after them has locked their keys, and may stay open.
SELECT job_id, {named}, status
FROM {schema}scheduled_jobs
WHERE job_id = ANY ($1::text[])
ORDER BY job_id COLLATE "C"
FOR NO KEY UPDATE;

-- name: job_versions
-- route: pool
-- Return those of the jobs $1 that exist, each with a text that changes with its state and its definition.
--
-- Of the options, only those that a definition has: the others change while an attempt runs. Numbers stand for instants,
-- whose texts depend on the session.
SELECT job_id, encode(sha256(convert_to(jsonb_build_array(
        job_name, function, status, attempt, extract(epoch FROM execution_time), extract(epoch FROM created_at),
        extract(epoch FROM finished_at), task_data, priority, max_retries, misfire_grace_time, timeout_seconds::numeric,
        unique_key, options -> 'schedule_id', options -> 'fire_time', options -> 'deadline', options -> 'keep_result',
        options -> 'definition', on_end -> 'replacement', on_end -> 'in_vain'
    )::text, 'UTF8')), 'hex') AS version
FROM {schema}scheduled_jobs
WHERE job_id = ANY ($1::text[]);

-- name: begin_run
-- route: caller
-- Write that the run $1 is started or resumed by the actor $2 with the jobs $3; return how often it has begun.
INSERT INTO {schema}scheduler_bulk_runs AS run (
    run_id, created_by, actor, jobs, begun, created_at, started_at, last_at, answered_at
)
VALUES (
    left($1, 500), $2, $2, $3::text::jsonb, 1, coalesce($4, {now}), coalesce($4, {now}), coalesce($4, {now}),
    coalesce($4, {now})
)
ON CONFLICT (run_id) DO UPDATE SET
    actor       = excluded.actor,
    jobs        = excluded.jobs,
    begun       = run.begun + 1,
    started_at  = excluded.started_at,
    last_at     = excluded.last_at,
    answered_at = excluded.answered_at,
    phase       = CASE WHEN run.phase = 'complete' THEN run.phase ELSE 'running' END,
    error       = NULL
RETURNING begun;

-- name: advance_run
-- route: caller
-- Write that a batch of the run $1 from $2 to $3 changed $4 jobs; return how many jobs the run has changed.
--
-- It changes nothing if another batch of the run began at $2. It comes last in its transaction, so that a run can be
-- stopped and resumed while its batch waits for a job.
INSERT INTO {schema}scheduler_bulk_runs AS run (
    run_id, created_by, actor, created_at, started_at, last_at, answered_at, phase, batches, cursor, done, searched,
    total_estimate
)
VALUES (
    left($1, 500), $7, $7, coalesce($8, {now}), coalesce($8, {now}), coalesce($8, {now}), coalesce($8, {now}),
    CASE WHEN $3::text IS NULL THEN 'complete' ELSE 'running' END, 1, $3, $4, $5, $6
)
ON CONFLICT (run_id) DO UPDATE SET
    phase          = CASE WHEN excluded.cursor IS NULL THEN 'complete' ELSE run.phase END,
    last_at        = excluded.last_at,
    answered_at    = excluded.answered_at,
    batches        = run.batches + 1,
    cursor         = excluded.cursor,
    done           = run.done + excluded.done,
    searched       = excluded.searched,
    total_estimate = excluded.total_estimate
WHERE run.batches = 0 OR run.cursor = $2
RETURNING done;

-- name: stop_run
-- route: caller
-- Request of the run $1 to stop after the batch in progress.
UPDATE {schema}scheduler_bulk_runs SET
    phase   = CASE WHEN phase = 'running' THEN 'stopping' ELSE phase END,
    last_at = coalesce($2, {now})
WHERE run_id = left($1, 500);

-- name: end_run
-- route: caller
-- Write that the run $1 has ended, with the error $3 or NULL, unless it has begun again since $2; return how far it is.
UPDATE {schema}scheduler_bulk_runs SET
    phase       = CASE WHEN phase = 'complete' THEN phase ELSE 'stopped' END,
    error       = $3,
    last_at     = coalesce($4, {now}),
    answered_at = coalesce($4, {now})
WHERE run_id = left($1, 500) AND begun = $2
RETURNING phase, done, searched, total_estimate;

-- name: read_run
-- route: pool
-- Return a bulk run that people started.
SELECT {bulk_run_columns}
FROM {schema}scheduler_bulk_runs
WHERE run_id = left($1, 500) AND jobs IS NOT NULL;

-- name: recent_runs
-- route: pool
-- Return the $1 bulk runs that people started last, the newest first, among the newest $2 of all.
SELECT {bulk_run_columns}
FROM (
    SELECT *
    FROM {schema}scheduler_bulk_runs
    ORDER BY created_at DESC
    LIMIT $2
) AS run
WHERE jobs IS NOT NULL
ORDER BY created_at DESC, run_id
LIMIT $1;

-- fragment: bulk_run_columns
run_id, jobs::text AS details, begun, actor, created_by,
    least(greatest(created_at, {first_instant}), {last_instant}) AS created_at,
    least(greatest(started_at, {first_instant}), {last_instant}) AS started_at,
    least(greatest(last_at, {first_instant}), {last_instant}) AS last_at,
    least(greatest(answered_at, {first_instant}), {last_instant}) AS answered_at,
    phase, cursor, done, searched, total_estimate, error
