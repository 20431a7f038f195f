-- The family of a job: the job, the children of its steps, their children, and so on. The step rows of a job have the
-- ids of its children, so a family is found by primary keys alone. If delete_steps_from deletes a step, another row keeps
-- these ids, because the children run on until the job comes to the step again.

-- fragment: is_child_of_step
-- Whether the job "child" is a child of the step "step" of the job "job". A job that only stands for a child, because it
-- has the unique key of the child, is none. The id of a child begins with that of its parent, so that it is longer:
-- without this condition, marks that were written by hand could close a circle.
({child_mark} ->> 'job') = job.job_id
          AND ({child_mark} ->> 'step') = step.name
          AND ({child_mark} ->> 'definition') = (job.options ->> 'definition')
          AND octet_length(child.job_id) > octet_length(job.job_id)

-- fragment: step_with_children
-- The rows with the ids of children: those of steps, and those of steps that were deleted, which are not stored yet.
(
            SELECT job_id, value, definition,
                CASE WHEN kind = 'child' THEN name ELSE substr(name, 9) END AS name,
                CASE WHEN kind = 'child' THEN started_at END AS stored_at,
                CASE WHEN kind = 'child' THEN ended_at END AS ended_at
            FROM {schema}scheduler_steps
            WHERE kind = 'child' OR kind = 'result' AND left(name, 8) = concat(chr(1), 'former:')
        )

-- fragment: children_of_step
{step_with_children} AS step
        CROSS JOIN LATERAL jsonb_array_elements_text(
            CASE WHEN jsonb_typeof(step.value) = 'array' THEN step.value ELSE jsonb_build_array() END
        ) AS wanted (id)
        CROSS JOIN LATERAL (
            SELECT * FROM {schema}scheduled_jobs WHERE job_id = wanted.id
            OFFSET 0  -- not joined in another way, which reads all jobs
        ) AS child

-- fragment: families
-- The families of the jobs $1 as the rows of "family": those that are to be retried if $2, else cancelled.
--
-- A cancellation passes over detached children, with their families. A retry passes over completed jobs, and over the
-- steps of unfinished jobs that have ended: those have their results. It also passes over former children of a step that
-- is stored again, which may wait for others now. A cancellation ends them too, and finds each child by one row only.
-- $1 themselves are always rows.
family (job_id, parent_id, step, stored_at) AS (
    SELECT job_id, NULL::text, NULL::text, NULL::timestamptz
    FROM {schema}scheduled_jobs
    WHERE job_id = ANY ($1::text[])
    UNION
    SELECT member.job_id, family.job_id, member.step, member.stored_at
    FROM family
    CROSS JOIN LATERAL (
        SELECT child.job_id, step.name AS step, step.stored_at
        FROM (
            SELECT job_id, options, finished_at FROM {schema}scheduled_jobs WHERE job_id = family.job_id
            OFFSET 0  -- not joined in another way, which reads all jobs
        ) AS job
        CROSS JOIN {children_of_step}
        WHERE step.job_id = family.job_id
          AND (job.options -> 'steps') IS NOT NULL
          AND {of_definition}
          AND {is_child_of_step}
          AND CASE WHEN $2::boolean
              THEN child.status <> 'completed' AND (job.finished_at IS NOT NULL OR step.ended_at IS NULL)
              ELSE (child.options -> 'detached') IS NULL END
          AND (step.stored_at IS NOT NULL OR NOT EXISTS (
              SELECT FROM {schema}scheduler_steps AS stored
              WHERE stored.job_id = step.job_id
                AND stored.name = step.name
                AND ($2::boolean OR stored.kind = 'child' AND stored.value @> to_jsonb(child.job_id))
              OFFSET 0
          ))
        OFFSET 0
    ) AS member
)

-- name: lock_families
-- route: caller
-- Lock the families of the jobs $1, and return them. $2 is whether they are to be retried, else they are cancelled.
--
-- The longest ids are locked first, and an id is longer than that of the parent: so a child is locked before its parent,
-- as by the end of a child, and all such calls lock in one order. A parent may insert children until it is locked. This
-- snapshot lacks them, so the statement is repeated until it returns no job that it has not locked before.
WITH RECURSIVE {families}
SELECT job.job_id, family.parent_id, family.step, family.stored_at, job.status, job.finished_at IS NOT NULL AS has_ended,
    job.finished_at IS NOT NULL AND {may_run_on} AS may_run_on
FROM family JOIN {schema}scheduled_jobs AS job ON job.job_id = family.job_id
WHERE job.job_id = ANY (ARRAY (SELECT member.job_id FROM family AS member))
ORDER BY octet_length(job.job_id) DESC, job.job_id COLLATE "C"
FOR NO KEY UPDATE OF job;

-- fragment: has_own_mark
-- Whether a job is the child of the step "passed.step" of the job "owner.id".
coalesce(({child_mark} ->> 'job') = owner.id AND ({child_mark} ->> 'step') = passed.step, false)

-- name: find_outdated_steps
-- route: caller
-- Return the steps of the retried jobs $1 with a child that has failed, expired or was cancelled, and is not so now.
--
-- The job has the results of that end, and would only repeat the old errors. A step that is repeated starts a child whose
-- row was deleted anew, and waits for one that was retried alone, or has its new result if it has completed since.
SELECT step.job_id AS parent_id, step.name AS step, step.started_at AS stored_at
FROM unnest($1::text[]) AS owner (id)
CROSS JOIN LATERAL (
    SELECT options FROM {schema}scheduled_jobs WHERE job_id = owner.id AND (options -> 'steps') IS NOT NULL
    OFFSET 0  -- not joined in another way, which reads all jobs
) AS job
CROSS JOIN LATERAL (
    SELECT step.value ->> 'step' AS step, step.value ->> 'job_id' AS id
    FROM {schema}scheduler_steps AS step
    WHERE step.job_id = owner.id
      AND step.kind = 'result'
      AND left(step.name, 6) = 'child:'
      AND (step.value ->> 'status') <> 'completed'
      AND {of_definition}
    OFFSET 0
) AS passed
CROSS JOIN LATERAL (
    SELECT step.job_id, step.name, step.started_at
    FROM {schema}scheduler_steps AS step
    WHERE step.job_id = owner.id
      AND step.name = passed.step
      AND step.kind = 'child'
      AND step.value @> to_jsonb(passed.id)
      AND {of_definition}
    OFFSET 0
) AS step
WHERE NOT EXISTS (
    SELECT FROM {schema}scheduled_jobs AS child
    WHERE child.job_id = passed.id AND (child.finished_at IS NOT NULL AND child.status <> 'completed' OR NOT {has_own_mark})
    OFFSET 0
);
