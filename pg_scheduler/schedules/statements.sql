-- name: declared_schedules
-- route: shared, reserved
-- Return the schedules that were declared in code, or have one of these ids ($2), and the time.
--
-- Values that Python cannot hold are limited, so that a row written by hand does not hide the others.
SELECT {schedule_columns},
    coalesce($1, {now}) AS now
FROM {schema}scheduler_schedules AS schedule
WHERE owner = 'code' OR schedule_id = ANY ($2::text[])
ORDER BY schedule.schedule_id;

-- name: lock_declarations
-- route: caller
-- Let one process at a time write the schedules that its code declares. The planners do not wait.
LOCK TABLE {schema}scheduler_schedules IN SHARE UPDATE EXCLUSIVE MODE;

-- name: get_schedule
-- route: pool
-- Return one schedule.
SELECT {schedule_columns} FROM {schema}scheduler_schedules WHERE schedule_id = $1;

-- name: read_schedules
-- route: shared, reserved
-- Return schedules by id ($1).
SELECT {schedule_columns} FROM {schema}scheduler_schedules WHERE schedule_id = ANY ($1::text[]);

-- name: lock_schedules
-- route: caller
-- Return and lock schedules ($1) in the order of their ids, and the time.
SELECT {schedule_columns},
    coalesce($2, {now}) AS now
FROM {schema}scheduler_schedules AS schedule
WHERE schedule_id = ANY ($1::text[])
ORDER BY schedule.schedule_id
FOR UPDATE;

-- name: lock_free_schedules
-- route: caller
-- Return and lock those of the schedules $1 that no other transaction has locked, and the time.
SELECT {schedule_columns},
    coalesce($2, {now}) AS now
FROM {schema}scheduler_schedules AS schedule
WHERE schedule_id = ANY ($1::text[])
ORDER BY schedule.schedule_id
FOR UPDATE SKIP LOCKED;

-- name: read_reported_options
-- route: caller
-- Return the options and the metadata of the task $1 as the live worker that started last reports them.
--
-- $1 may be another name of the task.
SELECT task.name, (worker.settings -> 'options' -> task.name)::text AS options,
    (worker.settings -> 'task_metadata' -> task.name)::text AS metadata
FROM {schema}scheduler_workers AS worker
CROSS JOIN LATERAL (SELECT coalesce(worker.settings -> 'aliases' ->> $1, $1) AS name) AS task
WHERE worker.lease_until > coalesce($2, {now})
  AND jsonb_typeof(worker.settings -> 'options' -> task.name) = 'object'
ORDER BY worker.started_at DESC, worker.worker_id DESC
LIMIT 1;

-- name: list_schedules
-- route: pool
-- Return a page of schedules in the order of their ids.
--
-- The names $4 are those of a task; a row may have the first one as the former name of its jobs.
-- New code can be checked before the database has the newest migrations, so this reads none of their columns except
-- "retired_at". Without that column, the name is that of the outer relation.
SELECT page.*
FROM (SELECT NULL::timestamptz AS retired_at) AS earlier_schema
CROSS JOIN LATERAL (
    SELECT {shown_schedule_columns}, {retired_at}
    FROM {schema}scheduler_schedules AS schedule
    WHERE ($1::text IS NULL OR schedule_id > $1 COLLATE "C")
      AND ($2::text IS NULL OR owner = $2)
      AND ($3::boolean IS NULL OR (paused_at IS NOT NULL) = $3)
      AND ($4::text[] IS NULL OR task = ANY ($4) OR job_name = ($4::text[])[1])
      AND ($5::text IS NULL OR metadata @> $5::jsonb)
      AND ($6::timestamptz IS NULL OR schedule.next_fire_at < $6)
    ORDER BY schedule.schedule_id COLLATE "C"
    LIMIT $7
) AS page
ORDER BY page.schedule_id COLLATE "C";

-- name: insert_schedule
-- route: pool
-- Insert a schedule if its id is free, and record who did so ($46 to $48).
WITH inserted AS (
    INSERT INTO {schema}scheduler_schedules AS schedule (
        {written_schedule_columns}
    ) VALUES (
        {written_schedule_values}
    )
    ON CONFLICT (schedule_id) DO NOTHING
    RETURNING schedule_id, {schedule_definition} AS definition
),
audited AS (
    {into_audit}
    SELECT coalesce($49, {now}), 'add_schedule', schedule_id, $46, $47,
        $48::text::jsonb || jsonb_build_object('after', definition)
    FROM inserted
)
SELECT schedule_id FROM inserted;

-- name: write_schedule
-- route: caller
-- Overwrite a schedule that this transaction has locked, and record who did so ($46 to $48).
WITH old AS (
    SELECT schedule_id, {schedule_definition} AS definition
    FROM {schema}scheduler_schedules AS schedule
    WHERE schedule_id = $1
),
written AS (
    UPDATE {schema}scheduler_schedules AS schedule SET (
        {written_schedule_columns}
    ) = (
        SELECT {written_schedule_values}
    )
    WHERE schedule_id = $1
    RETURNING schedule_id, {schedule_definition} AS definition
)
{into_audit}
SELECT coalesce($49, {now}), 'update_schedule', written.schedule_id, $46, $47,
    $48::text::jsonb || jsonb_build_object('before', old.definition, 'after', written.definition)
FROM written
JOIN old ON old.schedule_id = written.schedule_id;

-- name: remove_schedule
-- route: pool
-- Delete a schedule, and record who did so ($2 to $4); return its task.
WITH removed AS (
    DELETE FROM {schema}scheduler_schedules AS schedule
    WHERE schedule_id = $1{within_lock_limit}
    RETURNING schedule_id, task, {schedule_definition} AS definition
),
audited AS (
    {into_audit}
    SELECT coalesce($5, {now}), 'remove_schedule', schedule_id, $2, $3,
        $4::text::jsonb || jsonb_build_object('before', definition)
    FROM removed
)
SELECT task FROM removed;

-- name: pause_schedule
-- route: reserved
-- Pause a schedule until $3 unless it is paused like that, and record who did so ($6 to $8); return a row if it exists,
-- and whether it was changed.
--
-- $4 makes the fire times of the pause missed ones when it ends.
WITH changed AS (
    UPDATE {schema}scheduler_schedules AS schedule SET
        paused_at = coalesce($5, {now}), paused_until = $3::timestamptz, keeps_fire_times = $4::boolean, note = $2,
        is_broken = FALSE, updated_at = coalesce($5, {now})
    WHERE schedule_id = $1 AND NOT (
        paused_at IS NOT NULL
        AND coalesce(schedule.paused_until = $3::timestamptz, paused_until IS NULL AND $3::timestamptz IS NULL)
        AND schedule.keeps_fire_times = $4::boolean
    ){within_lock_limit}
    RETURNING schedule_id
),
audited AS (
    {into_audit}
    SELECT coalesce($5, {now}), 'pause_schedule', schedule_id, $6, $7, $8::text::jsonb FROM changed
)
SELECT EXISTS (SELECT FROM changed) AS changed, task FROM {schema}scheduler_schedules WHERE schedule_id = $1;

-- name: resume_schedule
-- route: reserved
-- Resume a schedule unless it is not paused, and record who did so ($5 to $7); return a row if it exists, and whether
-- it was changed.
--
-- $2 discards the fire times of the pause. With $3, those after that instant are missed, but none that precede the
-- schedule. With neither, all are missed. The planner computes the next fire time, since it knows the trigger.
WITH changed AS (
    UPDATE {schema}scheduler_schedules AS schedule SET
        paused_at = NULL, paused_until = NULL, keeps_fire_times = FALSE, note = NULL, is_broken = FALSE, failures = 0,
        updated_at = coalesce($4, {now}),
        resume_from = CASE
            WHEN schedule.next_fire_at IS NULL THEN NULL
            WHEN $3::timestamptz IS NOT NULL
                THEN greatest($3, CASE WHEN schedule.start_at IS NULL THEN schedule.anchor END)
            WHEN $2::boolean AND schedule.next_fire_at <= coalesce($4, {now}) THEN coalesce($4, {now})
            ELSE schedule.resume_from
        END,
        next_fire_at = CASE
            WHEN schedule.next_fire_at IS NULL THEN NULL -- which least() would ignore
            WHEN $3::timestamptz IS NOT NULL THEN least(schedule.next_fire_at, coalesce($4, {now}))
            ELSE schedule.next_fire_at
        END
    WHERE schedule_id = $1 AND paused_at IS NOT NULL{within_lock_limit}
    RETURNING schedule_id
),
audited AS (
    {into_audit}
    SELECT coalesce($4, {now}), 'resume_schedule', schedule_id, $5, $6, $7::text::jsonb FROM changed
)
SELECT EXISTS (SELECT FROM changed) AS changed, task FROM {schema}scheduler_schedules WHERE schedule_id = $1;

-- name: declared_later
-- route: shared, reserved
-- Return those of the schedules $1 that a live worker declares, or may declare, which has started later than the worker
-- $2.
--
-- There are none if the worker $2 has no row, because it is about to register again. For a process without a worker
-- ($2 is NULL), all live workers count.
SELECT schedule.schedule_id
FROM unnest($1::text[]) AS schedule (schedule_id)
WHERE EXISTS (
    SELECT
    FROM {schema}scheduler_workers AS worker
    LEFT JOIN {schema}scheduler_workers AS this ON this.worker_id = $2
    WHERE ($2::text IS NULL OR (worker.started_at, worker.worker_id) > (this.started_at, this.worker_id))
      AND worker.lease_until > coalesce($5, {now})
      AND {may_declare}
);

-- name: undeclared_modules
-- route: shared, reserved
-- Return the modules of functions that declared other schedules than $1, without those that are known to be retired.
SELECT DISTINCT module
FROM {schema}scheduler_schedules AS schedule
WHERE owner = 'code' AND retired_at IS NULL AND module IS NOT NULL AND schedule_id <> ALL ($1::text[])
ORDER BY module;

-- name: retire_schedules
-- route: shared, reserved
-- Mark the schedules of the modules $2 that neither the code of this process ($1) nor of another live worker declares,
-- and return them with their tasks.
--
-- $6 are those that a live worker will move to a key of its code. SKIP LOCKED: the next pass marks a schedule that is
-- being changed.
WITH undeclared AS MATERIALIZED (
    SELECT schedule_id
    FROM {schema}scheduler_schedules AS schedule
    WHERE owner = 'code' AND retired_at IS NULL AND module = ANY ($2::text[]) AND schedule_id <> ALL ($1::text[])
      AND schedule_id <> ALL ($6::text[])
      AND NOT EXISTS (
          SELECT
          FROM {schema}scheduler_workers AS worker
          WHERE worker.lease_until > coalesce($5, {now}) AND {may_declare}
      ){left_out}
    ORDER BY schedule_id
    FOR NO KEY UPDATE SKIP LOCKED
),
changed AS (
    UPDATE {schema}scheduler_schedules SET retired_at = coalesce($5, {now})
    WHERE schedule_id = ANY (ARRAY (SELECT schedule_id FROM undeclared))
    RETURNING schedule_id, task
)
SELECT schedule_id, task FROM changed;

-- name: continue_schedules
-- route: shared, reserved
-- Let schedules continue that wait for the end of their last job, which is gone or has ended before. These are schedules
-- that this process declares ($2), or whose tasks it has ($3). Return them with their tasks.
--
-- A job may have been deleted by hand, or be missing after a restore. As after its end, the planner computes the next
-- fire time from now. A schedule that has just changed is left to a later pass: the snapshot may lack its job.
WITH stalled AS MATERIALIZED (
    SELECT schedule_id
    FROM {schema}scheduler_schedules AS schedule
    WHERE next_fire_at IS NULL AND finished_at IS NULL AND retired_at IS NULL
      AND CASE WHEN owner = 'code' THEN schedule_id = ANY ($2::text[]) ELSE task = ANY ($3::text[]) END
      AND updated_at < (coalesce($1, {now}) - interval '5 s')
      AND NOT EXISTS (
          SELECT
          FROM {schema}scheduled_jobs AS job
          WHERE job.job_id = schedule.last_job_id AND (job.finished_at IS NULL OR job.on_end IS NOT NULL)
          OFFSET 0
      ){left_out}
    ORDER BY schedule_id
    FOR NO KEY UPDATE SKIP LOCKED
),
changed AS (
    UPDATE {schema}scheduler_schedules SET
        next_fire_at = coalesce($1, {now}),
        resume_from  = coalesce($1, {now}),
        updated_at   = coalesce($1, {now})
    WHERE schedule_id = ANY (ARRAY (SELECT schedule_id FROM stalled))
    RETURNING schedule_id, task
)
SELECT schedule_id, task FROM changed;

-- name: last_chained_run
-- route: caller
-- Return the time of the last pending job that pg_scheduler 0.2 planned for a schedule.
--
-- It planned a chain of jobs with numbered ids. The time of a retry is no fire time.
SELECT max(execution_time)
FROM {schema}scheduled_jobs
WHERE finished_at IS NULL
  AND retry_count = 0
  AND execution_time >= {first_day}
  AND execution_time <= {last_fire_day}
  AND starts_with(job_id, 'periodic:' || $1 || ':')
  AND substr(job_id, length('periodic:' || $1 || ':') + 1) ~ '^[0-9]+$';

-- name: due_schedules
-- route: caller
-- Return and lock due schedules that this node can plan, the longest due first, and the time; then also those whose
-- next fire times older time zone data ($5) gave. The schedules $7 are left out. If $8 is not NULL, so are all others.
--
-- Without $5, a scan of the index ends at the due ones under any plan. SKIP LOCKED: another process may be planning
-- the same schedules.
SELECT {schedule_columns},
    coalesce($1, {now}) AS now
FROM {schema}scheduler_schedules AS schedule
WHERE {plannable}
  AND {due_at} <= CASE WHEN $5::text IS NULL THEN coalesce($1, {now}) ELSE 'infinity' END
  AND ({due_at} <= coalesce($1, {now}) OR {is_outdated})
  AND schedule_id <> ALL ($7::text[])
  AND ($8::text[] IS NULL OR schedule_id = ANY ($8))
ORDER BY {due_at}
LIMIT $6
FOR UPDATE SKIP LOCKED;

-- name: next_fire
-- route: shared, reserved
-- Return the seconds until the next fire time, or the end of a pause, of a schedule that this node can plan, besides
-- $6; 0 if there is one whose next fire time older time zone data ($5) gave.
SELECT CASE
    WHEN $5::text IS NOT NULL AND EXISTS (
        SELECT FROM {schema}scheduler_schedules AS schedule WHERE {is_outdated} AND {plannable} AND schedule_id <> ALL ($6::text[])
    ) THEN 0
    ELSE extract(epoch FROM least(greatest({due_at}, {first_day}), {last_fire_day}) - coalesce($1, {now}))
END::double precision AS seconds
FROM {schema}scheduler_schedules AS schedule
WHERE {plannable}
  AND schedule_id <> ALL ($6::text[])
ORDER BY {due_at}
LIMIT 1;

-- name: advance_schedules
-- route: caller
-- Advance locked schedules ($1) to their next fire times ($2), after those that were planned ($3).
--
-- $4 are the jobs enqueued last; $5 to $7 are added to runs, skipped and missed fire times; the searches for $2 began
-- at $8, by time zone data of $9; $10 marks those that finished. An error in $11 pauses a schedule and leaves its
-- timing. A pause that has ended is removed. Each row looks up its place in the arrays in an object that is built once,
-- since a join could become a scan under a plan made for an empty table. $10 are integers: for arrays of booleans,
-- asyncpg sends a query of its own, which the search path may change. A schedule that is planned is not retired.
WITH place AS MATERIALIZED ({places})
UPDATE {schema}scheduler_schedules AS schedule SET (
    next_fire_at, resume_from, searched_from, tzdata, last_fire_at, last_job_id, runs, skipped, missed, failures,
    finished_at, retired_at, paused_at, paused_until, keeps_fire_times, note, is_broken, updated_at
) = (
    SELECT
        CASE WHEN change.error IS NULL THEN change.next_fire_at ELSE schedule.next_fire_at END,
        CASE WHEN change.error IS NOT NULL THEN schedule.resume_from END,
        CASE WHEN change.error IS NULL THEN change.searched_from ELSE schedule.searched_from END,
        CASE WHEN change.error IS NULL THEN change.tzdata ELSE schedule.tzdata END,
        coalesce(change.last_fire_at, schedule.last_fire_at),
        coalesce(change.last_job_id, schedule.last_job_id),
        least(schedule.runs, {most_counted}) + change.runs,
        least(schedule.skipped, {most_counted}) + change.skipped,
        least(schedule.missed, {most_counted}) + change.missed,
        CASE WHEN schedule.paused_at IS NULL THEN schedule.failures ELSE 0 END,
        CASE WHEN change.is_finished THEN coalesce(schedule.finished_at, $12, {now}) END,
        NULL::timestamptz,
        CASE WHEN change.error IS NOT NULL THEN coalesce($12, {now}) END,
        NULL::timestamptz,
        FALSE,
        change.error,
        change.error IS NOT NULL,
        coalesce($12, {now})
    FROM (
        SELECT
            ($2::timestamptz[])[at.n] AS next_fire_at, ($3::timestamptz[])[at.n] AS last_fire_at,
            ($4::text[])[at.n] AS last_job_id, ($5::bigint[])[at.n] AS runs, ($6::bigint[])[at.n] AS skipped,
            ($7::bigint[])[at.n] AS missed, ($8::timestamptz[])[at.n] AS searched_from,
            ($9::text[])[at.n] AS tzdata, ($10::integer[])[at.n] > 0 AS is_finished, ($11::text[])[at.n] AS error
        FROM (SELECT ((SELECT place.of FROM place) ->> schedule.schedule_id)::integer AS n OFFSET 0) AS at
        OFFSET 0
    ) AS change
)
WHERE schedule_id = ANY ($1::text[])
RETURNING schedule_id;

-- name: note_last_job
-- route: caller
-- Record the job that a schedule enqueued last without advancing it, and return whether it waits for the end of the job.
--
-- Under a fixed delay it has no next fire time until then.
UPDATE {schema}scheduler_schedules AS schedule SET
    last_job_id  = $2,
    next_fire_at = CASE WHEN NOT {has_fixed_delay} THEN schedule.next_fire_at END,
    resume_from  = CASE WHEN NOT {has_fixed_delay} THEN schedule.resume_from END,
    updated_at   = coalesce($3, {now})
WHERE schedule_id = $1
RETURNING {has_fixed_delay} AND schedule.finished_at IS NULL AS awaits_end;

-- name: lock_last_jobs
-- route: caller
-- Lock those of these jobs ($1) that have not ended, and return them: whether each waits for its first start, and
-- whether it is locked now. A job that was cancelled ends with its attempt.
--
-- An attempt that a limit did not admit has a number too, so the number does not show whether the job has started. If
-- an earlier attempt has begun, the job was suspended, or its history has an entry of that attempt.
--
-- SKIP LOCKED: the transaction that ends a job locks the job before its schedule.
WITH locked AS (
    SELECT job_id
    FROM {schema}scheduled_jobs
    WHERE job_id = ANY ($1::text[]) AND (finished_at IS NULL OR {may_run_on})
    ORDER BY job_id COLLATE "C"
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT job_id,
    status = 'pending' AND retry_count = 0 AND (attempt = 0 OR left(blocked_on, 6) = 'limit:'
        AND (options -> 'suspended') IS NULL AND (errors -> 0) IS NULL) AS waits,
    EXISTS (SELECT FROM locked WHERE locked.job_id = job.job_id) AS is_locked
FROM {schema}scheduled_jobs AS job
WHERE job_id = ANY ($1::text[]) AND (finished_at IS NULL OR {may_run_on});

-- name: note_job_end
-- route: caller
-- Record in a schedule ($1) that its job ($2) ended with a status ($3, NULL if it does not count) and an error ($4);
-- return whether that paused it.
--
-- Under a fixed delay the planner computes the next fire time from now, also if another job has ended before. A next fire
-- time that has passed stays, and so does one that follows from a later instant. A failure counts unless the schedule is
-- paused; a completion resets the count. A job from before the schedule was added belongs to an earlier one with the same
-- id, and counts nothing. After the clock was set back to before that time, no job is known to be such a one.
WITH ended AS (
    SELECT schedule_id,
        own.counts AND $3::text = 'completed' AS resets,
        own.counts AND paused_at IS NULL AND $3::text = 'failed' AND pause_after_failures IS NOT NULL AS fails,
        own.counts AND paused_at IS NULL AND $3::text = 'failed' AND failures + 1 >= pause_after_failures AS pauses,
        schedule.finished_at IS NULL AND CASE WHEN schedule.next_fire_at IS NULL THEN last_job_id = $2
            ELSE own.counts AND {has_fixed_delay}
                AND (schedule.next_fire_at > coalesce($5, {now}) OR schedule.resume_from IS NOT NULL) END AS continues
    FROM {schema}scheduler_schedules AS schedule
    CROSS JOIN LATERAL (
        SELECT NOT (schedule.created_at <= coalesce($5, {now}) AND EXISTS (
            SELECT FROM {schema}scheduled_jobs AS job WHERE job.job_id = $2 AND job.created_at < schedule.created_at
        )) AS counts
    ) AS own
    WHERE schedule_id = $1
    FOR UPDATE OF schedule
)
UPDATE {schema}scheduler_schedules AS schedule SET
    failures     = CASE
        WHEN ended.resets THEN 0
        WHEN ended.fails THEN least(schedule.failures, {most_counted}) + 1
        ELSE schedule.failures
    END,
    paused_at    = CASE WHEN ended.pauses THEN coalesce($5, {now}) ELSE schedule.paused_at END,
    note         = CASE WHEN ended.pauses THEN $4 ELSE schedule.note END,
    next_fire_at = CASE WHEN ended.continues THEN coalesce($5, {now}) ELSE schedule.next_fire_at END,
    resume_from  = CASE WHEN ended.continues THEN greatest(schedule.resume_from, coalesce($5, {now}))
        ELSE schedule.resume_from END,
    updated_at   = coalesce($5, {now})
FROM ended
WHERE schedule.schedule_id = ended.schedule_id
RETURNING ended.pauses IS TRUE AS paused, ended.continues IS TRUE AS continues, schedule.task;

-- name: pending_schedule_jobs
-- route: pool
-- Return the ids of at most $2 pending jobs of a schedule, also of blocked ones.
SELECT job_id
FROM {schema}scheduled_jobs
WHERE finished_at IS NULL AND status = 'pending' AND (options ->> 'schedule_id') = $1
LIMIT $2;

-- name: vacuum_schedules
-- route: pool
-- Delete at most $2 schedules of callers that finished before an instant, and count them.
--
-- A schedule whose last job has not ended is kept: if it is added again, its new jobs must not overlap with that job.
WITH old AS MATERIALIZED (
    SELECT schedule_id
    FROM {schema}scheduler_schedules AS schedule
    WHERE owner = 'api'
      AND finished_at <= $1
      AND NOT EXISTS (
          SELECT
          FROM {schema}scheduled_jobs AS job
          WHERE job.job_id = schedule.last_job_id AND (job.finished_at IS NULL OR {may_run_on})
          OFFSET 0
      ){left_out}
    LIMIT $2
    FOR UPDATE SKIP LOCKED
),
changed AS (
    DELETE FROM {schema}scheduler_schedules
    WHERE schedule_id = ANY (ARRAY (SELECT schedule_id FROM old))
    RETURNING 1
)
SELECT count(*) FROM changed;
