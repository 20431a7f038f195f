-- fragment: new_columns
    job_id, task_data, execution_time, job_name, priority, max_retries, misfire_grace_time,
    timeout_seconds, function, lock_key, created_at, expires_at

-- Of a job with a generated id, which has neither a function nor a lock of its own.

-- fragment: generated_columns
    job_id, task_data, execution_time, job_name, priority, max_retries, timeout_seconds, created_at

-- The values of its first columns, due now.

-- fragment: due_values
$1, ($2::text)::jsonb, {due_now}, $3, $4, $5, $6

-- fragment: due_now
coalesce($7, {now})

-- fragment: notified_now
CASE WHEN pg_notify({channel}, concat($8::text, ' ', extract(epoch FROM {due_now}))) IS NOT NULL THEN {due_now} END

-- fragment: new_values
    $1, ($2::text)::jsonb, $3, $4, $5, $6, $7::integer, $8, $9, $10, {called_at},
    $3::timestamptz + make_interval(secs => $7)

-- The time of the call; a transaction may have begun long before. A job that is due at once is known by a due time that
-- is that of its call, if the server's clock was wrong.

-- fragment: called_at
coalesce($11, {now})

-- The same values for jobs that are due $3 seconds after the call.

-- fragment: delayed_values
SELECT
    $1, ($2::text)::jsonb, due.execution_time, $4, $5::integer, $6::integer, $7::integer,
    $8::double precision, $9, $10::bigint, {called_at},
    due.execution_time + make_interval(secs => $7)
FROM (
    SELECT {called_at} + make_interval(secs => $3::double precision)
) AS due (execution_time)

-- fragment: delayed_rows
SELECT
    {new_row_values}
FROM (
    SELECT *, {called_at} + make_interval(secs => delay_s) AS execution_time
    FROM ROWS FROM (
        {delayed_arrays}
    ) AS each (job_id, task_data, delay_s, {option_names})
) AS new

-- A longer wait for a lock than $13, such as '10ms', fails the statement; NULL leaves the setting of the session. It is
-- set before the first row is inserted, for the rest of the transaction: once, also by a statement with many rows.

-- fragment: limited_wait
WHERE $13::text IS NULL OR set_config('lock_timeout', $13, true) IS NOT NULL

-- fragment: limited_wait_of_rows
WHERE (SELECT $13::text IS NULL OR set_config('lock_timeout', $13, true) IS NOT NULL)

-- fragment: new_rows
SELECT
    {new_row_values}
FROM ROWS FROM (
    {new_arrays}
) AS new (
    {new_names}
)

-- fragment: new_row_values
{new_values_without_expiry},
    new.execution_time + make_interval(secs => new.misfire_grace_time)

-- fragment: new_values_without_expiry
new.job_id, new.task_data::jsonb, new.execution_time, new.job_name, new.priority, new.max_retries,
    new.misfire_grace_time, new.timeout_seconds, new.function, new.lock_key, {called_at}

-- fragment: new_arrays
unnest($1::text[]), unnest($2::text[]), unnest($3::timestamptz[]), {option_arrays}

-- fragment: delayed_arrays
unnest($1::text[]), unnest($2::text[]), unnest($3::double precision[]), {option_arrays}

-- fragment: option_arrays
unnest($4::text[]), unnest($5::integer[]), unnest($6::integer[]), unnest($7::integer[]),
    unnest($8::double precision[]), unnest($9::text[]), unnest($10::bigint[])

-- fragment: new_names
job_id, task_data, execution_time, {option_names}

-- fragment: option_names
job_name, priority, max_retries, misfire_grace_time, timeout_seconds, function, lock_key

-- The same with the columns of extended jobs, in $13 to $16, or in $12 to $15 where no message is sent.

-- fragment: extended_rows
SELECT
    {new_row_values}, {extra_values}
FROM ROWS FROM (
    {new_arrays}, {extra_arrays}
) WITH ORDINALITY AS new ({new_names}, options, unique_key, blocked_on, on_end, place)

-- fragment: delayed_extended_rows
SELECT
    {new_row_values}, {extra_values}
FROM (
    SELECT *, {called_at} + make_interval(secs => delay_s) AS execution_time
    FROM ROWS FROM (
        {delayed_arrays}, {extra_arrays}
    ) WITH ORDINALITY AS each (job_id, task_data, delay_s, {option_names}, options, unique_key, blocked_on, on_end, place)
) AS new

-- fragment: extra_values
new.options::jsonb, new.unique_key, new.blocked_on, new.on_end::jsonb

-- fragment: extra_arrays
unnest($13::text[]), unnest($14::text[]), unnest($15::text[]), unnest($16::text[])

-- In this order, calls that share keys or ids cannot deadlock, and the first of several jobs with one key is inserted.

-- fragment: extended_order
WHERE (SELECT $17::text IS NULL OR set_config('lock_timeout', $17, true) IS NOT NULL)
ORDER BY new.unique_key COLLATE "C", CASE WHEN new.unique_key IS NULL THEN new.job_id END COLLATE "C", new.place
ON CONFLICT DO NOTHING

-- fragment: replacing_rows
SELECT
    {new_row_values}, {extra_values}
FROM ROWS FROM (
    {new_arrays}, unnest($12::text[]), unnest($13::text[]), unnest($14::text[]), unnest($15::text[])
) AS new ({new_names}, options, unique_key, blocked_on, on_end)

-- The same for debounced jobs, whose rows an earlier statement of the transaction has locked. A call that postpones a job
-- copies the instant at which the series of calls began, and the job is due "max_wait" after it at the latest. If that
-- has passed, the job is due since then, so that it keeps its place among the due jobs, and its grace time begins anew.
-- So does its deadline, if that is a number of seconds from the due time ($16, else NULL).

-- fragment: debounced_rows
SELECT
    {new_values_without_expiry},
    greatest(new.execution_time, {called_at}) + make_interval(secs => new.misfire_grace_time), {extra_values}
FROM (
    SELECT each.job_id, each.task_data, capped.execution_time, {option_names},
        CASE WHEN series.began_at IS NULL THEN each.options
            ELSE (
                jsonb_set(each.options::jsonb, ARRAY ['debounce', 'since'],
                    to_jsonb(extract(epoch FROM series.began_at)))
                || CASE WHEN capped.execution_time < each.execution_time AND each.deadline_s IS NOT NULL
                    THEN jsonb_build_object('deadline', to_char(least(
                        greatest(capped.execution_time, {called_at}) + make_interval(secs => each.deadline_s),
                        {last_day}) AT TIME ZONE 'UTC', {deadline_format}))
                    ELSE jsonb_build_object() END
            )::text END AS options,
        each.unique_key, each.blocked_on, each.on_end
    FROM ROWS FROM (
        {new_arrays}, unnest($12::text[]), unnest($13::text[]), unnest($14::text[]), unnest($15::text[]),
        unnest($16::double precision[])
    ) AS each ({new_names}, options, unique_key, blocked_on, on_end, deadline_s)
    LEFT JOIN LATERAL (
        SELECT {series_began_at} AS began_at
        FROM {schema}scheduled_jobs AS job
        WHERE job.job_id = each.job_id
        OFFSET 0
    ) AS series ON true
    CROSS JOIN LATERAL (
        SELECT least(
            each.execution_time,
            series.began_at + make_interval(
                secs => (each.options::jsonb #>> ARRAY ['debounce', 'max_wait'])::double precision)
        ) AS execution_time
    ) AS capped
) AS new

-- When the series of calls began which a call continues: that of a job which has had no attempt yet, or that of the
-- definition which waits for the end of the attempt. NULL if the call begins a series. A job that was claimed, but had
-- no room within a limit, has had no attempt. The clock may have been set back since. A number that was written by hand
-- may be too large for a double.

-- fragment: series_began_at
CASE WHEN jsonb_typeof({debounced_since}) = 'number'
            THEN to_timestamp(least(greatest(({debounced_since})::numeric, 0),
                extract(epoch FROM {called_at})::numeric)::double precision) END

-- fragment: debounced_since
CASE
            WHEN job.status = 'running' AND (job.on_end #>> ARRAY ['replacement', 'unique_key']) = each.unique_key
                THEN job.on_end #> ARRAY ['replacement', 'options', 'debounce', 'since']
            WHEN job.status = 'pending' AND job.unique_key = each.unique_key
                AND job.retry_count = 0 AND job.crash_count = 0 AND NOT {has_entry} AND ({suspension}) IS NULL
                THEN job.options #> ARRAY ['debounce', 'since'] END

-- The options of a new definition. Jobs that wait for this one wait for it too, so a result that is kept for them stays
-- kept.

-- fragment: replaced_keep_result
coalesce(old.on_end #> ARRAY ['replacement', 'options', 'keep_result'],
                old.on_end #> ARRAY ['in_vain', 'options', 'keep_result'], old.options -> 'keep_result')

-- fragment: replacing_options
CASE WHEN (old.on_end -> 'child') IS NOT NULL AND {replaced_keep_result} IS NOT NULL
            THEN jsonb_build_object('keep_result', {replaced_keep_result})
                || coalesce(EXCLUDED.options, jsonb_build_object())
        ELSE EXCLUDED.options END

-- Whether a job keeps its row, and the new definition waits for the end of its attempt. If a job of a sequence was ended by
-- hand, or by a deadline, its attempt may run on, and the next job of the sequence waits for that. Such a job runs again in
-- its row, and its worker stops the attempt; see attempt_is_revoked.

-- fragment: is_under_attempt
(old.status = 'running' OR old.finished_at IS NOT NULL AND (old.on_end -> 'alive') IS NOT NULL
        AND (old.on_end -> 'sequence') IS NOT NULL AND old.worker_id IS NOT NULL)

-- fragment: replace_existing
ON CONFLICT (job_id) DO UPDATE SET
    job_name        = CASE WHEN {is_under_attempt} THEN old.job_name        ELSE EXCLUDED.job_name END,
    execution_time  = CASE WHEN {is_under_attempt} THEN old.execution_time
        ELSE EXCLUDED.execution_time END,
    task_data       = CASE WHEN {is_under_attempt} THEN old.task_data       ELSE EXCLUDED.task_data END,
    priority        = CASE WHEN {is_under_attempt} THEN old.priority        ELSE EXCLUDED.priority END,
    max_retries     = CASE WHEN {is_under_attempt} THEN old.max_retries     ELSE EXCLUDED.max_retries END,
    misfire_grace_time = CASE WHEN {is_under_attempt} THEN old.misfire_grace_time
        ELSE EXCLUDED.misfire_grace_time END,
    timeout_seconds = CASE WHEN {is_under_attempt} THEN old.timeout_seconds
        ELSE EXCLUDED.timeout_seconds END,
    function        = CASE WHEN {is_under_attempt} THEN old.function        ELSE EXCLUDED.function END,
    lock_key        = CASE WHEN {is_under_attempt} THEN old.lock_key        ELSE EXCLUDED.lock_key END,
    options         = CASE WHEN {is_under_attempt} THEN old.options         ELSE {replacing_options} END,
    unique_key      = CASE WHEN old.status = 'running' THEN coalesce(old.unique_key, EXCLUDED.unique_key)
        ELSE EXCLUDED.unique_key END,
    expires_at      = CASE WHEN {is_under_attempt} THEN old.expires_at      ELSE EXCLUDED.expires_at END,
    retry_count     = CASE WHEN {is_under_attempt} THEN old.retry_count     ELSE 0 END,
    crash_count     = CASE WHEN {is_under_attempt} THEN old.crash_count     ELSE 0 END,
    started_at      = CASE WHEN {is_under_attempt} THEN old.started_at      END,
    error_message   = CASE WHEN {is_under_attempt} THEN old.error_message   END,
    worker_id       = CASE WHEN {is_under_attempt} THEN old.worker_id       END,
    last_heartbeat  = CASE WHEN {is_under_attempt} THEN old.last_heartbeat  ELSE EXCLUDED.created_at END,
    lease_until     = CASE WHEN {is_under_attempt} THEN old.lease_until     END,
    status          = CASE WHEN {is_under_attempt} THEN 'running'           ELSE 'pending' END,
    finished_at     = NULL,
    blocked_on      = CASE WHEN {is_under_attempt} THEN NULL                ELSE EXCLUDED.blocked_on END,
    errors          = CASE WHEN {is_under_attempt} THEN old.errors
        ELSE jsonb_path_query_array_tz(old.errors, {ended_by_hand}, jsonb_build_object('attempt', NULL::integer,
            'since', to_char(coalesce($11, {now}) - interval '2 seconds', {instant_format}))) END,
    progress        = CASE WHEN {is_under_attempt} THEN old.progress        END,
    on_end          = CASE
        WHEN {is_under_attempt} THEN
            CASE WHEN jsonb_typeof(old.on_end) = 'object' THEN old.on_end - 'in_vain' ELSE jsonb_build_object() END
            || CASE WHEN old.status = 'running' THEN jsonb_build_object()
                ELSE jsonb_build_object('alive', old.attempt) END
            || jsonb_build_object('replacement', jsonb_build_object(
                'job_name', EXCLUDED.job_name, 'execution_time', EXCLUDED.execution_time,
                'task_data', EXCLUDED.task_data, 'priority', EXCLUDED.priority,
                'max_retries', EXCLUDED.max_retries, 'misfire_grace_time', EXCLUDED.misfire_grace_time,
                'timeout_seconds', EXCLUDED.timeout_seconds::numeric, 'function', EXCLUDED.function,
                'lock_key', EXCLUDED.lock_key, 'options', {replacing_options},
                'unique_key', EXCLUDED.unique_key, 'blocked_on', EXCLUDED.blocked_on,
                'on_end', EXCLUDED.on_end, 'given_at', EXCLUDED.created_at))
        WHEN jsonb_typeof(old.on_end) = 'object' AND (old.on_end - {definition_keys}) <> jsonb_build_object() THEN
            (old.on_end - {definition_keys}) || coalesce(EXCLUDED.on_end, jsonb_build_object())
        ELSE EXCLUDED.on_end
    END
WHERE old.finished_at IS NULL OR old.on_end IS NULL OR (old.on_end -> 'alive') IS NOT NULL

-- name: insert_generated_job
-- route: pool | sticky
-- Insert one job whose generated id cannot be taken, and that expires at a time ($10, NULL for never).
--
-- With a lock timeout ($11) it fails early if a trigger of the application waits for a lock.
INSERT INTO {schema}scheduled_jobs (
    {generated_columns}, misfire_grace_time, expires_at
)
SELECT
    $1, ($2::text)::jsonb, $3, $4, $5, $6, $8, coalesce($9, {now}), $7, $10
WHERE $11::text IS NULL OR set_config('lock_timeout', $11, true) IS NOT NULL;

-- name: insert_generated_jobs
-- route: pool | sticky
-- Insert jobs whose generated ids cannot be taken, with a lock timeout ($12) as insert_generated_job.
INSERT INTO {schema}scheduled_jobs (
    {new_columns}
)
{new_rows}
WHERE (SELECT $12::text IS NULL OR set_config('lock_timeout', $12, true) IS NOT NULL);

-- name: insert_job
-- route: pool | sticky
-- Insert one job if its id is free, and send a message ($12, unless NULL) in the same commit.
--
-- With a lock timeout ($13) it fails early if an open transaction has inserted the id.
INSERT INTO {schema}scheduled_jobs (
    {new_columns}
)
SELECT
    {new_values}
{limited_wait}
ON CONFLICT (job_id) DO NOTHING
RETURNING job_id, CASE WHEN $12::text IS NOT NULL THEN pg_notify({channel}, $12) END;

-- name: insert_jobs
-- route: pool | sticky
-- Insert the jobs whose ids are free, return those ids, and send a message as insert_job does.
--
-- All calls insert in the same order, so two of them that share ids cannot deadlock.
INSERT INTO {schema}scheduled_jobs (
    {new_columns}
)
{new_rows}
{limited_wait_of_rows}
ORDER BY new.job_id COLLATE "C"
ON CONFLICT (job_id) DO NOTHING
RETURNING job_id, CASE WHEN $12::text IS NOT NULL THEN pg_notify({channel}, $12) END;

-- name: enqueue_job
-- route: sticky
-- Insert one job that is due a delay from now, as insert_job does, and return the time of the call.
--
-- The message gets that time: the job is due then or later.
INSERT INTO {schema}scheduled_jobs (
    {new_columns}
)
{delayed_values}
{limited_wait}
ON CONFLICT (job_id) DO NOTHING
RETURNING job_id, {called_at} AS called_at,
    CASE WHEN $12::text IS NOT NULL THEN pg_notify({channel}, $12 || ' ' || extract(epoch FROM {called_at})) END;

-- name: enqueue_generated_job
-- route: pool
-- Insert one job whose generated id cannot be taken, due now without expiry, and send a message as enqueue_job does.
--
-- For transactions of callers. Each expression counts, and a row that is returned costs a driver more than the job: so
-- the value of a column sends the message.
INSERT INTO {schema}scheduled_jobs (
    {generated_columns}
) VALUES (
    {due_values}, {notified_now}
);

-- name: enqueue_extended_generated_job
-- route: pool
-- Insert a job with options ($9) and consequences ($10) as enqueue_generated_job does.
--
-- An enqueuer must not name these columns, not even to leave them NULL.
INSERT INTO {schema}scheduled_jobs (
    {generated_columns}, options, on_end
) VALUES (
    {due_values}, {notified_now}, ($9::text)::jsonb, ($10::text)::jsonb
);

-- name: enqueue_due_job
-- route: pool
-- Insert a job as enqueue_generated_job does, but send no message, and return the time of the call.
INSERT INTO {schema}scheduled_jobs (
    {generated_columns}
) VALUES (
    {due_values}, {due_now}
)
RETURNING {due_now} AS called_at;

-- name: enqueue_extended_due_job
-- route: pool
-- Insert a job as enqueue_extended_generated_job does, but send no message, and return the time of the call.
INSERT INTO {schema}scheduled_jobs (
    {generated_columns}, options, on_end
) VALUES (
    {due_values}, {due_now}, ($8::text)::jsonb, ($9::text)::jsonb
)
RETURNING {due_now} AS called_at;

-- name: enqueue_jobs
-- route: sticky
-- Insert jobs that are due a delay from now, as insert_jobs does, and return the time of the call.
--
-- The message gets that time: the jobs are due then or later.
INSERT INTO {schema}scheduled_jobs (
    {new_columns}
)
{delayed_rows}
{limited_wait_of_rows}
ORDER BY new.job_id COLLATE "C"
ON CONFLICT (job_id) DO NOTHING
RETURNING job_id, {called_at} AS called_at,
    CASE WHEN $12::text IS NOT NULL THEN pg_notify({channel}, $12 || ' ' || extract(epoch FROM {called_at})) END;

-- name: insert_extended_jobs
-- route: sticky
-- Insert jobs with options ($13), unique keys ($14), what they wait for ($15) and their consequences ($16).
--
-- Returns the ids of those whose id and unique key are free, sends a message and limits the wait ($17), as
-- insert_job does.
INSERT INTO {schema}scheduled_jobs (
    {new_columns}, options, unique_key, blocked_on, on_end
)
{extended_rows}
{extended_order}
RETURNING job_id, CASE WHEN $12::text IS NOT NULL THEN pg_notify({channel}, $12) END;

-- name: enqueue_extended_jobs
-- route: sticky
-- Insert jobs that are due a delay from now, as insert_extended_jobs does, and return the time of the call.
--
-- The message gets that time: the jobs are due then or later.
INSERT INTO {schema}scheduled_jobs (
    {new_columns}, options, unique_key, blocked_on, on_end
)
{delayed_extended_rows}
{extended_order}
RETURNING job_id, {called_at} AS called_at,
    CASE WHEN $12::text IS NOT NULL THEN pg_notify({channel}, $12 || ' ' || extract(epoch FROM {called_at})) END;

-- name: replace_jobs
-- route: pool
-- Insert jobs, or give existing ones a new definition with its attempts unused. The ids must differ.
--
-- A running job keeps its row until its attempt ends; the new definition waits in "on_end". So does a job of a sequence
-- that has ended while its attempt runs on: it is running again, so that the next job waits for the attempt. The attempt
-- number never decreases: it is part of the fencing token. The history keeps the attempts that limits still count.
-- Other jobs that wait for this one wait for its new definition. Rows are written in the same order as in insert_jobs.
-- A job that has ended and whose consequences are not applied yet is only locked, and its id is not returned.
INSERT INTO {schema}scheduled_jobs AS old (
    {new_columns}
)
{new_rows}
WHERE true{within_lock_limit}
ORDER BY new.job_id COLLATE "C"
{replace_existing}
RETURNING job_id;

-- name: replace_extended_jobs
-- route: pool
-- Replace jobs as replace_jobs does, with the columns of insert_extended_jobs ($12 to $15).
INSERT INTO {schema}scheduled_jobs AS old (
    {new_columns}, options, unique_key, blocked_on, on_end
)
{replacing_rows}
WHERE true{within_lock_limit}
ORDER BY new.job_id COLLATE "C"
{replace_existing}
RETURNING job_id;

-- name: replace_debounced_jobs
-- route: caller
-- Replace jobs as replace_extended_jobs does, but let them wait no longer than "max_wait" in their options permits.
--
-- lock_key_holders must have locked the rows in an earlier statement of the transaction. So no other call changes when
-- a series began after this statement has read it, and no worker claims a job while it is postponed. Returns the due
-- times and the deadlines that the definitions have got.
INSERT INTO {schema}scheduled_jobs AS old (
    {new_columns}, options, unique_key, blocked_on, on_end
)
{debounced_rows}
WHERE true{within_lock_limit}
ORDER BY new.job_id COLLATE "C"
{replace_existing}
RETURNING job_id, CASE WHEN status = 'running'
    THEN (on_end #>> ARRAY ['replacement', 'execution_time'])::timestamptz ELSE execution_time END AS due,
    CASE WHEN status = 'running' THEN on_end #>> ARRAY ['replacement', 'options', 'deadline']
        ELSE options ->> 'deadline' END AS deadline;

-- name: note_deadlines
-- route: sticky
-- Note that the jobs $1 must have ended at the times $2.
--
-- It runs before the jobs are inserted, and waits for no other transaction: no two entries conflict.
INSERT INTO {schema}scheduler_deadlines (job_id, at, noted_at)
SELECT new.job_id, new.at, coalesce($3, {now})
FROM ROWS FROM (unnest($1::text[]), unnest($2::timestamptz[])) AS new (job_id, at);
