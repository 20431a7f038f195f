-- Text that several statements share. {critical}, {high}, {normal} and {low} are the numbers of the
-- priorities.

-- fragment: new_columns
    job_id, task_data, execution_time, job_name, priority, max_retries, misfire_grace_time,
    timeout_seconds, function, lock_key, created_at, expires_at

-- fragment: new_values
    $1, ($2::text)::jsonb, $3, $4, $5, $6, $7::integer, $8, $9, $10, coalesce($11, now()),
    $3::timestamptz + make_interval(secs => $7)

-- fragment: new_rows
SELECT
    new.job_id, new.task_data::jsonb, new.execution_time, new.job_name, new.priority, new.max_retries,
    new.misfire_grace_time, new.timeout_seconds, new.function, new.lock_key, coalesce($11, now()),
    new.execution_time + make_interval(secs => new.misfire_grace_time)
FROM unnest(
    $1::text[], $2::text[], $3::timestamptz[], $4::text[], $5::integer[], $6::integer[], $7::integer[],
    $8::double precision[], $9::text[], $10::bigint[]
) AS new (
    job_id, task_data, execution_time, job_name, priority, max_retries, misfire_grace_time,
    timeout_seconds, function, lock_key
)

-- fragment: claim_columns
job_id, job_name, coalesce(function, job_name) AS function, attempt, execution_time, task_data::text,
    priority, retry_count, max_retries, timeout_seconds, lock_key

-- fragment: job_columns
job_id, job_name, status, task_data::text, priority, attempt, retry_count, max_retries,
    misfire_grace_time, timeout_seconds, worker_id, error_message, replacement IS NOT NULL AS replacement,
    least(greatest(execution_time, {first_instant}), {last_instant}) AS execution_time,
    least(greatest(created_at, {first_instant}), {last_instant}) AS created_at,
    CASE WHEN started_at BETWEEN {first_day} AND {last_day} THEN started_at END AS started_at,
    CASE WHEN finished_at BETWEEN {first_day} AND {last_day} THEN finished_at END AS finished_at,
    CASE WHEN expires_at BETWEEN {first_day} AND {last_day} THEN expires_at END AS expires_at,
    CASE WHEN last_heartbeat BETWEEN {first_day} AND {last_day} THEN last_heartbeat END AS last_heartbeat,
    CASE WHEN lease_until BETWEEN {first_day} AND {last_day} THEN lease_until END AS lease_until

-- fragment: schedule_columns
dedup_key, derived_key, job_name, function,
    CASE WHEN every > {longest_interval} THEN {longest_interval} ELSE every END AS every, cron, timezone,
    use_advisory_lock, priority, max_retries, enabled, enabled_in_code,
    least(greatest(anchor, {first_day}), {last_fire_day}) AS anchor,
    CASE WHEN last_fire_at BETWEEN {first_day} AND {last_fire_day} THEN last_fire_at END AS last_fire_at,
    CASE WHEN next_fire_at IS NOT NULL
        THEN least(greatest(next_fire_at, {first_day}), {last_fire_day}) END AS next_fire_at

-- fragment: levels
(VALUES ({critical}), ({high}), ({normal}), ({low})) AS level (priority)

-- The calendar of Python spans the years 1 to 9999. A column may hold an instant outside of it.

-- fragment: first_instant
'0001-01-01 00:00:00.000001Z'

-- fragment: last_instant
'9999-12-31 23:59:59.999998Z'

-- fragment: first_day
'0001-01-02'

-- fragment: last_day
'9999-12-31'

-- fragment: last_fire_day
'9000-01-01'

-- fragment: longest_interval
'4000 days'

-- Positions of values in parallel arrays, by the job ids of $1.

-- fragment: places
SELECT jsonb_object_agg(id, n) AS of FROM unnest($1::text[]) WITH ORDINALITY AS each (id, n)

-- fragment: place
(place.of ->> job_id)::integer
