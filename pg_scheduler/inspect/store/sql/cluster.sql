-- name: inspect_quarantined
-- route: caller
-- Count the quarantined jobs among the newest $1 unsuccessful ones.
SELECT count(*) FILTER (WHERE newest.status = 'failed' AND starts_with(newest.error_message, 'quarantined:')) AS jobs
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
-- Return $2 schedules, their fire times, and for how many seconds each has been overdue.
SELECT schedule_id, paused_at IS NULL AND finished_at IS NULL AS is_enabled,
    CASE WHEN next_fire_at IS NOT NULL THEN least(greatest(next_fire_at, {first_instant}), {last_instant}) END
        AS next_fire_at,
    CASE WHEN last_fire_at IS NOT NULL THEN least(greatest(last_fire_at, {first_instant}), {last_instant}) END
        AS last_fire_at,
    CASE WHEN paused_at IS NULL AND finished_at IS NULL AND next_fire_at < coalesce($1, now())
        THEN extract(epoch FROM coalesce($1, now()) - greatest(next_fire_at, {first_instant}))
        ELSE 0
    END::double precision AS overdue_s
FROM {schema}scheduler_schedules
ORDER BY schedule_id
LIMIT $2;

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
