-- Rows of scheduler_steps count for jobs that have the mark "steps" in their options. The statement that marks a job
-- deletes the rows of an earlier job of its id.

-- fragment: options_object
CASE WHEN jsonb_typeof(options) = 'object' THEN options ELSE jsonb_build_object() END

-- Whether a step waits for children, whose ids are its value. Several edges are one probe.

-- fragment: awaits_children
step.kind = 'child' AND step.ended_at IS NULL AND EXISTS (
        SELECT FROM {schema}scheduler_after AS edge
        WHERE edge.child_id = step.job_id AND step.value @> to_jsonb(edge.parent_id)
        OFFSET 0
    )

-- The rows of the step $2 of the jobs $1, of which those without the mark count for nothing.

-- fragment: named_steps
{schema}scheduler_steps AS step
    JOIN {schema}scheduled_jobs AS job ON job.job_id = step.job_id
    WHERE step.job_id = ANY ($1) AND step.name = $2 AND step.kind <> 'result' AND (job.options -> 'steps') IS NOT NULL

-- name: load_steps
-- route: step
-- Return the steps of the job $1, if it is marked; without the results of other jobs that were passed to it.
SELECT name, kind, value::text AS value, ended_at IS NOT NULL AS has_ended, {bounded_until} AS until,
    extract(epoch FROM {bounded_until} - coalesce($2, now()))::double precision AS left_s,
    {awaits_children} AS is_awaited, coalesce(timeouts, ARRAY[]::timestamptz[]) AS timeouts
FROM {schema}scheduler_steps AS step
WHERE job_id = $1
  AND kind <> 'result'
  AND EXISTS (SELECT FROM {schema}scheduled_jobs AS job WHERE job.job_id = $1 AND (job.options -> 'steps') IS NOT NULL);

-- name: store_step
-- route: step
-- Store the step $4 of kind $5 with the value $6, for the attempt $3 of the job $1 that the worker $2 runs.
--
-- $7 is the version of the task. Of a step that waits, $8 is its length in seconds or $9 its end; both are NULL for
-- other steps. No row: the attempt does not hold its job any more. A NULL kind: the name is that of a step of another
-- kind, or $11 and the step exists: the answer to a commit was lost, which is about to succeed or has. Otherwise the
-- step as it is stored: a sleep or wait that exists keeps its end, and its value.
--
-- The lock of the job's row orders this with reclaiming, cancelling and replacing: either the step is committed first,
-- and the next attempt, claimed later, loads it; or the row has changed, and nothing is stored. The first step marks
-- the job. Older rows of its id, of a job before it, are deleted then; one of the same name is overwritten. Each step
-- is progress, which a job that kills its workers does not make, so the crashes before it do not count any more.
--
-- started_at is the order of the steps, also of those of one transaction, and while the clock is behind an earlier step
-- because it was set back.
WITH held AS (
    SELECT job_id, (options -> 'steps') IS NULL AS is_unmarked,
        coalesce(options -> 'steps', '0') = '0' AS lacks_version, crash_count > 0 AS has_crashed
    FROM {schema}scheduled_jobs
    WHERE job_id = $1 AND worker_id = $2 AND attempt = $3 AND status = 'running'
    FOR NO KEY UPDATE
),
marked AS (
    UPDATE {schema}scheduled_jobs AS job SET
        options            = CASE WHEN held.lacks_version
            THEN {options_object} || jsonb_build_object('steps', $7::integer) ELSE options END,
        misfire_grace_time = NULL,
        expires_at         = NULL,
        crash_count        = 0
    FROM held
    WHERE job.job_id = held.job_id AND (held.lacks_version OR held.has_crashed)
),
stale AS (
    DELETE FROM {schema}scheduler_steps
    WHERE job_id = (SELECT job_id FROM held WHERE is_unmarked) AND name <> $4
),
stored AS (
    INSERT INTO {schema}scheduler_steps AS step (job_id, name, kind, value, attempt, until, started_at, ended_at)
    SELECT job_id, $4, $5, $6::text::jsonb, $3, at.until, at.started,
        CASE WHEN at.until > at.now THEN NULL ELSE at.started END
    FROM held, (
        SELECT coalesce($10, now()) AS now,
            greatest(coalesce($10, now()), (
                SELECT max(started_at) + interval '1 microsecond' FROM {schema}scheduler_steps
                WHERE job_id = $1 AND kind <> 'result' AND started_at >= coalesce($10, now())
            )) AS started,
            coalesce($9::timestamptz, coalesce($10, now()) + make_interval(secs => $8)) AS until
    ) AS at
    ON CONFLICT (job_id, name) DO UPDATE SET
        kind       = EXCLUDED.kind,
        attempt    = EXCLUDED.attempt,
        value      = CASE WHEN EXCLUDED.until IS NULL OR EXCLUDED.kind = 'child' OR (SELECT is_unmarked FROM held)
            THEN EXCLUDED.value ELSE step.value END,
        until      = CASE WHEN (SELECT is_unmarked FROM held) THEN EXCLUDED.until ELSE step.until END,
        started_at = CASE WHEN (SELECT is_unmarked FROM held) THEN EXCLUDED.started_at ELSE step.started_at END,
        ended_at   = CASE WHEN (SELECT is_unmarked FROM held) THEN EXCLUDED.ended_at ELSE step.ended_at END,
        timeouts   = CASE WHEN (SELECT is_unmarked FROM held) THEN NULL ELSE step.timeouts END
    WHERE (step.kind = EXCLUDED.kind AND NOT $11::boolean) OR (SELECT is_unmarked FROM held)
    RETURNING kind, value, until, ended_at
)
SELECT $4::text AS name, kind, value::text AS value, ended_at IS NOT NULL AS has_ended, {bounded_until} AS until,
    extract(epoch FROM {bounded_until} - coalesce($10, now()))::double precision AS left_s
FROM held LEFT JOIN stored ON true;

-- name: end_step
-- route: step
-- End the sleep or wait $4 of the job $1, for its attempt $3 on the worker $2; return whether it had not ended before.
--
-- No row: the attempt does not hold its job any more.
WITH held AS (
    SELECT job_id
    FROM {schema}scheduled_jobs
    WHERE job_id = $1 AND worker_id = $2 AND attempt = $3 AND status = 'running'
    FOR NO KEY UPDATE
),
ended AS (
    UPDATE {schema}scheduler_steps SET ended_at = coalesce($5, now())
    WHERE job_id = (SELECT job_id FROM held) AND name = $4 AND ended_at IS NULL
    RETURNING name
)
SELECT EXISTS (SELECT FROM ended) AS was_open FROM held;

-- name: repeat_wait
-- route: step
-- Let the wait $4 of the job $1 begin again, for its attempt $3 on the worker $2: after its timeout, or with another end.
--
-- It has timed out $5 times. $6 is its length in seconds or $7 its end. From now on it accepts a signal again. No row:
-- the attempt does not hold its job any more.
WITH held AS (
    SELECT job_id
    FROM {schema}scheduled_jobs
    WHERE job_id = $1 AND worker_id = $2 AND attempt = $3 AND status = 'running'
    FOR NO KEY UPDATE
),
repeated AS (
    UPDATE {schema}scheduler_steps AS step SET
        timeouts = CASE WHEN step.ended_at IS NULL THEN step.timeouts
            ELSE array_append(step.timeouts, {bounded_until}) END,
        attempt  = $3,
        until    = at.ending,
        ended_at = CASE WHEN at.ending > at.now THEN NULL ELSE at.now END
    FROM held, (
        SELECT coalesce($8, now()) AS now,
            coalesce($7::timestamptz, coalesce($8, now()) + make_interval(secs => $6)) AS ending
    ) AS at
    WHERE step.job_id = held.job_id
      AND step.name = $4
      AND step.kind = 'signal'
      AND step.value IS NULL
      AND coalesce(cardinality(step.timeouts), 0)
          = (CASE WHEN step.ended_at IS NULL THEN $5::integer ELSE $5::integer - 1 END)
)
SELECT true AS is_held FROM held;

-- name: is_locked_by
-- route: step
-- Return whether the transaction $2 lasts, and the row of the job $1 is locked.
WITH free AS (
    SELECT FROM {schema}scheduled_jobs WHERE job_id = $1 FOR NO KEY UPDATE SKIP LOCKED
)
SELECT coalesce(txid_status($2::bigint) = 'in progress', false) AND NOT EXISTS (SELECT FROM free);

-- name: delete_steps_from
-- route: caller
-- Delete the step $2 of jobs ($1) that retry_job has made pending, and the later ones; return the jobs that had it.
--
-- Of steps of one instant, such as two that ran at once, all are later. Signals that have come stay, unless
-- $2 names one: their senders do not repeat them. The first wait gets them then. A finished job waits for no other one, so its edges go.
WITH first AS (
    SELECT step.job_id, step.started_at
    FROM {named_steps}
),
deleted AS (
    DELETE FROM {schema}scheduler_steps AS step
    USING first
    WHERE step.job_id = first.job_id
      AND (step.name = $2 OR step.started_at >= first.started_at
           AND step.kind <> 'result' AND NOT (step.kind = 'signal' AND step.value IS NOT NULL))
),
freed AS (
    DELETE FROM {schema}scheduler_after WHERE child_id = ANY (ARRAY (SELECT job_id FROM first))
),
forgotten AS (
    UPDATE {schema}scheduler_steps AS step SET timeouts = NULL
    FROM first
    WHERE step.job_id = first.job_id
      AND step.name <> $2
      AND step.started_at >= first.started_at
      AND step.kind = 'signal'
      AND step.value IS NOT NULL
      AND step.timeouts IS NOT NULL
)
SELECT job_id FROM first;

-- name: find_steps
-- route: caller
-- Return those of the jobs $1 that have stored the step $2.
SELECT step.job_id FROM {named_steps};

-- fragment: has_room_for_signal
-- Whether a job that is marked may have one more row: at most $4, with $5 bytes. Results of others are not counted.
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
    UPDATE {schema}scheduled_jobs SET options = {options_object} || jsonb_build_object('steps', 0)
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
    ended_at   = EXCLUDED.ended_at,
    timeouts   = CASE WHEN EXISTS (SELECT FROM marked) THEN NULL ELSE step.timeouts END
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
-- A statement of its own: store_signal may have waited for look_at_waits, and its snapshot lacks that suspension.
-- A suspended job is due at the end of one of its steps, which a job that waits for its retry is not.
UPDATE {schema}scheduled_jobs AS job SET execution_time = coalesce($2, now())
WHERE job_id = $1 AND status = 'pending' AND blocked_on IS NULL AND execution_time > coalesce($2, now())
  AND EXISTS (
    SELECT FROM {schema}scheduler_steps AS step
    WHERE step.job_id = $1 AND {bounded_until} = job.execution_time
    OFFSET 0
)
RETURNING execution_time AS due;

-- name: look_at_waits
-- route: caller
-- Make jobs due again that settle_jobs has just suspended, if a signal came before; return when the first one is.
--
-- $1 and $2 are the ids and the names of the waits. It waits for no row: a job whose signal is being stored continues
-- in a second. "attempt = attempt" changes the row, so that a later signal at REPEATABLE READ, whose
-- snapshot lacks the suspension, fails instead of waking no one.
WITH wait AS MATERIALIZED (
    SELECT id, name FROM ROWS FROM (unnest($1::text[]), unnest($2::text[])) AS each (id, name)
),
held AS (
    UPDATE {schema}scheduler_steps SET attempt = attempt
    WHERE ctid = ANY (ARRAY (
        SELECT step.ctid
        FROM wait JOIN {schema}scheduler_steps AS step ON step.job_id = wait.id AND step.name = wait.name
        FOR UPDATE OF step SKIP LOCKED
    ))
    RETURNING job_id, ended_at IS NULL AS is_open
),
woken AS (
    UPDATE {schema}scheduled_jobs AS job SET execution_time = least(job.execution_time, coalesce($3, now())
        + make_interval(secs => CASE WHEN EXISTS (
            SELECT FROM held WHERE held.job_id = job.job_id AND NOT held.is_open
        ) THEN 0 ELSE 1 END))
    WHERE job.job_id = ANY ($1)
      AND job.status = 'pending'
      AND (SELECT count(*) FROM held WHERE held.job_id = job.job_id AND held.is_open)
          < (SELECT count(*) FROM wait WHERE wait.id = job.job_id)
    RETURNING job.execution_time
)
SELECT min(execution_time) AS due FROM woken;

-- name: adopt_children
-- route: caller
-- Lock the job $1, which the worker $2 runs in attempt $3. Return those of the jobs $4 that are none of its own, and
-- those that have completed and were deleted since, of which it has the results.
--
-- No row: the attempt does not hold its job any more. The ids of children follow from that of the job. One that is
-- older than the first child of this job belongs to an earlier job of the id, or to none. The caller replaces it, so
-- it is a new job from now on.
WITH held AS (
    SELECT job_id, (options -> 'steps') IS NOT NULL AS is_marked,
        CASE WHEN jsonb_typeof(options -> 'children') = 'number' THEN (options -> 'children')::numeric END AS since
    FROM {schema}scheduled_jobs
    WHERE job_id = $1 AND worker_id = $2 AND attempt = $3 AND status = 'running'
    FOR NO KEY UPDATE
),
marked AS (
    UPDATE {schema}scheduled_jobs
    SET options = {options_object} || jsonb_build_object('children', extract(epoch FROM coalesce($5, now())))
    WHERE job_id = (SELECT job_id FROM held WHERE since IS NULL)
),
adopted AS (
    UPDATE {schema}scheduled_jobs AS child SET created_at = coalesce($5, now())
    FROM held
    WHERE child.job_id = ANY ($4)
      AND extract(epoch FROM child.created_at) < coalesce(held.since, extract(epoch FROM coalesce($5, now())))
    RETURNING child.job_id
)
SELECT ARRAY (SELECT job_id FROM adopted) AS adopted,
    ARRAY (
        SELECT child.id
        FROM unnest($4::text[]) AS child (id)
        JOIN {schema}scheduler_steps AS step
            ON step.job_id = $1 AND step.name = ('child:' || encode(sha256(convert_to(child.id, 'UTF8')), 'hex'))
        WHERE held.is_marked
          AND (step.value ->> 'status') = 'completed'
          AND NOT EXISTS (SELECT FROM {schema}scheduled_jobs AS job WHERE job.job_id = child.id OFFSET 0)
    ) AS completed
FROM held;

-- name: block_waiting
-- route: caller
-- Let jobs wait for children that settle_jobs has just suspended; return when the first one is due that need not.
--
-- $1 and $2 are the ids and the names of the steps, $3 whether the job waits for other steps too. If so it is due at
-- the end of those, and its steps get that time, by which end_child_steps recognizes it. Else it is blocked. Whatever
-- ends a child locks the row that settle_jobs has locked: it is seen here, or sees what this statement writes.
WITH wait AS MATERIALIZED (
    SELECT id, name, is_timed
    FROM ROWS FROM (unnest($1::text[]), unnest($2::text[]), unnest($3::boolean[])) AS each (id, name, is_timed)
),
over AS MATERIALIZED (
    SELECT wait.id
    FROM wait LEFT JOIN {schema}scheduler_steps AS step ON step.job_id = wait.id AND step.name = wait.name
    WHERE ({awaits_children}) IS NOT TRUE
),
timed AS (
    UPDATE {schema}scheduler_steps AS step SET until = job.execution_time
    FROM wait JOIN {schema}scheduled_jobs AS job ON job.job_id = wait.id
    WHERE wait.is_timed AND step.job_id = wait.id AND step.name = wait.name AND step.ended_at IS NULL
),
changed AS (
    UPDATE {schema}scheduled_jobs AS job SET
        blocked_on     = CASE WHEN job_id = ANY (ARRAY (SELECT id FROM over)) THEN NULL ELSE 'after' END,
        execution_time = least(execution_time, coalesce($4, now()))
    WHERE job_id = ANY (ARRAY (SELECT id FROM wait WHERE NOT is_timed UNION ALL SELECT id FROM over))
      AND status = 'pending'
    RETURNING blocked_on, execution_time
)
SELECT min(execution_time) AS due FROM changed WHERE blocked_on IS NULL;

-- name: end_child_steps
-- route: caller
-- End those steps of the jobs $1 whose children have all ended; return when the first job is due that continues.
--
-- An earlier statement has locked the jobs and deleted the edges. A job that failed meanwhile, and is to be retried at
-- a time of its own, is left.
WITH ended AS (
    UPDATE {schema}scheduler_steps AS step SET ended_at = coalesce($2, now())
    WHERE job_id = ANY ($1) AND kind = 'child' AND ended_at IS NULL AND NOT ({awaits_children})
    RETURNING job_id, until
),
woken AS (
    UPDATE {schema}scheduled_jobs AS job SET blocked_on = NULL, execution_time = coalesce($2, now())
    WHERE job_id = ANY (ARRAY (SELECT job_id FROM ended))
      AND status = 'pending'
      AND (coalesce(blocked_on, '') = 'after' OR EXISTS (
          SELECT FROM ended WHERE ended.job_id = job.job_id AND ended.until = job.execution_time
      ))
    RETURNING execution_time
)
SELECT min(execution_time) AS due FROM woken;

-- name: job_name
-- route: pool
-- Return the name of a job.
SELECT job_name FROM {schema}scheduled_jobs WHERE job_id = $1;
