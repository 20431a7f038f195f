-- Results of jobs that were passed to jobs that waited for them: rows of scheduler_steps, named by the id of the other
-- job. The names have other prefixes for children, and while the attempt of a former definition of the job runs. A step
-- that has ended keeps the results of its children: of one that was retried since, the newer result is stored as well,
-- under "again:", until retry_job repeats the step. If an open step waits for that child too, which has its unique key,
-- the newer result is that of the child, and the ended step has the former one of its own, under "kept:". A result that
-- waits under "again:" is that of an earlier end then, and is deleted.

-- The open step of the job of "edge" that waits for the other job, if its current definition has one.

-- fragment: awaiting_step
SELECT step.name
        FROM {schema}scheduler_steps AS step
        WHERE step.job_id = edge.job_id AND step.kind = 'child' AND step.ended_at IS NULL
          AND step.value @> to_jsonb(edge.id)
        ORDER BY step.name
        LIMIT 1

-- The step of the job of "edge" whose child the other job is by the mark of that one: other steps may wait for that job
-- too, if it has their unique key.

-- fragment: step_of_child
CASE WHEN (job.options #>> ARRAY ['child_of', 'job']) = edge.job_id
        AND (job.options #>> ARRAY ['child_of', 'definition']) = edge.own_definition
    THEN job.options #>> ARRAY ['child_of', 'step'] END

-- fragment: has_ended_step
EXISTS (
            SELECT FROM {schema}scheduler_steps AS step
            WHERE step.job_id = edge.job_id AND step.name = ({step_of_child}) AND step.kind = 'child'
              AND step.ended_at IS NOT NULL
            OFFSET 0
        )

-- The name of the result of a child ("former") that an ended step ("step") has returned.

-- fragment: kept_name
concat('kept:', encode(sha256(convert_to(step.name, 'UTF8')), 'hex'), ':', substr(former.name, 7))

-- name: clear_steps
-- route: caller
-- Delete the steps of former jobs of these ids ($1), which have just been marked; return those whose attempts run.
--
-- A running job keeps the steps of its attempt, and is marked too: so the first step of the attempt does not delete
-- the results that are passed to the waiting definition.
WITH running AS MATERIALIZED (
    SELECT job_id, (options -> 'steps') IS NULL AS is_unmarked
    FROM {schema}scheduled_jobs
    WHERE job_id = ANY ($1) AND status = 'running'
),
marked AS (
    UPDATE {schema}scheduled_jobs SET
        options = {options_object} || jsonb_build_object('steps', 0, 'definition', {new_definition})
    WHERE job_id = ANY (ARRAY (SELECT job_id FROM running WHERE is_unmarked))
),
cleared AS (
    DELETE FROM {schema}scheduler_steps
    WHERE job_id = ANY ($1)
      AND (kind = 'result' AND left(name, 5) = 'next:'
           OR left(name, 6) = (chr(1) || 'next:')
           OR job_id <> ALL (ARRAY (SELECT job_id FROM running WHERE NOT is_unmarked)))
)
SELECT job_id FROM running;

-- name: pass_results
-- route: caller
-- Copy the results of jobs that have ended ($1) to those that waited for them ($2), by names with the prefixes $3.
--
-- $5 are the definitions whose steps waited for children, NULL for edges of older releases, which the open steps
-- explain, and '' for other jobs. Nothing is passed to a definition that has gone. The result of a child is passed to its
-- job whether a step waits for it or not, since the step may be repeated when the child has gone. An earlier statement
-- has locked the waiting jobs. A result that was deleted after its lifetime has no "value", and replaces none that was
-- passed before. To a job with an empty prefix, only those of its children are. A result of a child has its step, and
-- whether the job that ended is a child of the job or another one of its id. OFFSET 0 keeps the planner from reading
-- the index of all jobs, under a plan that was made for an empty table.
WITH kept AS (
    INSERT INTO {schema}scheduler_steps (job_id, name, kind, value, attempt, started_at, ended_at, definition)
    SELECT DISTINCT ON (former.job_id, step.name, former.name)
        former.job_id, {kept_name}, former.kind, former.value, former.attempt, former.started_at, former.ended_at,
        former.definition
    FROM ROWS FROM (unnest($1::text[]), unnest($2::text[]), unnest($5::text[])) AS edge (id, job_id, definition)
    JOIN {schema}scheduler_steps AS former
        ON former.job_id = ANY ($2) AND former.job_id = edge.job_id AND former.kind = 'result'
        AND former.name = concat('child:', encode(sha256(convert_to(edge.id, 'UTF8')), 'hex'))
        AND former.definition = edge.definition
    JOIN {schema}scheduler_steps AS step
        ON step.job_id = ANY ($2) AND step.job_id = edge.job_id AND step.kind = 'child' AND step.ended_at IS NOT NULL
        AND step.value @> to_jsonb(edge.id) AND step.definition = edge.definition
    WHERE EXISTS ({awaiting_step} OFFSET 0)
    ON CONFLICT (job_id, name) DO NOTHING
),
superseded AS (
    DELETE FROM {schema}scheduler_steps AS former
    USING
        ROWS FROM (unnest($1::text[]), unnest($2::text[]), unnest($5::text[])) AS edge (id, job_id, definition),
        {schema}scheduled_jobs AS job
    WHERE former.job_id = ANY ($2)
      AND former.job_id = edge.job_id
      AND former.kind = 'result'
      AND former.name = concat('again:', encode(sha256(convert_to(edge.id, 'UTF8')), 'hex'))
      AND job.job_id = ANY ($1)
      AND job.job_id = edge.id
      AND ((former.value ->> 'status') = job.status AND (former.value ->> 'attempts') = job.attempt::text) IS NOT TRUE
      AND EXISTS ({awaiting_step} OFFSET 0)
)
INSERT INTO {schema}scheduler_steps AS passed (job_id, name, kind, value, attempt, started_at, ended_at, definition)
SELECT edge.job_id,
    CASE WHEN edge.step IS NOT NULL THEN 'child:'
        WHEN edge.definition <> '' THEN CASE WHEN {has_ended_step} THEN 'again:' ELSE 'child:' END
        ELSE edge.prefix END || encode(sha256(convert_to(edge.id, 'UTF8')), 'hex'),
    'result',
    CASE WHEN kept.job_id IS NOT NULL THEN
        jsonb_build_object(
            'job_id', edge.id, 'status', kept.status, 'value', kept.value, 'no_value_reason', kept.no_value_reason,
            'error', kept.error, 'attempts', kept.attempts, 'started_at', kept.started_at,
            'finished_at', kept.finished_at)
    ELSE
        jsonb_build_object(
            'job_id', edge.id, 'status', job.status,
            'error', CASE WHEN job.error_message IS NOT NULL THEN jsonb_build_object('message', job.error_message) END,
            'attempts', job.attempt, 'started_at', job.started_at, 'finished_at', job.finished_at)
    END || CASE WHEN edge.step IS NULL AND (edge.definition <> '') IS NOT TRUE THEN jsonb_build_object()
        ELSE jsonb_strip_nulls(jsonb_build_object(
        'step', coalesce({step_of_child}, edge.step),
        'is_child', CASE WHEN job.job_id IS NOT NULL AND edge.definition IS NOT NULL THEN
            ({step_of_child}) IS NOT NULL END)) END,
    0, coalesce($4, {now}), coalesce($4, {now}),
    CASE WHEN edge.definition IS NULL THEN NULL
        WHEN edge.prefix = 'next:' AND edge.step IS NULL THEN edge.coming_definition
        ELSE edge.own_definition END
FROM (
    SELECT edge.*, reader.options ->> 'definition' AS own_definition,
        reader.on_end #>> ARRAY ['replacement', 'options', 'definition'] AS coming_definition,
        CASE WHEN edge.definition IS NULL OR edge.definition <> '' THEN ({awaiting_step}) END AS step
    FROM ROWS FROM (unnest($1::text[]), unnest($2::text[]), unnest($3::text[]), unnest($5::text[]))
        AS edge (id, job_id, prefix, definition)
    CROSS JOIN LATERAL (
        SELECT options, on_end FROM {schema}scheduled_jobs WHERE job_id = edge.job_id OFFSET 0
    ) AS reader
) AS edge
LEFT JOIN LATERAL (
    SELECT job_id, status, error_message, attempt, started_at, finished_at, options
    FROM {schema}scheduled_jobs
    WHERE job_id = edge.id
    OFFSET 0
) AS job ON true
LEFT JOIN {schema}scheduler_results AS kept
    ON kept.job_id = ANY ($1) AND kept.job_id = edge.id
    AND (job.job_id IS NULL OR {is_of_last_end})
WHERE (job.job_id IS NOT NULL OR kept.job_id IS NOT NULL)
  AND (edge.definition IS NULL OR edge.definition = ''
       OR edge.definition = edge.own_definition AND (edge.step IS NOT NULL OR ({step_of_child}) IS NOT NULL))
  AND (edge.prefix <> '' OR edge.step IS NOT NULL OR edge.definition <> '')
ON CONFLICT (job_id, name) DO UPDATE SET
    kind = EXCLUDED.kind, value = EXCLUDED.value, started_at = EXCLUDED.started_at, ended_at = EXCLUDED.ended_at,
    definition = EXCLUDED.definition
WHERE (EXCLUDED.value -> 'value') IS NOT NULL
    OR passed.kind <> 'result'
    OR ((passed.value -> 'status') = (EXCLUDED.value -> 'status')) IS NOT TRUE
    OR ((passed.value -> 'attempts') = (EXCLUDED.value -> 'attempts')) IS NOT TRUE;

-- name: take_over_results
-- route: caller
-- Delete the steps of the former definitions of jobs ($1), and name the results and signals of the new ones.
--
-- All are deleted before the first one is stored again, which is what the count is for.
WITH former AS (
    DELETE FROM {schema}scheduler_steps AS step
    WHERE job_id = ANY ($1)
    RETURNING job_id, name, kind, value, attempt, started_at, ended_at, definition
)
INSERT INTO {schema}scheduler_steps (job_id, name, kind, value, attempt, started_at, ended_at, definition)
SELECT step.job_id, CASE WHEN step.kind = 'result' THEN 'result:' || substr(step.name, 6) ELSE substr(step.name, 7) END,
    step.kind, step.value, step.attempt, step.started_at, step.ended_at, step.definition
FROM former AS step
JOIN {schema}scheduled_jobs AS job ON job.job_id = step.job_id
WHERE job.job_id = ANY ($1)
  AND (step.kind = 'result' AND left(step.name, 5) = 'next:' OR left(step.name, 6) = (chr(1) || 'next:'))
  AND {of_definition}
  AND (SELECT count(*) FROM former) > 0;

-- name: passed_names
-- route: reserved
-- Return the names of the results that were passed to the job $1, in the order of the other jobs' ids.
--
-- Without those of its own children, which its steps return.
SELECT step.name
FROM {schema}scheduler_steps AS step
JOIN {schema}scheduled_jobs AS job ON job.job_id = step.job_id
WHERE step.job_id = $1 AND step.kind = 'result' AND left(step.name, 7) = 'result:' AND {of_definition}
ORDER BY (step.value ->> 'job_id') COLLATE "C", step.name;

-- name: passed_results
-- route: reserved
-- Return those of the results $2 that were passed to the job $1: the value, and the rest.
SELECT name, (value -> 'value')::text AS value, (value - 'value')::text AS described
FROM {schema}scheduler_steps
WHERE job_id = $1 AND name = ANY ($2) AND jsonb_typeof(value) = 'object';
