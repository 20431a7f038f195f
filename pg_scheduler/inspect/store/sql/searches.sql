-- The conditions of searches. Each is named search_ and the field; searches.py joins those of a search.
-- Within a condition $1 is its own first parameter. Texts are compared with patterns of whole texts, and with
-- patterns of parts, which ignore case.

-- fragment: search_status
(status = ANY ($1::text[])
    OR (status = 'pending' AND {pending_state} = ANY ($1)))

-- fragment: search_priority
priority = ANY ($1::integer[])

-- fragment: search_words
(job_id ~~ ANY ($1::text[]) OR job_name ~~ ANY ($1) OR function ~~ ANY ($1)
    OR job_id ~~* ANY ($2::text[]) OR job_name ~~* ANY ($2) OR function ~~* ANY ($2))

-- The text of the JSON is compared first, with $3 and $4, because few rows have the value somewhere in it. Only these are
-- taken apart, which is slow.

-- fragment: search_any
(job_id ~~ ANY ($1::text[]) OR job_name ~~ ANY ($1) OR function ~~ ANY ($1)
    OR job_id ~~* ANY ($2::text[]) OR job_name ~~* ANY ($2) OR function ~~* ANY ($2)
    OR ((task_data::text ~~ ANY ($3::text[]) OR task_data::text ~~* ANY ($4::text[])) AND EXISTS (
        SELECT FROM jsonb_path_query(
            task_data, '$.** ? (@.type() == "string" || @.type() == "number" || @.type() == "boolean")'
        ) AS leaf (value)
        WHERE (leaf.value #>> '{}') ~~ ANY ($1) OR (leaf.value #>> '{}') ~~* ANY ($2)
    )))

-- fragment: search_id
(job_id ~~ ANY ($1::text[]) OR job_id ~~* ANY ($2::text[]))

-- fragment: search_name
(job_name ~~ ANY ($1::text[]) OR function ~~ ANY ($1) OR job_name ~~* ANY ($2::text[]) OR function ~~* ANY ($2))

-- fragment: search_shown_name
(coalesce(function, job_name) ~~ ANY ($1::text[]) OR coalesce(function, job_name) ~~* ANY ($2::text[]))

-- fragment: search_worker
(worker_id ~~ ANY ($1::text[]) OR worker_id ~~* ANY ($2::text[]))

-- fragment: search_schedule
((options ->> 'schedule_id') ~~ ANY ($1::text[]) OR (options ->> 'schedule_id') ~~* ANY ($2::text[]))

-- fragment: search_error
(error_message ~~ ANY ($1::text[]) OR error_message ~~* ANY ($2::text[]))

-- fragment: search_limit
(blocked_on ~~ ANY ($1::text[]) OR blocked_on ~~* ANY ($2::text[]))

-- fragment: search_tag
EXISTS (
    SELECT FROM jsonb_array_elements_text(
        CASE WHEN jsonb_typeof(task_data #> ARRAY ['metadata', 'tags']) = 'array'
            THEN task_data #> ARRAY ['metadata', 'tags'] END
    ) AS each (tag)
    WHERE each.tag ~~ ANY ($1::text[]) OR each.tag ~~* ANY ($2::text[])
)

-- A value in the arguments or metadata, as text: numbers and booleans as JSON writes them.

-- fragment: search_json
((task_data #>> $1::text[]) ~~ ANY ($2::text[]) OR (task_data #>> $1) ~~* ANY ($3::text[]))

-- Only unfinished jobs with steps have open ones, so that other jobs cost no look at the table of steps. The key of
-- that table begins with the id of the job, which bounds the rows of one job.

-- fragment: waiting_step_name
-- The name of an open step. That of one whose next attempt the job waits for is in the name of its failed attempts.
(CASE WHEN step.kind = 'retry' THEN substr(step.name, 8) ELSE step.name END)

-- fragment: searched_step_name
-- The name of an open step; of a message the name of its mailbox.
(CASE WHEN left(step.name, 6) = concat(chr(1), 'mail:') THEN substr(step.name, 12) ELSE {waiting_step_name} END)

-- fragment: search_step
(finished_at IS NULL AND (options ->> 'steps') IS NOT NULL AND EXISTS (
    SELECT FROM {schema}scheduler_steps AS step
    CROSS JOIN (SELECT examined.options, examined.attempt) AS job
    WHERE step.job_id = examined.job_id AND {is_open_wait}
      AND ({searched_step_name} ~~ ANY ($1::text[]) OR {searched_step_name} ~~* ANY ($2::text[]))
))

-- fragment: search_signal
(finished_at IS NULL AND (options ->> 'steps') IS NOT NULL AND EXISTS (
    SELECT FROM {schema}scheduler_steps AS step
    CROSS JOIN (SELECT examined.options, examined.attempt) AS job
    WHERE step.job_id = examined.job_id AND {is_open_wait} AND step.kind = 'signal'
      AND ({searched_step_name} ~~ ANY ($1::text[]) OR {searched_step_name} ~~* ANY ($2::text[]))
))

-- fragment: search_child
(finished_at IS NULL AND (options ->> 'steps') IS NOT NULL AND EXISTS (
    SELECT FROM {schema}scheduler_steps AS step
    CROSS JOIN LATERAL jsonb_array_elements_text(
        CASE WHEN jsonb_typeof(step.value) = 'array' THEN step.value ELSE jsonb_build_array(step.value) END
    ) AS child (id)
    CROSS JOIN (SELECT examined.options, examined.attempt) AS job
    WHERE step.job_id = examined.job_id AND {is_open_wait} AND step.kind = 'child'
      AND (child.id ~~ ANY ($1::text[]) OR child.id ~~* ANY ($2::text[]))
))

-- A job that has got a result of another one is marked, too, and has no steps.

-- fragment: search_steps
((options -> 'steps') IS NOT NULL AND EXISTS (
    SELECT FROM {schema}scheduler_steps AS step WHERE step.job_id = examined.job_id AND step.kind <> 'result'
))

-- A cursor is open while its attempt runs, and waits for nothing.

-- fragment: is_open_wait
step.ended_at IS NULL AND step.kind = ANY (ARRAY ['sleep', 'signal', 'child', 'first', 'retry'])
      AND (step.kind = 'first' OR {is_its_wait})

-- fragment: search_attempt
EXISTS (
    SELECT FROM {search_numbers} WHERE attempt >= span.low AND attempt <= span.high
)

-- fragment: search_crashed
EXISTS (
    SELECT FROM {search_numbers} WHERE crash_count >= span.low AND crash_count <= span.high
)

-- fragment: search_numbers
ROWS FROM (unnest($1::integer[]), unnest($2::integer[])) AS span (low, high)

-- fragment: search_due
EXISTS (
    SELECT FROM {search_spans}
    WHERE (span.since IS NULL OR execution_time >= span.since)
      AND (span.until IS NULL OR execution_time < span.until)
)

-- fragment: search_created
EXISTS (
    SELECT FROM {search_spans}
    WHERE (span.since IS NULL OR created_at >= span.since) AND (span.until IS NULL OR created_at < span.until)
)

-- fragment: search_finished
EXISTS (
    SELECT FROM {search_spans}
    WHERE finished_at IS NOT NULL
      AND (span.since IS NULL OR finished_at >= span.since)
      AND (span.until IS NULL OR finished_at < span.until)
)

-- fragment: search_spans
ROWS FROM (unnest($1::timestamptz[]), unnest($2::timestamptz[])) AS span (since, until)

-- Stands for the conditions of a search; none holds for every job.

-- fragment: search_conditions
true

-- Rows of "examined" are numbered in the order of the scan, and the last one is marked. Those that match are
-- returned, and the last one, from which the next statement continues.

-- fragment: search_result
SELECT {job_columns}, matches, place
FROM (
    SELECT *, row_number() OVER () AS place, lead(job_id) OVER () IS NULL AS is_last,
        {search_conditions} AS matches
    FROM examined
) AS found
WHERE matches OR is_last
LIMIT $1::bigint

-- name: search_newest
-- route: caller
-- Examine $2 jobs before the id $3, down to the id $4, and return $1 rows: those that match, and the last one.
--
-- Generated ids sort by the time of their creation. The first condition bounds the scan of the key under any plan.
WITH examined AS NOT MATERIALIZED (
    SELECT *
    FROM {schema}scheduled_jobs
    WHERE job_id <= coalesce($3::text, (SELECT max(job_id) FROM {schema}scheduled_jobs))
      AND ($3 IS NULL OR job_id < $3)
      AND job_id >= coalesce($4::text, '')
    ORDER BY job_id DESC
    LIMIT $2::bigint
)
{search_result};

-- name: search_ids
-- route: caller
-- Examine $2 jobs of the ids $3, and return $1 rows as search_newest does.
WITH examined AS NOT MATERIALIZED (
    SELECT *
    FROM {schema}scheduled_jobs
    WHERE job_id = ANY ($3::text[])
    ORDER BY job_id COLLATE "C"
    LIMIT $2::bigint
)
{search_result};

-- name: search_waiting
-- route: caller
-- Examine $2 pending or running jobs of a priority that are not blocked, in the order of their start, and return
-- $1 rows as search_newest does.
--
-- From the instant $4 and the id $5 on, and before the instant $6. Instants outside of Python's calendar, which only
-- a row written by hand has, are no position, so they are left out.
WITH examined AS NOT MATERIALIZED (
    SELECT *
    FROM {schema}scheduled_jobs
    WHERE finished_at IS NULL
      AND blocked_on IS NULL
      AND priority = $3::integer
      AND (execution_time, job_id COLLATE "C") > ($4::timestamptz, $5::text)
      AND execution_time < coalesce($6::timestamptz, {last_instant})
    ORDER BY execution_time, job_id COLLATE "C"
    LIMIT $2::bigint
)
{search_result};

-- name: search_due
-- route: caller
-- Examine $2 pending or running jobs of the priorities $3 that are not blocked, by their due time whatever their
-- priority, and return $1 rows as search_newest does.
--
-- From the instant $4 and the id $5 on, and before the instant $6, as search_waiting does. It reads $2 rows of each
-- priority.
WITH examined AS NOT MATERIALIZED (
    SELECT job.*
    FROM unnest($3::integer[]) AS level (priority)
    CROSS JOIN LATERAL (
        SELECT *
        FROM {schema}scheduled_jobs AS waiting
        WHERE waiting.finished_at IS NULL
          AND waiting.blocked_on IS NULL
          AND waiting.priority = level.priority
          AND (waiting.execution_time, waiting.job_id COLLATE "C") > ($4::timestamptz, $5::text)
          AND waiting.execution_time < coalesce($6::timestamptz, {last_instant})
        ORDER BY waiting.execution_time, waiting.job_id COLLATE "C"
        LIMIT $2::bigint
    ) AS job
    ORDER BY job.execution_time, job.job_id COLLATE "C"
    LIMIT $2::bigint
)
{search_result};

-- name: search_blocked
-- route: caller
-- Examine $2 blocked jobs by what they wait for ($3), priority ($4), due time ($5) and id ($6), and return $1 rows as
-- search_newest does.
WITH examined AS NOT MATERIALIZED (
    SELECT *
    FROM {schema}scheduled_jobs
    WHERE blocked_on IS NOT NULL
      AND (blocked_on, priority, execution_time, job_id COLLATE "C")
          > ($3::text, $4::integer, $5::timestamptz, $6::text)
      AND execution_time >= {first_instant}
      AND execution_time <= {last_instant}
    ORDER BY blocked_on, priority, execution_time, job_id COLLATE "C"
    LIMIT $2::bigint
)
{search_result};

-- name: search_unsuccessful
-- route: caller
-- Examine $2 finished jobs that have an error, the newest first, and return $1 rows as search_newest does.
--
-- Before the instant $3 and the id $4, and not before the instant $5.
WITH examined AS NOT MATERIALIZED (
    SELECT *
    FROM {schema}scheduled_jobs
    WHERE finished_at IS NOT NULL
      AND error_message IS NOT NULL
      AND (finished_at, job_id COLLATE "C") < ($3::timestamptz, $4::text)
      AND finished_at >= coalesce($5::timestamptz, {first_day})
    ORDER BY finished_at DESC, job_id COLLATE "C" DESC
    LIMIT $2::bigint
)
{search_result};

-- name: read_sizes
-- route: pool
-- Return the time, the estimated rows of the table $2 and of its usable indexes, and how old the data of a standby is.
SELECT class.relname::text AS name,
    CASE WHEN class.reltuples >= 0 THEN least(class.reltuples, {most_counted})::bigint END AS estimate,
    coalesce($1, now()) AS now,
    CASE WHEN pg_is_in_recovery()
        THEN coalesce(extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()), 0)::double precision
    END AS standby_lag_s
FROM pg_catalog.pg_class AS class
LEFT JOIN pg_catalog.pg_index AS entry ON entry.indexrelid = class.oid
WHERE class.oid = to_regclass($2) OR (entry.indrelid = to_regclass($2) AND entry.indisvalid);
