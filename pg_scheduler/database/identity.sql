-- fragment: both_databases
this.oid::bigint AS database,
    this.datname::text AS name,
    (SELECT record.xmin::text FROM {schema}scheduler_migrations AS record WHERE record.version = 1) AS origin,
    recorded.database AS recorded_database,
    recorded.name AS recorded_name,
    recorded.system AS recorded_system,
    recorded.origin AS recorded_origin,
    recorded.adopted_at::text AS adopted_at
FROM pg_catalog.pg_database AS this
LEFT JOIN {schema}scheduler_database AS recorded ON true
WHERE this.datname = current_database()

-- name: read_identity
-- route: pool
-- Return this database and the recorded one, and whether the role may read the system identifier, by a statement of its
-- own: a statement fails as a whole if the role may not execute one of its functions.
SELECT coalesce((
        SELECT has_function_privilege(control.oid, 'EXECUTE')
        FROM pg_catalog.pg_proc AS control
        WHERE control.proname = 'pg_control_system' AND control.pronamespace = 'pg_catalog'::regnamespace
    ), false) AS has_system,
    {both_databases};

-- name: read_identity_with_system
-- route: pool
-- Return this database and the recorded one, with the system identifier, for a role that is known to be allowed to read it.
SELECT (SELECT system_identifier::text FROM pg_catalog.pg_control_system()) AS system,
    {both_databases};

-- name: read_system
-- route: pool
-- Return the system identifier of the server, which its physical copies share.
SELECT system_identifier::text FROM pg_catalog.pg_control_system();

-- name: has_work
-- route: pool
-- Return whether there are jobs or schedules that a copy would run a second time.
SELECT EXISTS (SELECT FROM {schema}scheduled_jobs WHERE finished_at IS NULL AND blocked_on IS NULL)
    OR EXISTS (SELECT FROM {schema}scheduled_jobs WHERE blocked_on IS NOT NULL)
    OR EXISTS (SELECT FROM {schema}scheduler_schedules WHERE finished_at IS NULL);

-- name: record_database
-- route: pool
-- Record this database: its system identifier $1, its oid $2, its origin $3 and its name $4; $5 adopts it.
INSERT INTO {schema}scheduler_database (system, database, origin, name, adopted_at, adopted_by)
VALUES ($1, $2, $3, $4, coalesce($6, {now}), $5)
ON CONFLICT (id) DO UPDATE SET
    system = EXCLUDED.system, database = EXCLUDED.database, origin = EXCLUDED.origin, name = EXCLUDED.name,
    adopted_at = EXCLUDED.adopted_at, adopted_by = EXCLUDED.adopted_by;

-- name: hold_tasks
-- route: pool
-- Pause every task that has jobs, schedules or workers, that ever ran, or that follows the end of a job, with the note
-- $1 by $3; return their number. A pause without an end stays. One that has an end loses it until the task is resumed,
-- and the note, which begins with $2 then, keeps what it was: see resume_held_tasks.
--
-- A job names its task, those of its alert and of its clean-up, and all of these of the definition that replaces it. The
-- alert or the clean-up of a job that has ended may not have been enqueued yet.
WITH held AS (
    INSERT INTO {schema}scheduler_tasks AS task (name, paused_at, note, actor)
    SELECT known.name, coalesce($4, {now}), $1, $3
    FROM (
        SELECT named.name
        FROM {schema}scheduled_jobs AS job
        CROSS JOIN LATERAL (
            VALUES (job.job_name), (job.function), (job.on_end ->> 'on_failure'), (job.on_end ->> 'on_cancel'),
                (job.on_end #>> ARRAY ['replacement', 'job_name']), (job.on_end #>> ARRAY ['replacement', 'function']),
                (job.on_end #>> ARRAY ['replacement', 'on_end', 'on_failure']),
                (job.on_end #>> ARRAY ['replacement', 'on_end', 'on_cancel']),
                (job.on_end #>> ARRAY ['in_vain', 'job_name']), (job.on_end #>> ARRAY ['in_vain', 'function']),
                (job.on_end #>> ARRAY ['in_vain', 'on_end', 'on_failure']),
                (job.on_end #>> ARRAY ['in_vain', 'on_end', 'on_cancel'])
        ) AS named (name)
        WHERE job.finished_at IS NULL
        UNION
        SELECT unnest(ARRAY [on_end ->> 'on_failure', on_end ->> 'on_cancel'])
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NOT NULL AND on_end IS NOT NULL
        UNION
        SELECT task FROM {schema}scheduler_schedules
        UNION
        SELECT job_name FROM {schema}scheduler_schedules
        UNION
        SELECT job_name FROM {schema}scheduler_totals
        UNION
        SELECT unnest(names) FROM {schema}scheduler_workers
    ) AS known (name)
    WHERE octet_length(known.name) <= 2000
    ON CONFLICT (name) DO UPDATE SET
        paused_until = NULL,
        note = $2 || jsonb_build_object('until', task.paused_until, 'note', task.note, 'actor', task.actor)::text,
        actor = EXCLUDED.actor
    WHERE task.paused_until IS NOT NULL
    RETURNING 1
)
SELECT count(*) FROM held;

-- name: hold_schedules
-- route: pool
-- Pause every schedule that is not paused without an end, with the note $1; return their number. The note of one whose
-- pause has an end begins with $2, and keeps what it was: see restore_schedules.
WITH held AS (
    UPDATE {schema}scheduler_schedules SET
        paused_at = coalesce(paused_at, $3, {now}), paused_until = NULL, keeps_fire_times = FALSE,
        note = CASE WHEN paused_until IS NULL THEN $1 ELSE $2 || jsonb_build_object(
            'until', paused_until, 'note', note, 'keeps_fire_times', keeps_fire_times
        )::text END,
        is_broken = FALSE, updated_at = coalesce($3, {now})
    WHERE finished_at IS NULL AND (paused_at IS NULL OR paused_until IS NOT NULL)
    RETURNING 1
)
SELECT count(*) FROM held;

-- name: held_tasks
-- route: pool
-- Return the tasks that hold_tasks paused, with their notes, which are $1 or begin with $2.
SELECT name, note FROM {schema}scheduler_tasks
WHERE note = $1 OR starts_with(note, $2)
ORDER BY name COLLATE "C";

-- name: held_schedules
-- route: pool
-- Return the schedules that hold_schedules paused, with their notes, which are $1 or begin with $2.
SELECT schedule_id, note FROM {schema}scheduler_schedules
WHERE (note = $1 OR starts_with(note, $2)) AND paused_at IS NOT NULL
ORDER BY schedule_id COLLATE "C";

-- fragment: held_rows
SELECT hold.value ->> 'name' AS name, hold.value ->> 'note' AS note,
        CASE WHEN jsonb_typeof(hold.value -> 'pause') = 'object' THEN hold.value -> 'pause' END AS pause
    FROM jsonb_array_elements($1::text::jsonb) AS hold (value)

-- name: resume_held_tasks
-- route: pool
-- End the holds $1 of tasks, each with a name, a note and the former pause, unless the note has changed. Notify all
-- nodes; return the names, and whether each is paused.
--
-- A task whose pause had an end has it again. If the end has passed, the pause ends now, so that the jobs
-- which became due under the hold get their misfire grace time again, if it suspends expiry.
-- Only the rows with these names are changed: a pause under another name of the task is by a person.
WITH held AS MATERIALIZED (
    {held_rows}
),
restored AS (
    UPDATE {schema}scheduler_tasks AS task SET
        paused_until = greatest((held.pause ->> 'until')::timestamptz, coalesce($2, {now})),
        note = held.pause ->> 'note', actor = held.pause ->> 'actor'
    FROM held
    WHERE task.name = held.name AND task.note = held.note AND held.pause IS NOT NULL
    RETURNING task.name, (held.pause ->> 'until')::timestamptz > coalesce($2, {now}) AS is_paused
),
resumed AS (
    DELETE FROM {schema}scheduler_tasks AS task
    USING held
    WHERE task.name = held.name AND task.note = held.note AND held.pause IS NULL
    RETURNING task.name
),
changed AS (
    SELECT name, is_paused FROM restored UNION ALL SELECT name, FALSE FROM resumed
)
SELECT name, is_paused, pg_notify({channel}, 'tasks') FROM changed;

-- name: restore_schedules
-- route: pool
-- Give schedules that are held back the pauses they had, unless there was none or its end has passed. The holds $1 are
-- as for resume_held_tasks. Notify all nodes, and return the ids.
WITH held AS MATERIALIZED (
    {held_rows}
),
restored AS (
    UPDATE {schema}scheduler_schedules AS schedule SET
        paused_until = (held.pause ->> 'until')::timestamptz, note = held.pause ->> 'note',
        keeps_fire_times = (held.pause ->> 'keeps_fire_times')::boolean, updated_at = coalesce($2, {now})
    FROM held
    WHERE schedule.schedule_id = held.name AND schedule.note = held.note AND schedule.paused_at IS NOT NULL
      AND (held.pause ->> 'until')::timestamptz > coalesce($2, {now})
    RETURNING schedule.schedule_id
)
SELECT schedule_id, pg_notify({channel}, 'periodic') FROM restored;
