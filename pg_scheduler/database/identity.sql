-- name: read_identity
-- route: pool
-- Return this database and the recorded one. The system identifier is read by a statement of its own, because a
-- statement fails as a whole if the role may not execute one of its functions.
SELECT coalesce((
        SELECT has_function_privilege(control.oid, 'EXECUTE')
        FROM pg_catalog.pg_proc AS control
        WHERE control.proname = 'pg_control_system' AND control.pronamespace = 'pg_catalog'::regnamespace
    ), false) AS has_system,
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
WHERE this.datname = current_database();

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
-- $1 by $2; return their number.
--
-- A job names its task, that of its alert, and both of the definition that replaces it. The alert of a job that has
-- ended may not have been enqueued yet.
WITH held AS (
    INSERT INTO {schema}scheduler_tasks AS task (name, paused_at, note, actor)
    SELECT known.name, coalesce($3, {now}), $1, $2
    FROM (
        SELECT named.name
        FROM {schema}scheduled_jobs AS job
        CROSS JOIN LATERAL (
            VALUES (job.job_name), (job.function), (job.on_end ->> 'on_failure'),
                (job.on_end #>> ARRAY ['replacement', 'job_name']), (job.on_end #>> ARRAY ['replacement', 'function']),
                (job.on_end #>> ARRAY ['replacement', 'on_end', 'on_failure']),
                (job.on_end #>> ARRAY ['in_vain', 'job_name']), (job.on_end #>> ARRAY ['in_vain', 'function']),
                (job.on_end #>> ARRAY ['in_vain', 'on_end', 'on_failure'])
        ) AS named (name)
        WHERE job.finished_at IS NULL
        UNION
        SELECT on_end ->> 'on_failure' FROM {schema}scheduled_jobs WHERE finished_at IS NOT NULL AND on_end IS NOT NULL
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
    ON CONFLICT (name) DO UPDATE SET paused_until = NULL, note = EXCLUDED.note, actor = EXCLUDED.actor
    WHERE task.paused_until IS NOT NULL
    RETURNING 1
)
SELECT count(*) FROM held;

-- name: hold_schedules
-- route: pool
-- Pause every schedule that is not paused without an end, with the note $1; return their number.
WITH held AS (
    UPDATE {schema}scheduler_schedules SET
        paused_at = coalesce($2, {now}), paused_until = NULL, keeps_fire_times = FALSE, note = $1, is_broken = FALSE,
        updated_at = coalesce($2, {now})
    WHERE finished_at IS NULL AND (paused_at IS NULL OR paused_until IS NOT NULL)
    RETURNING 1
)
SELECT count(*) FROM held;

-- name: held_tasks
-- route: pool
-- Return the names of the tasks that hold_tasks paused, with the note $1.
SELECT name FROM {schema}scheduler_tasks WHERE note = $1 ORDER BY name COLLATE "C";

-- name: held_schedules
-- route: pool
-- Return the ids of the schedules that hold_schedules paused, with the note $1.
SELECT schedule_id FROM {schema}scheduler_schedules
WHERE note = $1 AND paused_at IS NOT NULL
ORDER BY schedule_id COLLATE "C";
