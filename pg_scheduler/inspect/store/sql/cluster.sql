-- name: inspect_unfinished
-- route: caller
-- Count unfinished jobs by state: at most $1 blocked ones, and of each priority $1 up to now and $1 that are due later.
WITH waiting AS MATERIALIZED (
    SELECT span.is_later, job.*
    FROM {levels}
    CROSS JOIN (
        VALUES (false, '-infinity', coalesce($2::timestamptz, now())), (true, coalesce($2, now()), 'infinity')
    ) AS span (is_later, since, until)
    CROSS JOIN LATERAL (
        SELECT first.*, row_number() OVER () AS place
        FROM (
            SELECT CASE WHEN status = 'pending' THEN {pending_state} ELSE status END AS state
            FROM {schema}scheduled_jobs
            WHERE finished_at IS NULL
              AND blocked_on IS NULL
              AND priority = level.priority
              AND execution_time > span.since
              AND execution_time <= span.until
            ORDER BY execution_time, job_id COLLATE "C"
            LIMIT $1::bigint
        ) AS first
    ) AS job
)
SELECT count(*) FILTER (WHERE state = 'due') AS due,
    count(*) FILTER (WHERE state = 'running') AS running,
    count(*) FILTER (WHERE state = 'scheduled') AS scheduled,
    count(*) FILTER (WHERE state = 'retrying') AS retrying,
    count(*) FILTER (WHERE state = 'sleeping') AS sleeping,
    count(*) FILTER (WHERE state = 'awaiting') AS awaiting,
    coalesce(max(place) FILTER (WHERE NOT is_later) >= $1, false) AS is_due_capped,
    coalesce(max(place) FILTER (WHERE is_later) >= $1, false) AS is_later_capped,
    (
        SELECT count(*)
        FROM (
            SELECT
            FROM {schema}scheduled_jobs
            WHERE blocked_on IS NOT NULL
            ORDER BY blocked_on, priority, execution_time, job_id COLLATE "C"
            LIMIT $1
        ) AS first
    ) AS blocked
FROM waiting;

-- name: inspect_unsuccessful
-- route: caller
-- Count the newest $1 unsuccessful jobs by status, and the quarantined ones among them.
SELECT count(*) FILTER (WHERE newest.status = 'failed' AND {is_quarantined}) AS quarantined,
    count(*) FILTER (WHERE newest.status = 'failed') AS failed,
    count(*) FILTER (WHERE newest.status = 'expired') AS expired,
    count(*) FILTER (WHERE newest.status = 'cancelled') AS cancelled,
    count(*) >= $1 AS is_capped
FROM (
    SELECT status, error_message
    FROM {schema}scheduled_jobs
    WHERE finished_at IS NOT NULL AND error_message IS NOT NULL
    ORDER BY finished_at DESC, job_id COLLATE "C" DESC
    LIMIT $1::bigint
) AS newest;

-- name: inspect_totals
-- route: pool
-- Return the totals of $1 job names, in the order of the names.
SELECT job_name, counts, sums, run_hist, late_hist
FROM {schema}scheduler_totals
ORDER BY job_name
LIMIT $1;

-- name: inspect_schedules
-- route: pool
-- Return $2 schedules, their states and fire times, and for how many seconds each has been overdue.
--
-- $3 is the number of seconds after which the state of a schedule is overdue.
SELECT schedule_id, task, paused_at IS NULL AND finished_at IS NULL AND retired_at IS NULL AS is_enabled,
    CASE WHEN next_fire_at IS NOT NULL THEN least(greatest(next_fire_at, {first_instant}), {last_instant}) END
        AS next_fire_at,
    CASE WHEN last_fire_at IS NOT NULL THEN least(greatest(last_fire_at, {first_instant}), {last_instant}) END
        AS last_fire_at,
    {schedule_overdue_s} AS overdue_s, {schedule_state} AS state
FROM {schema}scheduler_schedules AS schedule
CROSS JOIN (SELECT coalesce($1, now()) AS now, $3::double precision AS overdue_s) AS clock
ORDER BY schedule_id
LIMIT $2;

-- name: inspect_last_death
-- route: pool
-- Return when a worker was last declared dead, among the newest $2 records of the last hour; NULL for none.
SELECT max(at) FILTER (WHERE action = 'declare_dead') AS at
FROM (
    SELECT at, action
    FROM {schema}scheduler_audit
    WHERE at > (coalesce($1::timestamptz, now()) - interval '1 hour') AND at <= {last_instant}
    ORDER BY at DESC
    LIMIT $2::bigint
) AS record;

-- name: inspect_server
-- route: pool
-- Return the time, and the age of the oldest transaction of this database that prevents the removal of dead rows.
--
-- The role may not see when the transactions of others began; pg_monitor may.
SELECT clock_timestamp() AS now,
    coalesce(extract(epoch FROM clock_timestamp() - min(holder.since)), 0)::double precision AS oldest_transaction_s
FROM (
    SELECT xact_start AS since
    FROM pg_catalog.pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
      AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
    UNION ALL
    SELECT prepared
    FROM pg_catalog.pg_prepared_xacts
    WHERE database = current_database()
) AS holder;
