-- name: check_waiting
-- route: tuned
-- Return $1 pending or running jobs that are not blocked, after the priority $2, the due time $3 and the id $4.
--
-- Instants outside of Python's calendar, which only a row written by hand has, are no position, so they are left out.
SELECT {checked_columns}, priority, execution_time, job_id AS last_id
FROM {schema}scheduled_jobs
WHERE finished_at IS NULL
  AND blocked_on IS NULL
  AND (priority, execution_time, job_id COLLATE "C") > ($2::integer, $3::timestamptz, $4::text)
  AND execution_time >= {first_instant}
  AND execution_time <= {last_instant}
ORDER BY priority, execution_time, job_id COLLATE "C"
LIMIT $1::bigint;

-- name: check_blocked
-- route: tuned
-- Return $1 blocked jobs as check_waiting does, after what they wait for ($2), $3, $4 and $5.
SELECT {checked_columns}, blocked_on, priority, execution_time, job_id AS last_id
FROM {schema}scheduled_jobs
WHERE blocked_on IS NOT NULL
  AND (blocked_on, priority, execution_time, job_id COLLATE "C")
      > ($2::text, $3::integer, $4::timestamptz, $5::text)
  AND execution_time >= {first_instant}
  AND execution_time <= {last_instant}
ORDER BY blocked_on, priority, execution_time, job_id COLLATE "C"
LIMIT $1::bigint;

-- name: check_unmigrated
-- route: tuned
-- Return $1 pending or running jobs of pg-scheduler 0.2 after the id $2. Its indexes have no order to continue in.
SELECT job_id, job_name, job_name AS task, NULL::text AS version, NULL::text AS on_failure,
    NULL::text AS on_cancel, {small_task_data} AS task_data,
    pg_column_size(task_data) AS size, job_id AS last_id
FROM {schema}scheduled_jobs
WHERE job_id > $2::text
  AND coalesce(status, 'pending') = ANY (ARRAY ['pending', 'running'])
ORDER BY job_id
LIMIT $1::bigint;

-- name: check_payloads
-- route: tuned
-- Return the arguments of those of the jobs $1 that exist.
SELECT job_id, task_data::text AS task_data
FROM {schema}scheduled_jobs
WHERE job_id = ANY ($1::text[]);

-- name: check_steps
-- route: tuned
-- Return $1 stored steps of the jobs $2 in the order of these, after the name $3 of a step of the first one.
--
-- The limit within the lateral subquery makes it run once for each job, in their order.
SELECT step.job_id, step.name, step.kind, step.value, step.size
FROM unnest($2::text[]) WITH ORDINALITY AS job (id, place)
CROSS JOIN LATERAL (
    SELECT each.job_id, each.name, each.kind,
        CASE WHEN pg_column_size(each.value) <= 2000 AND pg_column_compression(each.value) IS NULL THEN each.value::text END AS value,
        CASE WHEN each.value IS NULL THEN 0 ELSE pg_column_size(each.value) END AS size
    FROM {schema}scheduler_steps AS each
    WHERE each.job_id = job.id
      AND each.name > CASE WHEN job.place = 1 THEN $3::text ELSE '' END
      AND each.kind <> 'result'
      AND left(each.name, 1) <> chr(1)
    ORDER BY each.name
    LIMIT $1::bigint
) AS step
LIMIT $1::bigint;

-- name: check_step_values
-- route: tuned
-- Return the values of those of the steps $2 of the jobs $1 that exist.
SELECT step.job_id, step.name, step.value::text AS value
FROM ROWS FROM (unnest($1::text[]), unnest($2::text[])) AS wanted (job_id, name)
JOIN {schema}scheduler_steps AS step ON step.job_id = wanted.job_id AND step.name = wanted.name;

-- fragment: checked_columns
-- A job as check_waiting returns it. "version" is that of its steps.
job_id, {named}, coalesce(function, job_name) AS task, options ->> 'steps' AS version,
    on_end ->> 'on_failure' AS on_failure, on_end ->> 'on_cancel' AS on_cancel,
    {small_task_data} AS task_data, pg_column_size(task_data) AS size

-- fragment: small_task_data
-- The arguments of a job, as a page has them: NULL if they are large, or compressed, which hides their size.
CASE WHEN pg_column_size(task_data) <= 2000 AND pg_column_compression(task_data) IS NULL
        THEN task_data::text END
