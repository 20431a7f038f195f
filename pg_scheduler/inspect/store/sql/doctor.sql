-- name: doctor_tables
-- route: pool
-- Return the sizes, age, storage settings and statistics of the tables $2 in the schema $1.
SELECT class.relname::text AS name, class.reloptions AS options,
    greatest(age(class.relfrozenxid), age(toast.relfrozenxid)) AS freeze_age,
    greatest(mxid_age(class.relminmxid), mxid_age(toast.relminmxid)) AS multixact_age,
    pg_stat_get_live_tuples(class.oid) AS live, pg_stat_get_dead_tuples(class.oid) AS dead,
    pg_stat_get_tuples_updated(class.oid) AS updates, pg_stat_get_tuples_hot_updated(class.oid) AS hot_updates,
    greatest(pg_stat_get_last_vacuum_time(class.oid), pg_stat_get_last_autovacuum_time(class.oid)) AS vacuumed_at,
    pg_table_size(class.oid) AS bytes, pg_total_relation_size(class.oid) AS total_bytes
FROM pg_catalog.pg_class AS class
JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
LEFT JOIN pg_catalog.pg_class AS toast ON toast.oid = class.reltoastrelid
WHERE namespace.nspname = $1 AND class.relkind = 'r' AND class.relname = ANY ($2::text[])
ORDER BY class.relname;

-- name: doctor_indexes
-- route: pool
-- Return $3 indexes of the tables $2 in the schema $1, with every column that their keys or conditions use.
--
-- An index that a session is building is left out.
SELECT class.relname::text AS "table", index.relname::text AS name, entry.indisvalid AS is_valid,
    method.amname::text AS method, rule.conname::text AS constraint,
    ARRAY (
        SELECT attname::text
        FROM pg_catalog.pg_attribute AS attribute
        WHERE attribute.attrelid = class.oid AND attribute.attnum > 0 AND NOT attribute.attisdropped
          AND (attribute.attnum = ANY (entry.indkey) OR EXISTS (
              SELECT FROM pg_catalog.pg_depend AS used
              WHERE used.classid = class.tableoid AND used.objid = index.oid
                AND used.refclassid = class.tableoid AND used.refobjid = class.oid
                AND used.refobjsubid = attribute.attnum
          ))
        ORDER BY attribute.attnum
    ) AS columns
FROM pg_catalog.pg_class AS class
JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
JOIN pg_catalog.pg_index AS entry ON entry.indrelid = class.oid
JOIN pg_catalog.pg_class AS index ON index.oid = entry.indexrelid
JOIN pg_catalog.pg_am AS method ON method.oid = index.relam
LEFT JOIN pg_catalog.pg_constraint AS rule ON rule.conindid = index.oid AND rule.conrelid = class.oid
WHERE namespace.nspname = $1 AND class.relkind = 'r' AND class.relname = ANY ($2::text[])
  AND NOT EXISTS (
      SELECT FROM pg_catalog.pg_stat_progress_create_index AS progress WHERE progress.index_relid = index.oid
  )
ORDER BY class.relname, index.relname
LIMIT $3;

-- name: doctor_settings
-- route: pool
-- Return the settings $1 of this session, and where their values come from.
SELECT name, setting AS value, source
FROM pg_catalog.pg_settings
WHERE name = ANY ($1::text[]);

-- name: doctor_quarantined
-- route: tuned
-- Return $3 quarantined jobs among the newest $2 unsuccessful ones of the last $1 seconds, the newest first.
--
-- "examined" is the number of the unsuccessful jobs among which they were found.
SELECT job_id, job_name, crash_count, finished_at, total AS examined
FROM (
    SELECT job_id, job_name, crash_count, finished_at, {is_quarantined} AS is_quarantined, count(*) OVER () AS total
    FROM (
        SELECT job_id, {named}, crash_count, error_message,
            least(greatest(finished_at, {first_instant}), {last_instant}) AS finished_at
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NOT NULL
          AND error_message IS NOT NULL
          AND finished_at > (coalesce($4, now()) - make_interval(secs => $1::double precision))
        ORDER BY scheduled_jobs.finished_at DESC, job_id COLLATE "C" DESC
        LIMIT $2::bigint
    ) AS examined
) AS counted
WHERE is_quarantined
LIMIT $3::bigint;

-- name: doctor_failing
-- route: tuned
-- Return by job name how many attempts failed, and how many count for the failure rate, in the last $1 seconds and
-- before.
--
-- The time before has $2 seconds. How many jobs failed for good in the last $1 decides where their errors are found.
-- The newest $3 rows of minutes and of ten minutes are read. The attempts before began within earlier_s seconds.
WITH recent AS MATERIALIZED (
    SELECT examined.job_name, sum({failed_attempts})::bigint AS failed, sum({decided_attempts})::bigint AS decided,
        sum({count_failed})::bigint AS failed_for_good
    FROM (
        SELECT job_name, counts
        FROM {schema}scheduler_stats
        WHERE span = 60
          AND bucket > (coalesce($4, now()) - make_interval(secs => $1::double precision))
          AND bucket <= coalesce($4, now())
        ORDER BY bucket DESC, job_name DESC
        LIMIT $3::bigint
    ) AS examined
    GROUP BY examined.job_name
    HAVING sum({failed_attempts}) > 0
    ORDER BY 2 DESC, 1
    LIMIT 100
)
SELECT recent.job_name, recent.failed, recent.decided, recent.failed_for_good,
    coalesce(sum({failed_attempts}), 0)::bigint AS earlier_failed,
    coalesce(sum({decided_attempts}), 0)::bigint AS earlier_decided,
    extract(epoch FROM coalesce($4, now()) - min(examined.bucket))::double precision AS earlier_s
FROM recent
LEFT JOIN (
    SELECT stats.*
    FROM (VALUES (60), (600)) AS spans (span)
    CROSS JOIN LATERAL (
        SELECT job_name, bucket, counts
        FROM {schema}scheduler_stats AS stats
        WHERE stats.span = spans.span
          AND bucket > (coalesce($4, now()) - make_interval(secs => $2::double precision))
          AND bucket <= (coalesce($4, now()) - make_interval(secs => $1::double precision))
        ORDER BY bucket DESC, job_name DESC
        LIMIT $3::bigint
    ) AS stats
) AS examined ON examined.job_name = recent.job_name
GROUP BY recent.job_name, recent.failed, recent.decided, recent.failed_for_good
ORDER BY recent.failed DESC, recent.job_name;

-- name: doctor_expiring
-- route: tuned
-- Return by job name how many jobs expired in the last $1 seconds. The newest $2 rows of minutes are read.
SELECT examined.job_name, sum({count_expired})::bigint AS expired
FROM (
    SELECT job_name, counts
    FROM {schema}scheduler_stats
    WHERE span = 60
      AND bucket > (coalesce($3, now()) - make_interval(secs => $1::double precision))
      AND bucket <= coalesce($3, now())
    ORDER BY bucket DESC, job_name DESC
    LIMIT $2::bigint
) AS examined
GROUP BY examined.job_name
HAVING sum({count_expired}) > 0
ORDER BY 2 DESC, 1
LIMIT 100;

-- name: doctor_expiry_causes
-- route: tuned
-- Return by job name and cause how many of the newest $2 unsuccessful jobs of the last $1 seconds expired.
--
-- "object" is the limit or the share that they waited for, without its key: limit:stripe.
SELECT examined.job_name, examined.cause, examined.object, count(*) AS jobs
FROM (
    SELECT {named}, status, options ->> 'expiry' AS cause,
        CASE WHEN (options ->> 'expiry') = 'waited' THEN concat(
            split_part(options #>> ARRAY ['waited', 'for'], ':', 1), ':',
            split_part(options #>> ARRAY ['waited', 'for'], ':', 2)
        ) END AS object
    FROM {schema}scheduled_jobs
    WHERE finished_at IS NOT NULL
      AND error_message IS NOT NULL
      AND finished_at > (coalesce($3, now()) - make_interval(secs => $1::double precision))
    ORDER BY scheduled_jobs.finished_at DESC, job_id COLLATE "C" DESC
    LIMIT $2::bigint
) AS examined
WHERE examined.status = 'expired' AND examined.cause IS NOT NULL
GROUP BY examined.job_name, examined.cause, examined.object
ORDER BY 4 DESC, 1, 2, 3
LIMIT 1000;

-- name: doctor_running
-- route: tuned
-- Return $3 running jobs among the first $1 of each priority in the claim index, and what their names took so far.
SELECT due.job_id, coalesce(due.function, due.job_name) AS name, due.worker_id, due.attempt,
    extract(epoch FROM coalesce($2, now()) - greatest(due.started_at, {first_instant}))::double precision AS running_s,
    extract(epoch FROM coalesce($2, now()) - least(greatest(due.lease_until, {first_instant}), {last_instant}))
        ::double precision AS expired_s,
    total.run_hist, total.sums[1] AS run_sum
FROM {first_running}
LEFT JOIN {schema}scheduler_totals AS total ON total.job_name = coalesce(due.function, due.job_name)
LIMIT $3::bigint;

-- name: doctor_payloads
-- route: tuned
-- Return by name how many of the first $1 unfinished jobs of each priority have arguments of more than $2 bytes.
SELECT first.name, count(*) AS jobs, max(first.size)::bigint AS most, min(first.job_id) AS example
FROM {levels}
CROSS JOIN LATERAL (
    SELECT job_id, coalesce(function, job_name) AS name, pg_column_size(task_data) AS size
    FROM {schema}scheduled_jobs
    WHERE finished_at IS NULL AND blocked_on IS NULL AND priority = level.priority
    ORDER BY execution_time, job_id COLLATE "C"
    LIMIT $1::bigint
) AS first
WHERE first.size > $2::bigint
GROUP BY first.name
ORDER BY max(first.size) DESC, first.name
LIMIT 100;

-- name: doctor_overdue
-- route: tuned
-- Return $2 schedules that should have fired more than $1 seconds ago, the most overdue first.
SELECT schedule_id, task, kinds, extract(epoch FROM coalesce($3, now()) - {due_at})::double precision AS overdue_s
FROM {schema}scheduler_schedules AS schedule
WHERE {may_be_overdue}
  AND {due_at} < (coalesce($3, now()) - make_interval(secs => $1::double precision))
  AND {due_at} >= {first_day}
ORDER BY {due_at}
LIMIT $2::bigint;

-- name: doctor_lost_schedules
-- route: pool
-- Return $2 of the ids $1 that no schedule has.
SELECT declared.schedule_id
FROM unnest($1::text[]) AS declared (schedule_id)
WHERE NOT EXISTS (
    SELECT FROM {schema}scheduler_schedules AS schedule WHERE schedule.schedule_id = declared.schedule_id
)
ORDER BY declared.schedule_id COLLATE "C"
LIMIT $2::bigint;

-- name: doctor_retired_schedules
-- route: pool
-- Return $1 schedules that the code declares no longer.
SELECT schedule_id, task, least(greatest(retired_at, {first_instant}), {last_instant}) AS retired_at
FROM {schema}scheduler_schedules AS schedule
WHERE retired_at IS NOT NULL
ORDER BY schedule.schedule_id
LIMIT $1::bigint;

-- name: doctor_schedule_tasks
-- route: tuned
-- Return the tasks of the first $1 schedules that fire next, how many schedules each has, and the first five of them.
SELECT upcoming.task, count(*) AS schedules,
    array_agg(upcoming.schedule_id ORDER BY upcoming.place) FILTER (WHERE upcoming.place <= 5) AS ids
FROM (
    SELECT task, schedule_id, row_number() OVER (PARTITION BY task ORDER BY schedule_id COLLATE "C") AS place
    FROM (
        SELECT task, schedule_id
        FROM {schema}scheduler_schedules AS schedule
        WHERE {awaits_planner} AND schedule.retired_at IS NULL
        ORDER BY {due_at}
        LIMIT $1::bigint
    ) AS first
) AS upcoming
GROUP BY upcoming.task
ORDER BY upcoming.task
LIMIT 1000;

-- name: doctor_herds
-- route: tuned
-- Return the seconds in which more than $2 of the first $1 schedules fire next, and the first five of them.
SELECT upcoming.second, count(*) AS schedules,
    array_agg(upcoming.schedule_id ORDER BY upcoming.place) FILTER (WHERE upcoming.place <= 5) AS ids
FROM (
    SELECT second, schedule_id, row_number() OVER (PARTITION BY second ORDER BY schedule_id COLLATE "C") AS place
    FROM (
        SELECT date_trunc('second', least(schedule.next_fire_at, {last_instant})) AS second, schedule_id
        FROM {schema}scheduler_schedules AS schedule
        WHERE {awaits_planner} AND paused_at IS NULL AND schedule.retired_at IS NULL AND {due_at} >= {first_day}
        ORDER BY {due_at}
        LIMIT $1::bigint
    ) AS first
) AS upcoming
GROUP BY upcoming.second
HAVING count(*) > $2::bigint
ORDER BY count(*) DESC, upcoming.second
LIMIT 20;

-- name: doctor_broken
-- route: pool
-- Return those of the first $1 schedules that the planner paused because of an error, and the number examined.
SELECT examined.schedule_id, examined.note, examined.total
FROM (
    SELECT schedule_id, note, is_broken, count(*) OVER () AS total
    FROM (
        SELECT schedule_id, note, is_broken
        FROM {schema}scheduler_schedules
        ORDER BY schedule_id COLLATE "C"
        LIMIT $1::bigint
    ) AS first
) AS examined
WHERE examined.is_broken
ORDER BY examined.schedule_id COLLATE "C"
LIMIT 100;

-- name: doctor_ahead
-- route: pool
-- Return those of the first $2 schedules that were written, or have fired, ahead of the clock ($1).
SELECT first.schedule_id, first.task, least(first.next_fire_at, {last_fire_day}) AS next_fire_at,
    least(first.computed_at, {last_fire_day}) AS computed_at
FROM (
    SELECT schedule_id, task, next_fire_at, {is_ahead} AND {awaits_planner} AND schedule.retired_at IS NULL AS is_ahead,
        greatest(last_fire_at, updated_at) AS computed_at
    FROM {schema}scheduler_schedules AS schedule
    ORDER BY schedule_id COLLATE "C"
    LIMIT $2::bigint
) AS first
WHERE first.is_ahead
ORDER BY first.schedule_id COLLATE "C"
LIMIT 100;

-- name: doctor_zoned
-- route: tuned
-- Return the triggers of the first $1 schedules that fire next, of at most $2 bytes and with a time zone.
SELECT upcoming.schedule_id, upcoming.text AS trigger, upcoming.anchor
FROM (
    SELECT schedule_id, trigger::text AS text, least(greatest(anchor, {first_day}), {last_fire_day}) AS anchor
    FROM {schema}scheduler_schedules AS schedule
    WHERE {awaits_planner} AND schedule.retired_at IS NULL
    ORDER BY {due_at}
    LIMIT $1::bigint
) AS upcoming
WHERE octet_length(upcoming.text) <= $2::bigint AND strpos(upcoming.text, '"timezone"') > 0;

-- name: doctor_oldest
-- route: tuned
-- Return by status how many seconds ago the oldest of the first $1 unsuccessful jobs ended.
SELECT examined.status, extract(epoch FROM coalesce($2, now()) - min(examined.finished_at))::double precision AS seconds
FROM (
    SELECT status, greatest(finished_at, {first_instant}) AS finished_at
    FROM {schema}scheduled_jobs
    WHERE finished_at IS NOT NULL AND error_message IS NOT NULL
    ORDER BY scheduled_jobs.finished_at, job_id COLLATE "C"
    LIMIT $1::bigint
) AS examined
GROUP BY examined.status;

-- name: doctor_endings
-- route: tuned
-- Count the jobs that ended in the last $1 seconds by status, and the seconds since the first of them.
--
-- The newest $2 rows of minutes and of ten minutes are read.
SELECT coalesce(sum({count_completed}), 0)::bigint AS completed, coalesce(sum({count_failed}), 0)::bigint AS failed,
    coalesce(sum({count_cancelled} + {count_skipped}), 0)::bigint AS cancelled,
    coalesce(sum({count_expired}), 0)::bigint AS expired,
    coalesce(extract(epoch FROM coalesce($3, now()) - min(examined.bucket)), 0)::double precision AS seconds
FROM (VALUES (60), (600)) AS spans (span)
CROSS JOIN LATERAL (
    SELECT bucket, counts
    FROM {schema}scheduler_stats AS stats
    WHERE stats.span = spans.span
      AND bucket > (coalesce($3, now()) - make_interval(secs => $1::double precision))
      AND bucket <= coalesce($3, now())
    ORDER BY bucket DESC, job_name DESC
    LIMIT $2::bigint
) AS examined;

-- name: doctor_orphaned_steps
-- route: tuned
-- Return 5 ids of which the first $1 stored steps have some without a marked job, and the number of such steps.
--
-- The limit within the lateral subquery makes it probe the key of the jobs for each step.
SELECT step.job_id, (sum(count(*)) OVER ())::bigint AS total
FROM (
    SELECT job_id
    FROM {schema}scheduler_steps
    ORDER BY scheduler_steps.job_id, scheduler_steps.name
    LIMIT $1::bigint
) AS step
LEFT JOIN LATERAL (
    SELECT (job.options -> 'steps') IS NOT NULL AS is_marked
    FROM {schema}scheduled_jobs AS job
    WHERE job.job_id = step.job_id
    LIMIT 1
) AS owner ON true
WHERE owner.is_marked IS NOT TRUE
GROUP BY step.job_id
ORDER BY step.job_id
LIMIT 5;
