-- name: pause_task
-- route: reserved
-- Pause the task $1 until $2, with the note $3 and the actor $4, unless it is paused like that, and record it ($6, $7).
WITH paused AS (
    INSERT INTO {schema}scheduler_tasks AS task (name, paused_at, paused_until, note, actor)
    SELECT $1, coalesce($5, {now}), $2, $3, $4
    WHERE true{within_lock_limit}
    ON CONFLICT (name) DO UPDATE SET
        paused_at = CASE WHEN task.paused_until <= coalesce($5, {now}) THEN EXCLUDED.paused_at
            ELSE task.paused_at END,
        paused_until = EXCLUDED.paused_until, note = EXCLUDED.note, actor = EXCLUDED.actor
    WHERE NOT coalesce(
            task.paused_until = EXCLUDED.paused_until, task.paused_until IS NULL AND EXCLUDED.paused_until IS NULL
        )
       OR NOT coalesce(task.note = EXCLUDED.note, task.note IS NULL AND EXCLUDED.note IS NULL)
    RETURNING name
),
audited AS (
    {into_audit}
    SELECT coalesce($5, {now}), 'pause_task', name, $4, $6, $7::text::jsonb FROM paused
)
SELECT name FROM paused;

-- name: resume_tasks
-- route: reserved
-- Delete the pauses of the names $1, record who did so ($3 to $5), and return whether each was in effect.
WITH resumed AS (
    DELETE FROM {schema}scheduler_tasks
    WHERE name = ANY ($1){within_lock_limit}
    RETURNING name, coalesce(paused_until > coalesce($2, {now}), true) AS was_in_effect
),
audited AS (
    {into_audit}
    SELECT coalesce($2, {now}), 'resume_task', name, $3, $4, $5::text::jsonb FROM resumed WHERE was_in_effect
)
SELECT was_in_effect FROM resumed;

-- name: end_pauses
-- route: reserved
-- Delete the pauses whose time has ended, and return their names. One node deletes each.
DELETE FROM {schema}scheduler_tasks
WHERE name = ANY (ARRAY(
    SELECT name FROM {schema}scheduler_tasks
    WHERE paused_until <= coalesce($1, {now})
    ORDER BY name
    FOR UPDATE SKIP LOCKED
))
RETURNING name;

-- name: paused_tasks
-- route: shared, reserved
-- Return the pauses, and whether each has ended and the seconds until it does.
--
-- Instants that Python cannot hold are limited, so that a row written by hand does not hide the others.
SELECT name, least(greatest(paused_at, {first_day}), {last_day}) AS paused_at, until.at AS paused_until, note, actor,
    (extract(epoch FROM until.at - coalesce($1, {now})))::double precision AS ends_in
FROM {schema}scheduler_tasks
CROSS JOIN LATERAL (
    SELECT CASE WHEN paused_until IS NOT NULL THEN least(greatest(paused_until, {first_day}), {last_day}) END AS at
) AS until
ORDER BY name;
