-- name: cancel_job
-- route: pool
-- Cancel a pending or running job and drop its replacement; return the worker to notify.
--
-- Where its end has consequences, it is cancelled only if $4, in a transaction that applies them. SELECT ... FOR
-- UPDATE first: RETURNING would show the new row.
WITH old AS (
    SELECT job_id, worker_id, status, {has_consequences} OR {keeps_result} AS has_consequences, {is_awaited} AS is_awaited
    FROM {schema}scheduled_jobs
    WHERE job_id = $1 AND finished_at IS NULL{within_lock_limit}
    FOR NO KEY UPDATE
),
changed AS (
    UPDATE {schema}scheduled_jobs AS job SET
        {cancelled_values}
    FROM old
    WHERE job.job_id = $1 AND job.job_id = old.job_id AND ($4::boolean OR NOT old.has_consequences)
    RETURNING job.job_id, {named}, job.attempt
)
SELECT changed.job_id IS NOT NULL AS changed,
    CASE WHEN old.status = 'running' THEN old.worker_id END AS worker_id, changed.job_name, changed.attempt,
    old.has_consequences
FROM old LEFT JOIN changed ON changed.job_id = old.job_id;

-- fragment: ended_suspended
(job.finished_at IS NOT NULL AND ({suspension}) IS NOT NULL)

-- name: set_status
-- route: pool
-- Set a status by hand, and return when the job is due, and the worker that runs it, to be notified of the loss.
--
-- 'running' is a reservation without a worker. It lasts one lease ($3); then the rescuer releases the job.
-- Where the end of the job has consequences, it is changed only if $6, as in cancel_job. A job
-- that ends without success and without an error gets the reason $5. A job that was suspended when it ended is due at
-- once if it becomes pending: what it waited for may have come meanwhile, which wakes no finished job. A job in a sequence
-- that becomes pending waits for its place, unless it is the head. If it runs, its worker stops the attempt first: until
-- then it stays running, since another job would start next to the attempt otherwise; see attempt_is_revoked. A job that is
-- reserved, and is not the head, waits for its place after that. A child of a step is changed only if $6 as well, in a transaction in which
-- wait_again follows. An ended job that becomes pending or running has the options that retry_job gives it.
WITH old AS (
    SELECT job_id, worker_id, status, {has_consequences} OR {keeps_result} AS has_consequences, {is_awaited} AS is_awaited,
        {parent_of_child} AS parent,
        CASE WHEN $4 = 'pending' AND (on_end -> 'sequence') IS NOT NULL AND CASE WHEN status = 'running' THEN {is_awaited}
                ELSE finished_at IS NOT NULL AND worker_id IS NOT NULL AND {may_run_on} END
            THEN 'running' ELSE $4 END AS next_status
    FROM {schema}scheduled_jobs
    WHERE job_id = $1{within_lock_limit}
    FOR NO KEY UPDATE
),
changed AS (
    UPDATE {schema}scheduled_jobs AS job SET
        status         = old.next_status,
        attempt        = CASE WHEN $4 = 'running' THEN job.attempt % 2147483647 + 1 ELSE job.attempt END,
        worker_id      = CASE WHEN $4 = 'running' THEN 'set by hand' WHEN old.next_status = 'pending' THEN NULL
            ELSE job.worker_id END,
        started_at     = CASE WHEN $4 = 'running' THEN coalesce($2, {now}) WHEN old.next_status = 'pending' THEN NULL
            ELSE job.started_at END,
        last_heartbeat = CASE WHEN $4 = 'running' THEN coalesce($2, {now}) WHEN old.next_status = 'pending' THEN
            CASE WHEN {ended_suspended} THEN coalesce($2, {now}) END
            ELSE job.last_heartbeat END,
        lease_until    = CASE WHEN $4 = 'running' THEN coalesce($2, {now}) + make_interval(secs => $3)
            WHEN old.next_status = 'running' THEN job.lease_until END,
        finished_at    = CASE WHEN $4 <> ALL (ARRAY ['pending', 'running']) THEN coalesce($2, {now}) END,
        execution_time = CASE WHEN $4 = 'pending' AND {ended_suspended}
            THEN least(job.execution_time, coalesce($2, {now})) ELSE job.execution_time END,
        expires_at     = CASE WHEN old.next_status = 'pending'
            THEN least(greatest(job.execution_time, coalesce($2, {now})), {last_instant})
                + make_interval(secs => job.misfire_grace_time)
            ELSE job.expires_at END,
        error_message  = CASE WHEN $4 = ANY (ARRAY ['failed', 'cancelled', 'expired'])
            THEN coalesce(job.error_message, $5) ELSE job.error_message END,
        blocked_on     = CASE WHEN old.next_status = 'pending' AND NOT (
                (job.finished_at IS NULL OR {stops_its_sequence})
                AND coalesce({head_of_its_sequence} = job.job_id, false)
            ) THEN {sequence_key} END,
        on_end         = CASE WHEN $4 <> ALL (ARRAY ['pending', 'running']) THEN {kept_on_end}
            WHEN jsonb_typeof({restored_on_end}) = 'object'
                AND ({restored_on_end} - ARRAY ['replacement', 'in_vain', 'alive', 'result']) <> jsonb_build_object()
                THEN ({restored_on_end} - ARRAY ['replacement', 'in_vain', 'alive', 'result'])
                    || CASE WHEN $4 = 'pending' AND old.next_status = 'running'
                            THEN jsonb_build_object('alive', job.attempt)
                        WHEN $4 = 'running' AND (job.options -> 'sequence') IS NOT NULL
                                AND ({head_of_its_sequence} = job.job_id) IS NOT TRUE
                            THEN jsonb_build_object('alive', job.attempt % 2147483647 + 1)
                        ELSE jsonb_build_object() END
                END,
        options        = CASE WHEN {dropped_mark} IS NOT NULL THEN {options_with_mark}
            WHEN $4 <> ALL (ARRAY ['pending', 'running']) THEN job.options
            WHEN old.status = ANY (ARRAY ['pending', 'running']) THEN {restored_options}
            ELSE {options_of_retry} END,
        errors         = CASE WHEN old.status = 'running' THEN {kept_errors} || jsonb_build_array({entry_of_attempt}
            || jsonb_build_object('outcome', 'lost', 'ended_at', coalesce($2, {now}))) ELSE job.errors END
    FROM old
    WHERE job.job_id = $1
      AND job.job_id = old.job_id
      AND ($6::boolean OR NOT old.has_consequences AND old.parent IS NULL)
    RETURNING job.job_id, {named}, job.attempt, {bounded_due},
        CASE WHEN job.finished_at IS NULL AND old.status <> ALL (ARRAY ['pending', 'running'])
            THEN {deadline_to_note} END AS deadline
),
noted AS (
    INSERT INTO {schema}scheduler_deadlines (job_id, at, noted_at)
    SELECT job_id, deadline, coalesce($2, {now}) FROM changed WHERE deadline IS NOT NULL
)
SELECT changed.job_id IS NOT NULL AS changed,
    CASE WHEN old.status = 'running' THEN old.worker_id END AS worker_id, changed.job_name, changed.attempt,
    changed.due, old.has_consequences, old.parent
FROM old LEFT JOIN changed ON changed.job_id = old.job_id;

-- name: retry_job
-- route: pool
-- Make a finished job pending and due now, its retries and crashes unused; return when that is.
--
-- The attempt number continues: it is part of the fencing token. A job whose cancelled attempt may still run is left. The
-- entry of a deadline is written again, since the vacuum deletes those of ended jobs.
-- Some jobs are changed only if $3: a child of a step, in a transaction in which wait_again follows, where "parent" is
-- the other job; a job that may wait for others again, in a transaction whose earlier statement has locked it; and a job
-- of a schedule, in one whose earlier statement has locked that, and in which queue_retried() follows.
-- Otherwise one of the others may end while this statement waits for the row, and the snapshot still has its edge.
WITH old AS (
    SELECT job_id AS id, {parent_of_child} AS parent, coalesce({waited_at_end}, false) AS may_wait, 0 AS place,
        (options -> 'schedule_id') IS NOT NULL AS has_schedule
    FROM {schema}scheduled_jobs
    WHERE job_id = $1 AND finished_at IS NOT NULL AND NOT {may_run_on}{within_lock_limit}
    FOR NO KEY UPDATE
),
changed AS (
    UPDATE {schema}scheduled_jobs SET
        {retried_values}
    FROM old
    WHERE job_id = $1 AND job_id = old.id AND ($3::boolean
        OR old.parent IS NULL AND NOT old.may_wait AND NOT old.has_schedule)
    RETURNING job_id, {bounded_due}, {deadline_to_note} AS deadline
),
noted AS (
    INSERT INTO {schema}scheduler_deadlines (job_id, at, noted_at)
    SELECT job_id, deadline, coalesce($2, {now}) FROM changed WHERE deadline IS NOT NULL
)
SELECT changed.due, old.parent, old.may_wait, old.has_schedule FROM old LEFT JOIN changed ON true;

-- name: retry_jobs
-- route: caller
-- Make those of the jobs $1 that have finished pending and due now, as retry_job does, and return them.
--
-- It leaves jobs whose unique key an unfinished job has; of several with one key it takes the first by id.
WITH found AS MATERIALIZED (
    SELECT job_id, unique_key, execution_time
    FROM {schema}scheduled_jobs
    WHERE job_id = ANY ($1::text[]) AND finished_at IS NOT NULL AND NOT {may_run_on}
),
free AS (
    SELECT job_id FROM found WHERE unique_key IS NULL
    UNION ALL
    SELECT min(job_id)
    FROM found
    WHERE unique_key IS NOT NULL AND (  -- not EXISTS, which may become a join that reads every key
        SELECT holder.job_id
        FROM {schema}scheduled_jobs AS holder
        WHERE holder.unique_key = found.unique_key
          AND holder.unique_key IS NOT NULL
          AND holder.finished_at IS NULL
    ) IS NULL
    GROUP BY unique_key
),
old AS MATERIALIZED (
    SELECT job_id AS id, row_number() OVER (ORDER BY execution_time DESC, job_id COLLATE "C" DESC) - 1 AS place
    FROM found
    WHERE job_id = ANY (ARRAY (SELECT job_id FROM free))
),
changed AS (
    UPDATE {schema}scheduled_jobs SET
        {retried_values}
    FROM old
    WHERE job_id = ANY (ARRAY (SELECT id FROM old)) AND job_id = old.id
    RETURNING job_id, execution_time, {parent_of_child} AS parent, {deadline_to_note} AS deadline
),
noted AS (
    INSERT INTO {schema}scheduler_deadlines (job_id, at, noted_at)
    SELECT job_id, deadline, coalesce($2, {now}) FROM changed WHERE deadline IS NOT NULL
)
SELECT job_id, execution_time, parent FROM changed;

-- fragment: parent_of_child
options #>> ARRAY ['child_of', 'job']

-- name: get_job
-- route: pool
-- Return one job.
SELECT {job_columns}
FROM {schema}scheduled_jobs
WHERE job_id = $1;

-- name: get_jobs
-- route: pool
-- Return the jobs of those ids that exist.
SELECT {job_columns}
FROM {schema}scheduled_jobs
WHERE job_id = ANY ($1::text[]);

-- name: statuses_of
-- route: reserved
-- Return the statuses of those ids that exist.
SELECT job_id, status FROM {schema}scheduled_jobs WHERE job_id = ANY ($1);

-- fragment: is_obsolete
job_id = ANY ($1::text[])
      AND status = 'cancelled'
      AND attempt = 0
      AND on_end IS NULL
      AND finished_at <= (($2::text)::jsonb ->> (options ->> 'schedule_id'))::timestamptz

-- name: find_obsolete
-- route: caller
-- Return the jobs that free_fire_times would delete, which a role finds that may not delete jobs.
SELECT job_id FROM {schema}scheduled_jobs WHERE {is_obsolete};

-- name: free_fire_times
-- route: caller
-- Delete those of the jobs $1 that no worker has taken, and that were cancelled before their schedules were added ($2,
-- an object with these times by the ids of the schedules); return their ids.
--
-- Such a job belongs to an earlier schedule with the same id. A job that waits for another one has an edge.
WITH obsolete AS (
    SELECT job_id
    FROM {schema}scheduled_jobs
    WHERE {is_obsolete}
    ORDER BY job_id COLLATE "C"
    FOR UPDATE
),
gone AS (
    DELETE FROM {schema}scheduled_jobs
    WHERE job_id = ANY (ARRAY (SELECT job_id FROM obsolete))
    RETURNING job_id, status, attempt, finished_at
),
results AS (
    {delete_former_results}
),
freed AS (
    DELETE FROM {schema}scheduler_after WHERE child_id = ANY (ARRAY (SELECT job_id FROM gone))
)
SELECT job_id FROM gone;

-- name: read_revoked
-- route: reserved
-- Return the statuses of those ids that exist, and whether consequences wait for the end of the last attempt.
SELECT job_id, status, CASE WHEN finished_at IS NULL THEN {attempt_is_revoked} ELSE {may_run_on} END AS is_awaited
FROM {schema}scheduled_jobs
WHERE job_id = ANY ($1);

-- name: list_jobs
-- route: pool
-- Return a page of jobs, by id, after $1.
--
-- No later change of a row disturbs this order, and the primary key serves it.
SELECT {job_columns}
FROM {schema}scheduled_jobs
WHERE ($1::text IS NULL OR job_id > $1)
  AND ($2::text[] IS NULL OR status = ANY ($2))
  AND ($3::text[] IS NULL OR {is_named})
  AND ($4::text IS NULL OR worker_id = $4)
  AND ($5::timestamptz IS NULL OR execution_time >= $5)
  AND ($6::timestamptz IS NULL OR execution_time < $6)
ORDER BY job_id
LIMIT $7;

-- name: find_jobs
-- route: pool
-- Return $2 jobs as list_jobs does, of which those with metadata contain $9, and examine $3 rows at most.
--
-- The last row that was examined is part of the result, whether it matches or not, if rows may follow: the next
-- page begins after it.
SELECT {job_columns}, matches, place
FROM (
    SELECT *, row_number() OVER () AS place, {matches_filters} AS matches
    FROM ({examined_jobs}) AS examined
) AS found
WHERE matches OR place = $3
LIMIT $2::bigint;

-- name: find_unfinished
-- route: pool
-- Return the ids of $2 pending or running jobs as find_jobs does, for cancel_jobs.
SELECT job_id, matches, place
FROM (
    SELECT job_id, row_number() OVER () AS place, finished_at IS NULL AND {matches_filters} AS matches
    FROM ({examined_jobs}) AS examined
) AS found
WHERE matches OR place = $3
LIMIT $2::bigint;

-- name: cancel_jobs
-- route: pool
-- Cancel the pending and running jobs of the ids $1 that still match the filters, as cancel_job does.
WITH old AS (
    SELECT job_id, worker_id, status, {has_consequences} OR {keeps_result} AS has_consequences, {is_awaited} AS is_awaited
    FROM {schema}scheduled_jobs
    WHERE job_id = ANY ($1) AND finished_at IS NULL AND {matches_filters}{within_lock_limit}
    ORDER BY job_id COLLATE "C"
    FOR NO KEY UPDATE
),
changed AS (
    UPDATE {schema}scheduled_jobs AS job SET
        {cancelled_values}
    FROM old
    WHERE job.job_id = ANY ($1) AND job.job_id = old.job_id AND ($10::boolean OR NOT old.has_consequences)
    RETURNING job.job_id, {named}, job.attempt
)
SELECT old.job_id, changed.job_id IS NOT NULL AS changed, changed.job_name, changed.attempt,
    CASE WHEN old.status = 'running' THEN old.worker_id END AS worker_id
FROM old LEFT JOIN changed ON changed.job_id = old.job_id;

-- name: delete_jobs
-- route: pool
-- Delete those of the jobs $1 that do not run and whose end has no consequences that are left, and return all.
--
-- Others may wait for a job with "on_end", unless it only names tasks that follow a failure or a cancellation. A deleted
-- job waits for no other job any more. A step that is locked is left to the vacuum: a signal locks it before the row of
-- the job. The result of the last end stays, and that of an earlier one is deleted.
WITH found AS (
    SELECT job_id, status,
        CASE WHEN status = 'pending' AND jsonb_typeof(on_end) = 'object'
            THEN on_end - ARRAY ['on_failure', 'on_cancel'] = jsonb_build_object()
            ELSE status <> 'running' AND on_end IS NULL END AS is_free
    FROM {schema}scheduled_jobs
    WHERE job_id = ANY ($1){within_lock_limit}
    ORDER BY job_id COLLATE "C"
    FOR UPDATE
),
gone AS (
    DELETE FROM {schema}scheduled_jobs
    WHERE job_id = ANY (ARRAY (SELECT job_id FROM found WHERE is_free))
    RETURNING job_id, status, attempt, finished_at, (options -> 'steps') IS NOT NULL AS is_marked
),
steps AS (
    DELETE FROM {schema}scheduler_steps
    WHERE ctid = ANY (ARRAY (
        SELECT ctid
        FROM {schema}scheduler_steps
        WHERE job_id = ANY (ARRAY (SELECT job_id FROM gone WHERE is_marked))
        FOR UPDATE SKIP LOCKED
    ))
),
results AS (
    {delete_former_results}
),
freed AS (
    DELETE FROM {schema}scheduler_after WHERE child_id = ANY (ARRAY (SELECT job_id FROM gone))
)
SELECT job_id, status, is_free AS changed FROM found;

-- name: move_jobs
-- route: pool
-- Make those of the jobs $1 that are pending due at $2, or $3 seconds after their time, and return all.
--
-- Each gets its whole misfire grace time again. Of a job that is due at once, last_heartbeat has that time. One that
-- waits for a limit and is moved to the future leaves the queue of the limit, where it would keep the place of jobs
-- that are due. A suspended job still waits for its steps: what it waits for makes it due before the new time. One that
-- waits without end has no time of its own to be moved from, so by $3 it is left as it is. A job of a sequence that has
-- never started and is moved to the future waits for its place there, and so gives up that of the head. One that waits,
-- is due and is to be due now keeps its due time, because a later one would let others of its sequence pass.
WITH found AS (
    SELECT job_id, status,
        status = 'pending' AND ($2::timestamptz IS NOT NULL OR (options -> 'steps') IS NULL OR attempt = 0
            OR execution_time < {no_timeout}) AS is_movable
    FROM {schema}scheduled_jobs
    WHERE job_id = ANY ($1){within_lock_limit}
    ORDER BY job_id COLLATE "C"
    FOR NO KEY UPDATE
),
moved AS (
    UPDATE {schema}scheduled_jobs AS job SET (execution_time, blocked_on, last_heartbeat, expires_at, options) = (
        SELECT target.at,
            CASE WHEN (job.options -> 'sequence') IS NOT NULL AND target.at > coalesce($4, {now})
                    AND job.retry_count = 0 AND job.crash_count = 0 AND NOT {has_entry} AND ({suspension}) IS NULL
                    THEN {sequence_key}
                WHEN left(job.blocked_on, 6) = 'limit:' AND target.at > coalesce($4, {now}) THEN NULL
                ELSE job.blocked_on END,
            CASE WHEN target.at <= coalesce($4, {now})
                    AND target.at > (coalesce($4, {now}) - interval '1 minute')
                THEN target.at ELSE job.last_heartbeat END,
            least(greatest(target.at, coalesce($4, {now})), {last_day}) + make_interval(secs => job.misfire_grace_time),
            CASE WHEN (job.options -> 'steps') IS NULL THEN job.options
                WHEN ({suspension}) IS NOT NULL THEN jsonb_set(
                    job.options, ARRAY ['suspended', 'moved'], to_jsonb(job.attempt))
                WHEN {was_suspended_unmarked} THEN job.options || jsonb_build_object(
                    'suspended', jsonb_build_object('attempt', job.attempt, 'moved', job.attempt, 'steps', (
                        SELECT jsonb_agg(step.name) FROM {schema}scheduler_steps AS step
                        WHERE step.job_id = job.job_id AND step.ended_at IS NULL)))
                ELSE job.options END
        FROM (
            SELECT least(greatest(coalesce(
                CASE WHEN left(job.blocked_on, 10) = 'zsequence:' AND $2::timestamptz <= coalesce($4, {now})
                        AND $2::timestamptz > (coalesce($4, {now}) - interval '1 minute')
                    THEN least($2::timestamptz, job.execution_time) ELSE $2::timestamptz END,
                least(greatest(job.execution_time, {first_day}), {last_day}) + make_interval(secs => $3)
            ), {first_instant}), {last_instant}) AS at
        ) AS target
    )
    WHERE job_id = ANY (ARRAY (SELECT job_id FROM found WHERE is_movable))
    RETURNING job_id, execution_time
)
SELECT found.job_id, found.status, moved.job_id IS NOT NULL AS changed, moved.execution_time
FROM found LEFT JOIN moved ON moved.job_id = found.job_id;

-- name: keep_job
-- route: pool
-- Take the misfire grace time from the pending job $1, so that it does not expire; return it.
UPDATE {schema}scheduled_jobs SET expires_at = NULL, misfire_grace_time = NULL
WHERE job_id = $1 AND status = 'pending' AND expires_at IS NOT NULL{within_lock_limit}
RETURNING job_id;

-- fragment: is_changeable
-- Whether change_job changes a job: it is pending, and nothing is stored that follows from its arguments, such as a
-- unique key, the id of a time span, a share, a sequence or a step.
status = 'pending' AND unique_key IS NULL AND NOT starts_with(job_id, 'unique:')
  AND starts_with(blocked_on, 'share:') IS NOT TRUE AND (options -> 'sequence') IS NULL
  AND coalesce(options ->> 'steps', '0') = '0'

-- fragment: job_version
-- A digest of what change_job replaces, so that a change replaces nothing that its author has not seen.
encode(sha256(convert_to(concat_ws(' ', priority, task_data::text), 'UTF8')), 'hex')

-- name: job_version
-- route: pool
-- Return the version of the job $1; no row if change_job does not change it.
SELECT {job_version} AS version FROM {schema}scheduled_jobs WHERE job_id = $1 AND {is_changeable};

-- name: change_job
-- route: pool
-- Replace the arguments ($3, without the metadata, which stays) and the priority of the job $1, if it has version $2.
--
-- The key of a limit may follow from the arguments, so a job that waits for one waits no more: a claim decides again.
-- Returns when the job is due.
UPDATE {schema}scheduled_jobs
SET priority = $4,
    blocked_on = CASE WHEN starts_with(blocked_on, 'limit:') THEN NULL ELSE blocked_on END,
    task_data = ($3::text::jsonb - 'metadata') || CASE
        WHEN (task_data -> 'metadata') IS NULL THEN jsonb_build_object()
        ELSE jsonb_build_object('metadata', task_data -> 'metadata') END
WHERE job_id = $1 AND {is_changeable} AND ({job_version}) = $2{within_lock_limit}
RETURNING {bounded_due};

-- name: count_jobs
-- route: pool
-- Count jobs by status.
SELECT status, count(*) FROM {schema}scheduled_jobs
WHERE $1::text[] IS NULL OR coalesce(function, job_name) = ANY ($1) OR job_name = ($1::text[])[1]
GROUP BY status;

-- name: find_late
-- route: reserved
-- Return at most $1 of the jobs that expire_jobs would expire, without $3. The fragment left_out is the same as there.
SELECT late.job_id
FROM {levels}
CROSS JOIN LATERAL (
    SELECT job_id
    FROM {schema}scheduled_jobs
    WHERE finished_at IS NULL
      AND blocked_on IS NULL
      AND priority = level.priority
      AND execution_time <= coalesce($2, {now})
      AND status = 'pending'
      AND expires_at < coalesce($2, {now})
      AND {may_expire}
      AND job_id <> ALL ($3::text[]){left_out}
    LIMIT $1
) AS late
LIMIT $1;

-- name: expire_jobs
-- route: tuned
-- Expire at most $3 pending jobs past their misfire grace time that no worker could claim, only $5 unless NULL, without
-- $6.
--
-- While pauses suspend expiry, the fragment left_out excludes the names of their tasks.
WITH ended AS (
    UPDATE {schema}scheduled_jobs SET
        status        = 'expired',
        finished_at   = coalesce($4, {now}),
        error_message = {expiry_reason},
        options       = {options_with_cause},
        on_end        = {on_end_with_result}
    WHERE ctid = ANY (ARRAY (
        SELECT late.ctid
        FROM {levels}
        CROSS JOIN LATERAL (
            SELECT ctid
            FROM {schema}scheduled_jobs
            WHERE finished_at IS NULL
              AND blocked_on IS NULL
              AND priority = level.priority
              AND execution_time <= coalesce($4, {now})
              AND status = 'pending'
              AND expires_at < coalesce($4, {now})
              AND {may_expire}
              AND ($5::text[] IS NULL OR job_id = ANY ($5))
              AND job_id <> ALL ($6::text[]){left_out}
            LIMIT $3
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS late
        LIMIT $3
    ))
    RETURNING job_id, {named}, attempt, status, NULL::text AS worker_id, finished_at, {unexplained_expiry}::text AS text,
        error_message, on_end IS NOT NULL AS has_consequences
){counted_failures}
SELECT job_id, job_name, attempt, error_message, has_consequences FROM ended;
