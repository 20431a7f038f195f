-- name: inspect_children
-- route: pool
-- Return $3 jobs that steps of the job $1 wait for, or have waited for, in the order of the steps; $2 is the time.
--
-- Of a job whose row was deleted, the status is that of its result, which was passed to the job $1. Without an order of
-- all edges: the ids are the values of the steps.
SELECT wait.step, wait.job_id, job.job_name, coalesce(job.state, passed.status) AS state, job.retry_count,
    job.created_at, job.started_at, job.finished_at
FROM (
    SELECT step.name AS step, step.started_at, child.id AS job_id, child.number
    FROM {schema}scheduled_jobs AS job
    JOIN {schema}scheduler_steps AS step ON step.job_id = job.job_id
    CROSS JOIN LATERAL jsonb_array_elements_text(
        CASE WHEN jsonb_typeof(step.value) = 'array' THEN step.value ELSE jsonb_build_array(step.value) END
    ) WITH ORDINALITY AS child (id, number)
    WHERE job.job_id = $1 AND (job.options -> 'steps') IS NOT NULL AND step.kind = 'child' AND {of_definition}
    ORDER BY step.started_at, step.name, child.number
    LIMIT $3::bigint
) AS wait
LEFT JOIN LATERAL (
    SELECT {named}, retry_count, CASE WHEN status = 'pending' THEN {pending_state} ELSE status END AS state,
        least(greatest(created_at, {first_instant}), {last_instant}) AS created_at,
        CASE WHEN started_at >= {first_day} AND started_at <= {last_day} THEN started_at END AS started_at,
        CASE WHEN finished_at >= {first_day} AND finished_at <= {last_day} THEN finished_at END AS finished_at
    FROM {schema}scheduled_jobs
    WHERE job_id = wait.job_id
    OFFSET 0  -- not joined in another way, which reads all jobs
) AS job ON true
LEFT JOIN LATERAL (
    SELECT value ->> 'status' AS status
    FROM {schema}scheduler_steps
    WHERE job.state IS NULL AND job_id = $1 AND kind = 'result'
      AND name = concat('child:', encode(sha256(convert_to(wait.job_id, 'UTF8')), 'hex'))
    OFFSET 0
) AS passed ON true
ORDER BY wait.started_at, wait.step, wait.number;

-- name: inspect_family
-- route: tuned
-- Count by name which other jobs would be retried ($2) or cancelled with the jobs $1, among the first $3 that belong to
-- their families.
WITH RECURSIVE {families}
SELECT coalesce(job.function, job.job_name) AS job_name, count(*) AS jobs
FROM (SELECT family.job_id FROM family WHERE family.job_id <> ALL ($1) LIMIT $3::bigint) AS member
CROSS JOIN LATERAL (
    SELECT function, job_name, finished_at FROM {schema}scheduled_jobs WHERE job_id = member.job_id
    OFFSET 0  -- not joined in another way, which reads all jobs
) AS job
WHERE (job.finished_at IS NOT NULL) = $2
GROUP BY coalesce(job.function, job.job_name);

-- name: inspect_owner
-- route: pool
-- Return the job for which the job $1 was started by a step, with the step; its name is NULL if it has gone.
SELECT mark.job_id, mark.step, owner.job_name, owner.status
FROM (
    SELECT options #>> ARRAY ['child_of', 'job'] AS job_id, options #>> ARRAY ['child_of', 'step'] AS step,
        options #>> ARRAY ['child_of', 'definition'] AS definition
    FROM {schema}scheduled_jobs
    WHERE job_id = $1
) AS mark
LEFT JOIN LATERAL (
    SELECT {named}, status
    FROM {schema}scheduled_jobs
    WHERE job_id = mark.job_id AND (options ->> 'definition') = mark.definition
    OFFSET 0  -- not joined in another way, which reads all jobs
) AS owner ON true
WHERE mark.job_id IS NOT NULL;

-- name: inspect_open_steps
-- route: pool
-- Return $2 open steps of the kind $1, of the name $3 unless it is NULL, after the name $4 and the job $5, and whether the
-- job waits for each.
--
-- The first condition on the name bounds the scan of the index under any plan.
SELECT name, job_id, coalesce(
    (SELECT {is_its_wait} FROM {schema}scheduled_jobs AS job WHERE job.job_id = step.job_id), false
) AS is_awaited
FROM {schema}scheduler_steps AS step
WHERE ended_at IS NULL
  AND kind = $1
  AND name >= coalesce($3::text, $4::text)
  AND ($3 IS NULL OR name = $3)
  AND (name, job_id) > ($4::text, $5::text)
ORDER BY name, job_id
LIMIT $2::bigint;

-- name: inspect_open_counts
-- route: pool
-- Count suspended jobs by what they wait for and by the step, among the first $1 open steps of each kind; $2 names.
--
-- A NULL for the step stands for all steps of the kind. "examined" is the place of the last step that was examined.
WITH waiting AS MATERIALIZED (
    SELECT open.kind, open.name, open.job_id, open.place, job.is_suspended
    FROM (VALUES ('signal'), ('sleep'), ('child')) AS suspending (kind)
    CROSS JOIN LATERAL (
        SELECT step.kind, step.name, step.job_id, row_number() OVER () AS place
        FROM {schema}scheduler_steps AS step
        WHERE step.ended_at IS NULL AND step.kind = suspending.kind
        ORDER BY step.kind, step.name, step.job_id
        LIMIT $1::bigint
    ) AS open
    LEFT JOIN LATERAL (
        SELECT true AS is_suspended
        FROM {schema}scheduled_jobs AS job
        CROSS JOIN (SELECT open.name) AS step
        WHERE job_id = open.job_id AND ({suspended_by}) = open.kind AND {is_its_wait}
        OFFSET 0  -- not joined in another way, which reads all jobs
    ) AS job ON true
)
SELECT kind, NULL AS name, count(DISTINCT job_id) FILTER (WHERE is_suspended) AS jobs, max(place) AS examined
FROM waiting
GROUP BY kind
UNION ALL
SELECT named.kind, named.name, named.jobs, named.examined
FROM (
    SELECT kind, name, count(DISTINCT job_id) FILTER (WHERE is_suspended) AS jobs, max(place) AS examined
    FROM waiting
    GROUP BY kind, name
    ORDER BY jobs DESC, kind, name
    LIMIT $2::bigint
) AS named
WHERE named.jobs > 0;

-- name: inspect_step_progress
-- route: pool
-- Return for each of the jobs $1 the number of its steps, up to $2, and the open one that ends first of those that it
-- waits for. A step that is called again counts by its failed attempts.
SELECT owner.id AS job_id, stored.steps, open.name, open.kind, open.until
FROM unnest($1::text[]) AS owner (id)
CROSS JOIN LATERAL (
    SELECT count(*) AS steps
    FROM (
        SELECT FROM {schema}scheduler_steps
        WHERE job_id = owner.id AND kind <> 'result' AND (kind <> 'retry' OR ended_at IS NULL)
        LIMIT $2::bigint
    ) AS own
) AS stored
LEFT JOIN LATERAL (
    SELECT {waiting_step_name} AS name, kind, {bounded_until} AS until
    FROM {schema}scheduler_steps AS step
    WHERE job_id = owner.id AND ended_at IS NULL AND kind = ANY (ARRAY ['sleep', 'signal', 'child', 'first', 'retry'])
      AND (kind = 'first'
        OR coalesce((SELECT {is_its_wait} FROM {schema}scheduled_jobs AS job WHERE job.job_id = owner.id), true))
    ORDER BY until, name
    LIMIT 1
) AS open ON true;
