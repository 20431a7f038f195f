-- The aliases that workers report for their tasks, and whether each is exact: not the bare name of the function.

-- fragment: reported_aliases
SELECT DISTINCT alias.key AS name, alias.value AS task,
        coalesce(worker.settings -> 'exact_aliases' @> to_jsonb(alias.key), false) AS is_exact
    FROM {schema}scheduler_workers AS worker
    CROSS JOIN LATERAL jsonb_each_text(CASE WHEN jsonb_typeof(worker.settings -> 'aliases') = 'object'
        THEN worker.settings -> 'aliases' END) AS alias (key, value)

-- fragment: seen_values
pause.fields ->> 'name' AS name, (pause.fields ->> 'paused_at')::timestamptz AS paused_at,
        (pause.fields ->> 'paused_until')::timestamptz AS paused_until, pause.fields ->> 'note' AS note,
        pause.fields ->> 'actor' AS actor, (pause.fields ->> 'suspends_expiry')::boolean AS suspends_expiry

-- fragment: is_seen
-- Whether a person has seen the pause of this row, with the values that it has now.
EXISTS (
        SELECT FROM seen
        WHERE seen.name = task.name AND seen.paused_at = task.paused_at AND seen.actor = task.actor
          AND seen.suspends_expiry = task.suspends_expiry
          AND coalesce(seen.paused_until = task.paused_until, seen.paused_until IS NULL AND task.paused_until IS NULL)
          AND coalesce(seen.note = task.note, seen.note IS NULL AND task.note IS NULL)
    )

-- name: pause_task
-- route: reserved
-- Pause the task $1 until $2, with the note $3 and the actor $4, unless it is paused like that, and record it ($6, $7).
--
-- Its jobs do not expire during the pause if $8. The caller knows the exact names $9 of the task. The row keeps them, and
-- those that workers report: the workers may stop during the pause.
-- If $10 is not NULL, it has the pause of this name that a person has seen, or none. Then nothing changes if the name has
-- another pause now, or has one no more. The row is locked first, so that it cannot be deleted between the comparison and
-- the insert.
WITH seen AS MATERIALIZED (
    SELECT {seen_values} FROM jsonb_array_elements($10::text::jsonb) AS pause (fields)
),
unchanged AS MATERIALIZED (
    SELECT name FROM {schema}scheduler_tasks AS task WHERE name = $1 AND {is_seen} FOR NO KEY UPDATE
),
alias AS MATERIALIZED (
    {reported_aliases}
),
task_name AS MATERIALIZED (
    SELECT unnest($9::text[] || $1::text) AS name
    UNION
    SELECT alias.task FROM alias WHERE alias.name = $1
),
paused AS (
    INSERT INTO {schema}scheduler_tasks AS task (
        name, paused_at, paused_until, note, actor, suspends_expiry, names, exact_names
    )
    SELECT $1, coalesce($5, {now}), $2, $3, $4, $8, ARRAY (
        SELECT task_name.name FROM task_name
        UNION
        SELECT alias.name FROM alias JOIN task_name ON task_name.name = alias.task
    ), ARRAY (
        SELECT task_name.name FROM task_name
        UNION
        SELECT alias.name FROM alias JOIN task_name ON task_name.name = alias.task WHERE alias.is_exact
    )
    WHERE ($10::text IS NULL OR NOT EXISTS (SELECT FROM seen) OR EXISTS (SELECT FROM unchanged)){within_lock_limit}
    ON CONFLICT (name) DO UPDATE SET
        paused_at = CASE WHEN task.paused_until <= coalesce($5, {now}) THEN EXCLUDED.paused_at
            ELSE task.paused_at END,
        paused_until = EXCLUDED.paused_until, note = EXCLUDED.note, actor = EXCLUDED.actor,
        suspends_expiry = EXCLUDED.suspends_expiry,
        names = ARRAY (SELECT DISTINCT unnest(task.names || EXCLUDED.names)),
        exact_names = ARRAY (SELECT DISTINCT unnest(task.exact_names || EXCLUDED.exact_names))
    WHERE ($10::text IS NULL OR {is_seen}) AND (NOT coalesce(
            task.paused_until = EXCLUDED.paused_until, task.paused_until IS NULL AND EXCLUDED.paused_until IS NULL
        )
       OR NOT coalesce(task.note = EXCLUDED.note, task.note IS NULL AND EXCLUDED.note IS NULL)
       OR task.suspends_expiry <> EXCLUDED.suspends_expiry)
    RETURNING name
),
audited AS (
    {into_audit}
    SELECT coalesce($5, {now}), 'pause_task', name, $4, $6, $7::text::jsonb FROM paused
)
SELECT name, pg_notify({channel}, 'tasks') FROM paused;

-- name: add_names
-- route: reserved
-- Add the names $2 and the exact names $3 to the pause of the task $1, and notify all nodes. Return no row if it has
-- them, or if another session has locked it.
WITH added AS (
    UPDATE {schema}scheduler_tasks AS task SET
        names = ARRAY (SELECT DISTINCT unnest(task.names || $2::text[] || $3::text[])),
        exact_names = ARRAY (SELECT DISTINCT unnest(task.exact_names || $3::text[]))
    WHERE task.name = ANY (ARRAY (
        SELECT name
        FROM {schema}scheduler_tasks
        WHERE name = $1 AND NOT (names @> ($2::text[] || $3::text[]) AND exact_names @> $3)
        FOR NO KEY UPDATE SKIP LOCKED
    ))
    RETURNING task.name
)
SELECT name, pg_notify({channel}, 'tasks') FROM added;

-- name: resume_tasks
-- route: reserved
-- End the pauses of the names $1, record who did so ($3 to $5), and return whether each was in effect.
--
-- Those that have one of the declared names $6 end too, and those that are stored under a name of one that ends: they are
-- of the same task, see linked_names() in jobs/pause.py. This is one statement, so that a call which is cut has ended all
-- of them or none.
-- A pause that suspends expiry ends now, but its row holds the jobs until they have their time again: see
-- delete_renewed. If $7 is not NULL, it has the pauses that a person has seen, and others stay as they are.
WITH RECURSIVE seen AS MATERIALIZED (
    SELECT {seen_values} FROM jsonb_array_elements($7::text::jsonb) AS pause (fields)
),
linked (name) AS (
    (
        SELECT unnest($1::text[])
        UNION
        SELECT task.name FROM {schema}scheduler_tasks AS task WHERE task.exact_names && $6
    )
    UNION
    SELECT other.name
    FROM linked
    JOIN {schema}scheduler_tasks AS task ON task.name = linked.name
    CROSS JOIN LATERAL unnest(task.exact_names) AS other (name)
),
ended AS (
    UPDATE {schema}scheduler_tasks AS task SET paused_until = coalesce($2, {now})
    WHERE name = ANY (ARRAY (SELECT name FROM linked)) AND suspends_expiry AND ($7::text IS NULL OR {is_seen})
      AND (paused_until IS NULL OR paused_until > coalesce($2, {now})){within_lock_limit}
    RETURNING name, true AS was_in_effect
),
deleted AS (
    DELETE FROM {schema}scheduler_tasks AS task
    WHERE name = ANY (ARRAY (SELECT name FROM linked)) AND NOT suspends_expiry
      AND ($7::text IS NULL OR {is_seen}){within_lock_limit}
    RETURNING name, coalesce(paused_until > coalesce($2, {now}), true) AS was_in_effect
),
resumed AS (
    SELECT name, was_in_effect FROM ended UNION ALL SELECT name, was_in_effect FROM deleted
),
audited AS (
    {into_audit}
    SELECT coalesce($2, {now}), 'resume_task', name, $3, $4, $5::text::jsonb FROM resumed WHERE was_in_effect
)
SELECT was_in_effect, pg_notify({channel}, 'tasks') FROM resumed;

-- name: end_pauses
-- route: reserved
-- Delete the pauses whose time has ended, and return their names. One node deletes each.
--
-- Those that suspend expiry are left to delete_renewed.
WITH ended AS MATERIALIZED (
    SELECT name FROM {schema}scheduler_tasks
    WHERE paused_until <= coalesce($1, {now}) AND NOT suspends_expiry{left_out}
    ORDER BY name
    FOR UPDATE SKIP LOCKED
),
changed AS (
    DELETE FROM {schema}scheduler_tasks
    WHERE name = ANY (ARRAY (SELECT name FROM ended))
    RETURNING name
)
SELECT name FROM changed;

-- fragment: unrenewed
-- The due jobs of the names $1 that have waited during a pause which has ended at $2, and do not have their time again
-- since then. The time of those that were given it early may have passed meanwhile.
status = 'pending'
      AND coalesce(function, job_name) = ANY ($1)
      AND execution_time <= $2
      AND expires_at < greatest($2 + make_interval(secs => misfire_grace_time), coalesce($3, {now}))

-- fragment: renew_walked
unrenewed AS MATERIALIZED (
    SELECT ctid, job_id
    FROM {schema}scheduled_jobs
    WHERE ctid = ANY (ARRAY (SELECT ctid FROM walked WHERE is_unrenewed))
      AND {unrenewed}{left_out}
    FOR NO KEY UPDATE SKIP LOCKED
),
changed AS (
    UPDATE {schema}scheduled_jobs SET expires_at = coalesce($3, {now}) + make_interval(secs => misfire_grace_time)
    WHERE ctid = ANY (ARRAY (SELECT ctid FROM unrenewed))
)

-- name: renew_due
-- route: tuned
-- Give jobs of the names $1 their misfire grace time again, after a pause that has ended at $2: those that are due among
-- the next $7 rows of the priority $4 after the position $5 and $6.
--
-- The last row that was read is the result, if more may follow. A locked row is left to a later walk.
WITH walked AS MATERIALIZED (
    SELECT ctid, execution_time, job_id, {unrenewed} AS is_unrenewed, row_number() OVER () AS n
    FROM (
        SELECT ctid, job_name, function, status, execution_time, job_id, expires_at, misfire_grace_time
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NULL
          AND blocked_on IS NULL
          AND priority = $4
          AND (execution_time, job_id COLLATE "C") > ($5::text::timestamptz, $6::text)
          AND execution_time <= $2
        ORDER BY execution_time, job_id COLLATE "C"
        LIMIT $7
    ) AS job
),
{renew_walked}
SELECT execution_time::text AS since, job_id FROM walked WHERE n = $7;

-- name: renew_blocked
-- route: tuned
-- Do what renew_due does for jobs that wait for limits or shares, among the next $8 rows after the position $4 to $7.
WITH walked AS MATERIALIZED (
    SELECT ctid, blocked_on, priority, execution_time, job_id, {unrenewed} AS is_unrenewed, row_number() OVER () AS n
    FROM (
        SELECT ctid, job_name, function, status, blocked_on, priority, execution_time, job_id, expires_at,
            misfire_grace_time
        FROM {schema}scheduled_jobs
        WHERE blocked_on > 'after'
          AND (blocked_on, priority, execution_time, job_id COLLATE "C")
              > ($4::text, $5::integer, $6::text::timestamptz, $7::text)
        ORDER BY blocked_on, priority, execution_time, job_id COLLATE "C"
        LIMIT $8
    ) AS job
),
{renew_walked}
SELECT blocked_on, priority, execution_time::text AS since, job_id FROM walked WHERE n = $8;

-- name: delete_renewed
-- route: tuned
-- Delete the pause $4, which has ended at $2, if all jobs of the names $1 have their misfire grace time again, or if $5.
--
-- Return whether it is deleted, whether it was there, and the names in its row: another process may have deleted it, or
-- changed it. If the row has further names, their jobs come first.
--
-- As long as the row exists, no worker claims or expires these jobs. Each worker reads that it is gone after this
-- commit, so it meets only jobs whose time was renewed. The condition is checked on the rows, not concluded from a
-- walk: a job may have moved behind the position of one, or another session may have locked it.
WITH ended AS MATERIALIZED (
    SELECT ctid
    FROM {schema}scheduler_tasks
    WHERE name = $4 AND suspends_expiry AND paused_until = $2
      AND NOT EXISTS (SELECT FROM unnest(names) AS other (name) WHERE other.name <> ALL ($1))
      AND ($5::boolean OR NOT EXISTS (
          SELECT
          FROM {levels}
          CROSS JOIN LATERAL (
              SELECT FROM {schema}scheduled_jobs
              WHERE finished_at IS NULL
                AND blocked_on IS NULL
                AND priority = level.priority
                AND {unrenewed}
              LIMIT 1
          ) AS job
      ) AND NOT EXISTS (
          SELECT FROM {schema}scheduled_jobs
          WHERE blocked_on > 'after'
            AND {unrenewed}
      ))
    FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM {schema}scheduler_tasks
    WHERE ctid = ANY (ARRAY (SELECT ctid FROM ended))
    RETURNING name
)
SELECT
    (SELECT count(*) = 1 FROM deleted WHERE pg_notify({channel}, 'tasks') IS NOT NULL) AS is_deleted,
    EXISTS (SELECT FROM {schema}scheduler_tasks WHERE name = $4 AND suspends_expiry AND paused_until = $2) AS was_there,
    ARRAY (
        SELECT DISTINCT other.name
        FROM {schema}scheduler_tasks AS task
        CROSS JOIN LATERAL unnest(task.names) AS other (name)
        WHERE task.name = $4 AND other.name IS NOT NULL
    ) AS names;

-- name: paused_tasks
-- route: shared, reserved
-- Return the pauses, and whether each has ended and the seconds until it does.
--
-- The exact names of its task are those under which no worker starts jobs. Of a pause that suspends expiry, all other
-- names as well, those in its row and those that workers report: a worker that does not know the task must not expire its
-- jobs.
-- Instants that Python cannot hold are limited, so that a row written by hand does not hide the others.
WITH alias AS MATERIALIZED (
    {reported_aliases}
    WHERE EXISTS (SELECT FROM {schema}scheduler_tasks AS paused WHERE paused.suspends_expiry)
)
SELECT name, least(greatest(paused_at, {first_day}), {last_day}) AS paused_at, until.at AS paused_until, note, actor,
    (extract(epoch FROM until.at - coalesce($1, {now})))::double precision AS ends_in, suspends_expiry,
    ARRAY (
        SELECT DISTINCT other.name
        FROM unnest(task.names) AS other (name)
        WHERE other.name IS NOT NULL AND task.suspends_expiry
    ) AS names,
    ARRAY (
        SELECT own.task FROM alias AS own WHERE own.name = task.name AND task.suspends_expiry
        UNION
        SELECT other.name
        FROM alias AS other
        WHERE task.suspends_expiry
          AND other.task = ANY (task.name || ARRAY (SELECT own.task FROM alias AS own WHERE own.name = task.name))
    ) AS aliases,
    ARRAY (
        SELECT DISTINCT other.name FROM unnest(task.exact_names) AS other (name) WHERE other.name IS NOT NULL
    ) AS exact_names
FROM {schema}scheduler_tasks AS task
CROSS JOIN LATERAL (
    SELECT CASE WHEN paused_until IS NOT NULL
        THEN least(greatest(paused_until, {first_instant}), {last_instant}) END AS at
) AS until
ORDER BY name;
