-- name: crash_counts
-- route: reserved
-- Return how often these jobs have crashed.
SELECT job_id, crash_count FROM {schema}scheduled_jobs WHERE job_id = ANY ($1);

-- name: find_cancelled
-- route: reserved
-- Return which of the jobs $1 were cancelled while these attempts of them ($2) ran.
WITH place AS MATERIALIZED ({places})
SELECT job.job_id
FROM {schema}scheduled_jobs AS job
WHERE job_id = ANY ($1)
  AND errors @> jsonb_build_array(
      jsonb_build_object('attempt', ($2::integer[])[{place}], 'outcome', 'cancelled')
  );

-- name: settle_jobs
-- route: caller
-- Write the row changes of attempts that ended and suspend no job: arrays of ids, attempts, statuses, errors, delays in
-- seconds, retries, crashes, and ($10) entries of the history, NULL for none.
--
-- A job that is snoozed for the reason of the last entry, as while it waits for an advisory lock, replaces that entry. A job
-- with steps notes the attempt that failed last, however long its history gets afterwards: see is_renewed.
--
-- Each change is fenced by worker ($8) and attempt. A job that becomes pending gets its whole misfire grace
-- time again. Each row looks up its place in the arrays in an object that is built once. A join by id could
-- become a scan under a plan that was made for an empty table; a join by ctid would miss a row that a
-- heartbeat has just moved. OFFSET 0 keeps the planner from repeating the lookup for each column.
WITH place AS MATERIALIZED ({places})
{settled_rows}
RETURNING job_id, {has_consequences_now};

-- fragment: settled_rows
UPDATE {schema}scheduled_jobs AS job SET (
    status, error_message, retry_count, crash_count, execution_time, expires_at,
    finished_at, worker_id, started_at, last_heartbeat, lease_until, on_end, options, errors
) = (
    SELECT
        change.status,
        CASE WHEN change.status <> 'completed' THEN coalesce(change.error, job.error_message) END,
        greatest(least(job.retry_count, 2147483646) + ($6::integer[])[change.n], 0),
        least(job.crash_count, 2147483646) + ($7::integer[])[change.n],
        CASE WHEN change.delay > 0 THEN coalesce($9, {now}) + make_interval(secs => change.delay)
            ELSE job.execution_time END,
        CASE WHEN change.status = 'pending'
            THEN coalesce($9, {now}) + make_interval(secs => change.delay + job.misfire_grace_time)
            ELSE job.expires_at END,
        CASE WHEN change.status <> 'pending' THEN coalesce($9, {now}) END,
        CASE WHEN change.status <> 'pending' THEN job.worker_id END,
        CASE WHEN change.status <> 'pending' THEN job.started_at END,
        CASE WHEN change.status <> 'pending' THEN job.last_heartbeat END,
        NULL::timestamptz,
        CASE WHEN change.status = ANY (ARRAY ['failed', 'cancelled']) THEN {on_end_with_result} ELSE job.on_end END,
        CASE WHEN (job.options -> 'steps') IS NOT NULL
                AND (change.entry::jsonb ->> 'outcome') = ANY (ARRAY ['error', 'timeout', 'refused'])
            THEN job.options || jsonb_build_object('failed_in', job.attempt) ELSE job.options END,
        CASE WHEN change.entry IS NULL THEN job.errors
            ELSE CASE WHEN (change.entry::jsonb ->> 'outcome') = 'snoozed' AND (change.entry::jsonb -> 'message') IS NOT NULL
                    AND (job.errors #> ARRAY ['-1']) @> change.entry::jsonb THEN job.errors #- ARRAY ['-1']
                ELSE {kept_errors} END || jsonb_build_array(change.entry::jsonb || {entry_of_attempt}
                || jsonb_build_object('ended_at', coalesce($9, {now}))) END
    FROM (
        SELECT
            at.n, ($3::text[])[at.n] AS status, ($4::text[])[at.n] AS error,
            ($5::double precision[])[at.n] AS delay, ($10::text[])[at.n] AS entry
        FROM (SELECT {place} AS n OFFSET 0) AS at
        OFFSET 0
    ) AS change
)
WHERE job_id = ANY ($1)
  AND job.status = 'running'
  AND worker_id = $8
  AND attempt = ($2::integer[])[{place}]
  AND {has_no_coming_definition}
  AND NOT {attempt_is_revoked}

-- fragment: has_consequences_now
on_end IS NOT NULL AND finished_at IS NOT NULL AS has_consequences

-- name: settle_failed
-- route: caller
-- Write row changes as settle_jobs does, some of which are failures; $11 has the texts by which these count.
WITH place AS MATERIALIZED ({places}),
ended AS (
    {settled_rows}
    RETURNING job_id, {named}, status, worker_id, finished_at, ($11::text[])[{place}] AS text, {has_consequences_now}
){counted_failures}
SELECT job_id, has_consequences FROM ended;

-- name: settle_suspended
-- route: caller
-- Suspend jobs, fenced like settle_jobs: arrays of ids, attempts, changes of the retries, times at which they are due,
-- and ($7) JSON arrays of the names of the steps that they wait for, and ($8) what these wait for.
--
-- The names are the mark of the suspension. A signal and the end of a child make only a job due that waits for them, and
-- no job that waits for its retry. "is_early": the server's clock was set back after the last step of the job.
WITH place AS MATERIALIZED ({places})
UPDATE {schema}scheduled_jobs AS job SET
    status         = 'pending',
    retry_count    = greatest(least(job.retry_count, 2147483646) + ($3::integer[])[{place}], 0),
    execution_time = greatest(($4::timestamptz[])[{place}], coalesce($6, {now})),
    expires_at     = coalesce($6, {now}) + make_interval(secs => job.misfire_grace_time),
    worker_id      = NULL,
    started_at     = NULL,
    last_heartbeat = NULL,
    lease_until    = NULL,
    options        = {options_object} || jsonb_build_object('suspended', jsonb_build_object(
        'attempt', job.attempt, 'kind', ($8::text[])[{place}], 'steps', (($7::text[])[{place}])::jsonb))
WHERE job_id = ANY ($1)
  AND job.status = 'running'
  AND worker_id = $5
  AND attempt = ($2::integer[])[{place}]
  AND {has_no_coming_definition}
  AND NOT {attempt_is_revoked}
RETURNING job_id, EXISTS (
    SELECT FROM {schema}scheduler_steps AS step
    WHERE step.job_id = job.job_id AND step.kind <> 'result'
      AND {last_write} > (coalesce($6, {now}) + interval '5 seconds') AND {last_write} < {last_day}
) AS is_early;

-- name: set_back_suspended
-- route: caller
-- Set back the steps of jobs ($1) that settle_suspended has just written as early, and the due times by their waits.
--
-- correct_waits finds no such job: it ran, or had ended, when the clock was set back. A suspension is the only way to
-- wait for a timeout for longer than an attempt lasts, so no wait keeps one of the future. It waits for no lock: a wait
-- whose signal is being stored is due in a second, by look_at_waits.
WITH ahead AS MATERIALIZED (
    SELECT step.job_id, max({last_write}) - coalesce($2, {now}) AS ahead
    FROM {schema}scheduler_steps AS step
    WHERE step.job_id = ANY ($1) AND step.kind <> 'result' AND {last_write} < {last_day}
    GROUP BY step.job_id
),
early AS MATERIALIZED (
    SELECT step.ctid, ahead.ahead, coalesce($2, {now}) AS now
    FROM ahead
    JOIN {schema}scheduler_steps AS step ON step.job_id = ahead.job_id
    WHERE step.job_id = ANY ($1)
      AND step.kind <> 'result' AND {last_write} > coalesce($2, {now}) AND {last_write} < {last_day}
    ORDER BY step.job_id, step.name
    FOR NO KEY UPDATE OF step SKIP LOCKED
),
wait AS (
    UPDATE {schema}scheduler_steps AS step SET
        {times_set_back}
    FROM early
    WHERE step.ctid = early.ctid
    RETURNING step.job_id, step.name, step.kind, step.until, step.ended_at
)
UPDATE {schema}scheduled_jobs AS job SET execution_time = greatest(coalesce($2, {now}), least(job.execution_time, (
    SELECT min(until) FROM wait
    WHERE wait.job_id = job.job_id AND wait.kind = ANY (ARRAY ['signal', 'retry']) AND wait.ended_at IS NULL
      AND ({suspension}) @> to_jsonb(wait.name)
)))
WHERE job.job_id = ANY ($1) AND job.status = 'pending';

-- name: lock_settled
-- route: caller
-- Lock the rows that the outcomes of jobs ($1) change, and return the jobs of which another transaction holds one.
--
-- Those that end ($2) change the jobs that wait for them, and their schedules. SKIP LOCKED: it waits for no row. The
-- rows that are held are looked up in an object: hundreds of thousands of jobs may wait for one, and an array would be
-- read from its begin for each.
WITH held AS MATERIALIZED (
    SELECT job_id, on_end, options
    FROM {schema}scheduled_jobs
    WHERE job_id = ANY ($1)
    FOR NO KEY UPDATE SKIP LOCKED
),
edge AS MATERIALIZED (
    SELECT parent_id, child_id FROM {schema}scheduler_after WHERE parent_id = ANY ($2)
    UNION ALL
    SELECT job_id, options #>> ARRAY ['child_of', 'job']
    FROM held
    WHERE job_id = ANY ($2) AND (on_end -> 'child') IS NOT NULL AND (options -> 'child_of') IS NOT NULL
),
child AS MATERIALIZED (
    SELECT job_id
    FROM {schema}scheduled_jobs
    WHERE job_id = ANY (ARRAY (SELECT child_id FROM edge))
    FOR NO KEY UPDATE SKIP LOCKED
),
planned AS MATERIALIZED (
    SELECT job_id, coalesce(on_end ->> 'fixed_delay', options ->> 'schedule_id') AS schedule_id
    FROM held
    WHERE job_id = ANY ($2) AND ((on_end -> 'schedule') IS NOT NULL OR (on_end -> 'fixed_delay') IS NOT NULL)
),
schedule AS MATERIALIZED (
    SELECT schedule_id
    FROM {schema}scheduler_schedules
    WHERE schedule_id = ANY (ARRAY (SELECT schedule_id FROM planned))
    FOR UPDATE SKIP LOCKED
)
SELECT job.job_id
FROM {schema}scheduled_jobs AS job
WHERE job.job_id = ANY ($1) AND ((SELECT jsonb_object_agg(job_id, true) FROM held) -> job.job_id) IS NULL
UNION
SELECT edge.parent_id
FROM edge
WHERE ((SELECT jsonb_object_agg(job_id, true) FROM child) -> edge.child_id) IS NULL
  AND EXISTS (SELECT FROM {schema}scheduled_jobs AS job WHERE job.job_id = edge.child_id OFFSET 0)
UNION
SELECT planned.job_id
FROM planned
JOIN {schema}scheduler_schedules AS row ON row.schedule_id = planned.schedule_id
WHERE ((SELECT jsonb_object_agg(schedule_id, true) FROM schedule) -> planned.schedule_id) IS NULL;

-- name: already_settled
-- route: caller
-- Return the ids of changes ($1, $2 attempts, $3 statuses) that are in their rows: the answer was lost.
WITH place AS MATERIALIZED ({places})
SELECT job_id
FROM {schema}scheduled_jobs
WHERE job_id = ANY ($1)
  AND status = ($3::text[])[{place}]
  AND worker_id = $4
  AND attempt = ($2::integer[])[{place}]
  AND finished_at IS NOT NULL;

-- name: lock_held
-- route: caller
-- Lock the rows of those attempts ($1, $2 attempts) that worker $3 still holds although they were just updated, and
-- return the triggers that may have suppressed that.
--
-- Bits of tgtype: 1 for each row, 2 before, 16 update.
WITH place AS MATERIALIZED ({places})
SELECT job.job_id, ARRAY (
    SELECT tgname::text
    FROM pg_catalog.pg_trigger
    WHERE tgrelid = job.tableoid AND tgenabled <> 'D' AND tgtype & 19 = 19
    ORDER BY tgname
) AS triggers
FROM {schema}scheduled_jobs AS job
WHERE job_id = ANY ($1)
  AND job.status = 'running'
  AND worker_id = $3
  AND attempt = ($2::integer[])[{place}]
FOR NO KEY UPDATE OF job;

-- name: delete_completed
-- route: caller
-- Delete those of the jobs $1 that have completed and whose consequences are applied, and return their ids.
--
-- One that was replaced is pending again. One that another transaction holds, since it adds jobs that wait for it, is
-- left to the vacuum.
WITH gone AS (
    DELETE FROM {schema}scheduled_jobs
    WHERE ctid = ANY (ARRAY (
        SELECT ctid
        FROM {schema}scheduled_jobs
        WHERE job_id = ANY ($1) AND status = 'completed' AND on_end IS NULL
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING job_id, status, attempt, finished_at, (options -> 'steps') IS NOT NULL AS is_marked
),
steps AS (
    DELETE FROM {schema}scheduler_steps WHERE job_id = ANY (ARRAY (SELECT job_id FROM gone WHERE is_marked))
),
results AS (
    {delete_former_results}
)
SELECT job_id FROM gone;

-- name: apply_replacements
-- route: caller
-- Give the rows of attempts that ended ($1, $2 attempts) the new definitions that waited for that.
--
-- Fenced like settle_jobs. Fails for a definition that no row can hold. "reason" is why a definition is to be cancelled
-- that has waited for another job in vain: the same transaction cancels the job, and writes a message for people instead.
WITH place AS MATERIALIZED ({places})
UPDATE {schema}scheduled_jobs AS job SET (
    status, job_name, execution_time, task_data, priority, max_retries, misfire_grace_time, timeout_seconds,
    function, lock_key, expires_at, retry_count, crash_count, error_message, worker_id, started_at,
    last_heartbeat, lease_until, progress, errors, unique_key, blocked_on, options, on_end
) = (
    SELECT
        'pending', new ->> 'job_name', (new ->> 'execution_time')::timestamptz, new -> 'task_data',
        (new ->> 'priority')::integer, (new ->> 'max_retries')::integer,
        (new ->> 'misfire_grace_time')::integer, (new ->> 'timeout_seconds')::double precision,
        new ->> 'function', (new ->> 'lock_key')::bigint,
        greatest((new ->> 'execution_time')::timestamptz, coalesce($4, {now}))
            + make_interval(secs => (new ->> 'misfire_grace_time')::integer),
        0, 0, new ->> 'reason', NULL, NULL::timestamptz, (new ->> 'given_at')::timestamptz, NULL::timestamptz, NULL::jsonb,
        jsonb_path_query_array_tz(errors, {ended_by_hand}, jsonb_build_object('attempt', NULL::integer,
            'since', to_char(coalesce($4, {now}) - interval '2 seconds', {instant_format}))),
        new ->> 'unique_key', new ->> 'blocked_on',
        CASE WHEN jsonb_typeof(new -> 'options') = 'object' THEN new -> 'options' END,
        CASE WHEN kept || own <> jsonb_build_object() THEN kept || own END
    FROM (
        SELECT errors, definition AS new, on_end - {definition_keys} AS kept,
            CASE WHEN jsonb_typeof(definition -> 'on_end') = 'object'
                THEN definition -> 'on_end' ELSE jsonb_build_object() END AS own
        FROM (SELECT {coming_definition} AS definition) AS coming
    ) AS waiting
)
WHERE job_id = ANY ($1)
  AND status = 'running'
  AND worker_id = $3
  AND attempt = ($2::integer[])[{place}]
  AND ({coming_definition}) IS NOT NULL
RETURNING job_id, {bounded_due}, coalesce(blocked_on, '') = 'after' AS waits, error_message AS reason,
    (options -> 'steps') IS NOT NULL AS is_marked;

-- name: release_revoked
-- route: caller
-- Make the jobs pending whose attempts ($1, $2 attempts) were revoked by hand and have ended, whatever their outcomes are.
--
-- Fenced like settle_jobs. The head of a sequence keeps its place, and any other job waits for its own again. The history
-- has the end of the attempt, which the correction of due times needs.
WITH place AS MATERIALIZED ({places})
UPDATE {schema}scheduled_jobs AS job SET
    status         = 'pending',
    worker_id      = NULL,
    started_at     = NULL,
    last_heartbeat = NULL,
    lease_until    = NULL,
    expires_at     = least(greatest(execution_time, coalesce($4, {now})), {last_instant})
        + make_interval(secs => misfire_grace_time),
    blocked_on     = CASE WHEN ({head_of_its_sequence} = job.job_id) IS NOT TRUE THEN {sequence_key} END,
    errors         = CASE WHEN {has_entry} THEN job.errors
        ELSE {kept_errors} || jsonb_build_array({entry_of_attempt}
            || jsonb_build_object('outcome', 'released', 'ended_at', coalesce($4, {now}))) END,
    on_end         = on_end - 'alive'
WHERE job_id = ANY ($1)
  AND status = 'running'
  AND worker_id = $3
  AND attempt = ($2::integer[])[{place}]
  AND {has_no_coming_definition}
  AND {attempt_is_revoked}
RETURNING job_id, {bounded_due};

-- name: refuse_replacement
-- route: caller
-- Fail a job whose new definition no row can hold: it was written by hand. $6 is the entry of the history, $7 the text
-- by which the failure counts.
WITH ended AS (
    UPDATE {schema}scheduled_jobs AS job SET
        status        = 'failed',
        error_message = $4,
        errors        = {kept_errors} || jsonb_build_array($6::text::jsonb || {entry_of_attempt}
            || jsonb_build_object('ended_at', coalesce($5, {now}))),
        finished_at   = coalesce($5, {now}),
        lease_until   = NULL,
        options       = CASE WHEN {dropped_mark} IS NULL THEN options ELSE {options_with_mark} END,
        on_end        = {on_end_with_result} - ARRAY ['replacement', 'in_vain']
    WHERE job_id = $1
      AND status = 'running'
      AND worker_id = $2
      AND attempt = $3
      AND ({coming_definition}) IS NOT NULL
    RETURNING job_id, {named}, status, worker_id, finished_at, $7::text AS text
){counted_failures}
SELECT job_id FROM ended;

-- name: complete_own
-- route: caller
-- Complete a job in the transaction of its own code, fenced by worker ($2) and attempt; return its id.
--
-- A row that another session has locked is left, so that the transaction does not wait for it with its own locks.
-- settle_jobs decides about a refused job: it is lost, or its end has consequences. So it is at another isolation level,
-- which the code may have set, and which the caller of this statement refuses.
UPDATE {schema}scheduled_jobs SET
    status        = 'completed',
    finished_at   = coalesce($4, {now}),
    error_message = NULL,
    lease_until   = NULL
WHERE job_id = ANY (ARRAY (
    SELECT job_id FROM {schema}scheduled_jobs
    WHERE job_id = $1 AND worker_id = $2 AND attempt = $3 AND status = 'running' AND on_end IS NULL
      AND current_setting('transaction_isolation') = 'read committed'
    FOR NO KEY UPDATE SKIP LOCKED
))
RETURNING job_id;

-- name: has_committed
-- route: reserved
-- Return whether the transaction $4 has been committed, in which attempt $3 of worker $2 completed the job $1.
--
-- The row may be that of a later attempt. If the completion was rolled back to a savepoint, the attempt holds the job
-- still. A server that has taken over may not know the transaction: txid_status() would raise an error then.
SELECT CASE WHEN $4::bigint < txid_snapshot_xmax(txid_current_snapshot()) THEN txid_status($4) = 'committed' END IS TRUE
    AND NOT EXISTS (
        SELECT FROM {schema}scheduled_jobs
        WHERE job_id = $1 AND worker_id = $2 AND attempt = $3 AND status = 'running'
    ) AS has_committed;

-- name: was_rolled_back
-- route: reserved
-- Return whether attempt $3 of worker $2 holds the job $1 still, which it has completed in the transaction $4.
--
-- $4 is NULL on the connection of that transaction, which sees what is left of it, also after a rollback to a savepoint.
-- On other connections, that transaction must have ended before this statement began.
SELECT ($4::bigint IS NULL OR txid_visible_in_snapshot($4, txid_current_snapshot())) AND EXISTS (
    SELECT FROM {schema}scheduled_jobs
    WHERE job_id = $1 AND worker_id = $2 AND attempt = $3 AND status = 'running'
) AS was_rolled_back;

-- name: transaction_id
-- route: caller
-- Return the id of the current transaction.
SELECT txid_current() AS id;
