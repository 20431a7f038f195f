-- name: lock_parents
-- route: caller
-- Lock the jobs that others will wait for, so that none of them ends before that is written.
--
-- A cancelled job whose attempt still runs has not ended for the jobs that will wait for it.
SELECT job_id, status, finished_at IS NOT NULL AND NOT {may_run_on} AS has_ended,
    {will_keep_result} AS keeps_result
FROM {schema}scheduled_jobs AS job
WHERE job_id = ANY ($1)
ORDER BY job_id COLLATE "C"
FOR NO KEY UPDATE;

-- name: hold_parents
-- route: caller
-- Return what lock_parents does. Until the end of the transaction none of the jobs is deleted, but others add jobs that
-- wait for them, and they may end: the commit marks them.
--
-- At another isolation level than READ COMMITTED, the commit does not see that a job has ended for which another one
-- waited already: in its snapshot that job has the mark. FOR SHARE fails if such a job has changed since, and keeps it
-- from ending until the commit.
WITH shared AS MATERIALIZED (
    SELECT job_id
    FROM {schema}scheduled_jobs
    WHERE current_setting('transaction_isolation') <> 'read committed'
      AND job_id = ANY ($1)
      AND (on_end -> 'child') IS NOT NULL
    ORDER BY job_id COLLATE "C"
    FOR SHARE
)
SELECT job_id, status, finished_at IS NOT NULL AND NOT {may_run_on} AS has_ended,
    {will_keep_result} AS keeps_result
FROM {schema}scheduled_jobs AS job
WHERE job_id = ANY ($1) AND (SELECT count(*) FROM shared) >= 0
ORDER BY job_id COLLATE "C"
FOR KEY SHARE;

-- name: lock_dependents
-- route: caller
-- Lock the jobs $1, and the unfinished ones with the unique keys $2, of which some are to wait for others.
--
-- If another transaction holds one of these jobs as a parent, this statement waits for its end. Otherwise neither would
-- see the edge of the other one, and the two edges could close a cycle.
SELECT job_id
FROM {schema}scheduled_jobs
WHERE job_id = ANY ($1::text[] || ARRAY (
    SELECT job_id
    FROM {schema}scheduled_jobs
    WHERE unique_key = ANY ($2::text[]) AND unique_key IS NOT NULL AND finished_at IS NULL
))
ORDER BY job_id COLLATE "C"
FOR UPDATE;

-- fragment: will_keep_result
-- Whether the result of a job is kept. If a definition waits for the end of its attempt, that one decides.
CASE WHEN {has_no_coming_definition} THEN {keeps_result}
        ELSE (({coming_definition}) #> ARRAY ['options', 'keep_result']) IS NOT NULL END

-- name: keeping_jobs
-- route: pool
-- Return those of the jobs $1 whose results are kept when they end.
SELECT job_id FROM {schema}scheduled_jobs AS job WHERE job_id = ANY ($1) AND {will_keep_result};

-- name: mark_parents
-- route: caller
-- Mark unfinished jobs, so that their end looks for the jobs that wait for them. The commit of an edge does that too.
UPDATE {schema}scheduled_jobs SET
    on_end = CASE WHEN jsonb_typeof(on_end) = 'object' THEN on_end ELSE jsonb_build_object() END
        || jsonb_build_object('child', true)
WHERE job_id = ANY ($1) AND (on_end -> 'child') IS NULL;

-- name: mark_awaited
-- route: caller
-- Mark the jobs $1 as mark_parents does to which edges lead: the commit of an edge of this transaction is still to come.
UPDATE {schema}scheduled_jobs SET
    on_end = CASE WHEN jsonb_typeof(on_end) = 'object' THEN on_end ELSE jsonb_build_object() END
        || jsonb_build_object('child', true)
WHERE job_id = ANY (ARRAY (
    SELECT job_id
    FROM {schema}scheduled_jobs AS parent
    WHERE job_id = ANY ($1::text[]) AND finished_at IS NULL AND (on_end -> 'child') IS NULL
      AND EXISTS (SELECT FROM {schema}scheduler_after WHERE parent_id = parent.job_id OFFSET 0)
    ORDER BY job_id COLLATE "C"
    FOR NO KEY UPDATE
));

-- name: insert_edges
-- route: caller
-- Write which jobs ($2) wait for which ($1), and for which outcome ($3). The commit marks jobs in this order.
INSERT INTO {schema}scheduler_after (parent_id, child_id, outcome, definition)
SELECT new.parent_id, new.child_id, new.outcome, ''
FROM ROWS FROM (unnest($1::text[]), unnest($2::text[]), unnest($3::text[])) AS new (parent_id, child_id, outcome)
ORDER BY new.parent_id COLLATE "C";

-- fragment: has_open_step
-- The edges of steps have the definition of the job that waits; those of "after=" have an empty one. Edges of older
-- releases have none. They are those of steps if an open step waits for the other job.
EXISTS (
        SELECT FROM {schema}scheduler_steps AS step
        WHERE step.job_id = edge.child_id AND step.kind = 'child' AND step.ended_at IS NULL
          AND step.value @> to_jsonb(edge.parent_id)
    )

-- fragment: is_of_step
CASE WHEN edge.definition IS NOT NULL THEN edge.definition <> '' ELSE {has_open_step} END

-- name: await_jobs
-- route: caller
-- Let the definition $3 of the job $2 wait for the end of others ($1), besides those of its other open steps.
--
-- Edges that are left of an earlier definition or wait are deleted, or their parents would end this wait. Those of a
-- definition that waits for the end of this attempt stay.
WITH former AS (
    DELETE FROM {schema}scheduler_after AS edge
    WHERE child_id = $2
      AND CASE WHEN {is_of_step}
            THEN coalesce(edge.definition <> $3, false) OR parent_id = ANY ($1) OR NOT {has_open_step}
            ELSE NOT EXISTS (
                SELECT FROM {schema}scheduled_jobs AS job
                WHERE job.job_id = edge.child_id AND (job.on_end -> 'replacement') IS NOT NULL) END
)
INSERT INTO {schema}scheduler_after (parent_id, child_id, outcome, definition)
SELECT parent_id, $2, 'ended', $3 FROM unnest($1::text[]) AS new (parent_id);

-- name: wait_again
-- route: caller
-- Let open steps wait again for those of their children that have just been retried ($1).
--
-- The first end of a child has deleted its edge, although the step waits for others still. Earlier statements have
-- retried the children and locked the jobs of the steps, as ends of children do: so a step that is open here has not
-- ended, and the end of the last other child sees the edge. A step that has ended keeps its results.
INSERT INTO {schema}scheduler_after (parent_id, child_id, outcome, definition)
SELECT child.job_id, step.job_id, 'ended', step.definition
FROM {schema}scheduled_jobs AS child
CROSS JOIN LATERAL (
    SELECT step.job_id, job.options ->> 'definition' AS definition
    FROM {schema}scheduled_jobs AS job
    JOIN {schema}scheduler_steps AS step ON step.job_id = job.job_id
    WHERE job.job_id = (child.options #>> ARRAY ['child_of', 'job'])
      AND (job.options ->> 'definition') = (child.options #>> ARRAY ['child_of', 'definition'])
      AND (job.options -> 'steps') IS NOT NULL
      AND step.name = (child.options #>> ARRAY ['child_of', 'step'])
      AND step.kind = 'child'
      AND step.ended_at IS NULL
      AND step.value @> to_jsonb(child.job_id)
      AND {of_definition}
    OFFSET 0
) AS step
WHERE child.job_id = ANY ($1)
  AND child.finished_at IS NULL
  AND NOT EXISTS (
      SELECT FROM {schema}scheduler_after AS edge
      WHERE edge.parent_id = child.job_id AND edge.child_id = step.job_id AND edge.definition = step.definition
      OFFSET 0
  );

-- name: schedules_of
-- route: caller
-- Return the schedules of the jobs $1, without those of jobs that are in a sequence.
SELECT DISTINCT options ->> 'schedule_id' AS schedule_id
FROM {schema}scheduled_jobs
WHERE job_id = ANY ($1)
  AND (options -> 'schedule_id') IS NOT NULL
  AND (options -> 'sequence') IS NULL;

-- name: lock_ordered
-- route: caller
-- Lock those of the schedules $1 whose jobs must not overlap; return the last job of each.
SELECT schedule_id, last_job_id
FROM {schema}scheduler_schedules
WHERE schedule_id = ANY ($1::text[]) AND overlap <> 'allow'
ORDER BY schedule_id
FOR UPDATE;

-- name: jobs_of_schedules
-- route: caller
-- Return those of the jobs $1 that are not finished, are in no sequence, and belong to one of the schedules $2, in the order
-- of their due times.
SELECT job_id, options ->> 'schedule_id' AS schedule_id
FROM {schema}scheduled_jobs
WHERE job_id = ANY ($1)
  AND finished_at IS NULL
  AND (options -> 'sequence') IS NULL
  AND (options ->> 'schedule_id') = ANY ($2::text[])
ORDER BY execution_time, job_id COLLATE "C";

-- name: block_retried
-- route: caller
-- Let the retried jobs $1 wait for others. The turn of a share is kept in the options meanwhile.
UPDATE {schema}scheduled_jobs SET
    blocked_on = 'after',
    options    = CASE WHEN left(blocked_on, 6) = 'share:' THEN options || jsonb_build_object('share', blocked_on)
        ELSE options END
WHERE job_id = ANY ($1) AND finished_at IS NULL;

-- name: note_last_jobs
-- route: caller
-- Note the last jobs ($2) of the schedules $1, as note_last_job does for one.
UPDATE {schema}scheduler_schedules AS schedule SET
    last_job_id  = ($2::text[])[array_position($1::text[], schedule_id)],
    next_fire_at = CASE WHEN NOT {has_fixed_delay} THEN schedule.next_fire_at END,
    resume_from  = CASE WHEN NOT {has_fixed_delay} THEN schedule.resume_from END,
    updated_at   = coalesce($3, {now})
WHERE schedule_id = ANY ($1::text[]);

-- name: delete_edges
-- route: caller
-- Forget what jobs wait for, but not what the steps of a running attempt wait for: its definition has not ended.
DELETE FROM {schema}scheduler_after AS edge
WHERE child_id = ANY ($1)
  AND NOT EXISTS (
      SELECT FROM {schema}scheduled_jobs AS job
      WHERE job.job_id = edge.child_id AND job.status = 'running' AND edge.definition = (job.options ->> 'definition')
      OFFSET 0
  );

-- name: delete_child_edges
-- route: caller
-- Forget the children for which steps of the jobs $1 wait: the definitions of the jobs were replaced.
DELETE FROM {schema}scheduler_after AS edge WHERE child_id = ANY ($1) AND {is_of_step};

-- fragment: still_waits
-- Whether a job waits along an edge. A new definition that waits for no other job leaves the edges of the former one in
-- place until the other jobs end. What a step of the job waits for is an edge with a definition.
(coalesce(edge.definition <> '', true) OR NOT EXISTS (
        SELECT FROM {schema}scheduled_jobs AS job
        WHERE job.job_id = edge.child_id
          AND (job.status = 'pending' AND coalesce(job.blocked_on, '') <> 'after'
               OR job.status = 'running'
                  AND coalesce(job.on_end #>> ARRAY ['replacement', 'blocked_on'], '') <> 'after')
        OFFSET 0
    ))

-- name: ancestor_edges
-- route: caller
-- Return every edge above the jobs $1 along which a job waits.
WITH RECURSIVE ancestor AS (
    SELECT edge.child_id, edge.parent_id
    FROM {schema}scheduler_after AS edge
    WHERE edge.child_id = ANY ($1) AND {still_waits}
    UNION
    SELECT edge.child_id, edge.parent_id
    FROM ancestor
    CROSS JOIN LATERAL (
        SELECT edge.child_id, edge.parent_id
        FROM {schema}scheduler_after AS edge
        WHERE edge.child_id = ancestor.parent_id AND {still_waits}
        OFFSET 0
    ) AS edge
)
SELECT child_id, parent_id FROM ancestor;

-- fragment: waiting_columns
-- Whether consequences of a job wait for the jobs that it waited for; and the prefix of the names under which their
-- results are stored, NULL for a job to which none are passed. They are passed to a finished job too, for its retry. A
-- new definition that has waited in vain gets none, but the steps of the attempt that runs do, also if the new definition
-- has no steps: then the prefix is empty, and only the results of children are passed.
job_id, finished_at IS NOT NULL AND {may_run_on} AS is_awaited,
    CASE WHEN (on_end -> 'replacement') IS NOT NULL
            THEN CASE WHEN (on_end #> ARRAY ['replacement', 'options', 'steps']) IS NOT NULL THEN 'next:'
                WHEN (options -> 'steps') IS NOT NULL THEN '' END
        WHEN (options -> 'steps') IS NOT NULL THEN 'result:' END AS passed_to

-- name: lock_children
-- route: caller
-- Lock the jobs that wait for jobs that have ended ($1), and others to which results are passed ($2).
--
-- Two parents of one job may end at the same instant, and neither transaction sees that the other one has
-- deleted its edge. So the second one waits here, and its next statement has a newer snapshot: every transaction of the
-- library is READ COMMITTED, and one of the application at another level leaves this to a service. All transactions lock
-- in the same order.
SELECT {waiting_columns}
FROM {schema}scheduled_jobs
WHERE job_id = ANY (ARRAY (SELECT child_id FROM {schema}scheduler_after WHERE parent_id = ANY ($1)) || $2::text[])
ORDER BY job_id COLLATE "C"
FOR NO KEY UPDATE;

-- name: take_edges
-- route: caller
-- Delete the edges to the children of jobs that have ended, and return them. The children must be locked.
DELETE FROM {schema}scheduler_after WHERE parent_id = ANY ($1)
RETURNING parent_id, child_id, outcome, definition;

-- name: lock_jobs
-- route: caller
-- Lock jobs, as lock_children does.
SELECT {waiting_columns}
FROM {schema}scheduled_jobs
WHERE job_id = ANY ($1)
ORDER BY job_id COLLATE "C"
FOR NO KEY UPDATE;

-- name: take_broken_edges
-- route: caller
-- Delete the edges of jobs ($1), which must be locked, to parents that have ended or do not exist; return them.
WITH broken AS (
    SELECT edge.ctid, parent.status
    FROM {schema}scheduler_after AS edge
    LEFT JOIN LATERAL (
        SELECT job_id, status, finished_at, on_end FROM {schema}scheduled_jobs WHERE job_id = edge.parent_id OFFSET 0
    ) AS parent ON true
    WHERE edge.child_id = ANY ($1)
      AND (parent.job_id IS NULL OR parent.finished_at IS NOT NULL AND (parent.on_end -> 'alive') IS NULL)
)
DELETE FROM {schema}scheduler_after AS edge
USING broken
WHERE edge.ctid = broken.ctid
RETURNING edge.parent_id, edge.child_id, edge.outcome, edge.definition, broken.status;

-- name: unblock_jobs
-- route: caller
-- Let those of the jobs $1 run that wait for no other job any more, or wait for the turn of their tenants; return
-- them.
--
-- They must be locked by an earlier statement. The misfire grace time starts now. The subquery is one probe
-- for each job: OFFSET 0 keeps the planner from joining the whole table. coalesce() keeps it from the index of
-- blocked jobs.
UPDATE {schema}scheduled_jobs AS job SET
    blocked_on = CASE WHEN left(options ->> 'share', 6) = 'share:' AND octet_length(options ->> 'share') <= 2000
        THEN options ->> 'share' END,
    expires_at = least(greatest(execution_time, coalesce($2, {now})), {last_instant})
        + make_interval(secs => misfire_grace_time)
WHERE job_id = ANY ($1)
  AND status = 'pending'
  AND coalesce(blocked_on, '') = 'after'
  AND NOT EXISTS (SELECT FROM {schema}scheduler_after AS edge WHERE edge.child_id = job.job_id OFFSET 0)
RETURNING job_id, {bounded_due};

-- name: end_awaited
-- route: caller
-- Let the consequences of those of the jobs $1, which have ended, follow that wait for no other job any more.
--
-- They were cancelled while they waited, so they have no worker. If a job was cancelled while it ran, its consequences
-- wait for the end of its attempt, even if the child of one of its steps ends.
UPDATE {schema}scheduled_jobs AS job SET on_end = on_end - 'alive'
WHERE job_id = ANY ($1)
  AND finished_at IS NOT NULL
  AND worker_id IS NULL
  AND {may_run_on}
  AND NOT EXISTS (SELECT FROM {schema}scheduler_after AS edge WHERE edge.child_id = job.job_id OFFSET 0)
RETURNING job_id;

-- name: cancel_blocked
-- route: caller
-- Cancel jobs that wait in vain ($1), with the reasons $2.
--
-- If one is running, its new definition gets the reason, and is cancelled when it takes the row at the end of the
-- attempt. See coming_definition for why that one is under another key. The reasons name other jobs, which a reader of
-- this one may not be allowed to see. So they are in the history only. Each row looks up its reason in an object:
-- hundreds of thousands of jobs may wait for one, and an element of an array of texts is found by reading all those
-- before it.
WITH reason AS MATERIALIZED (
    SELECT jsonb_object_agg(failed.job_id, failed.reason) AS of
    FROM ROWS FROM (unnest($1::text[]), unnest($2::text[])) AS failed (job_id, reason)
)
UPDATE {schema}scheduled_jobs AS job SET
    status        = CASE WHEN status = 'pending' THEN 'cancelled' ELSE status END,
    finished_at   = CASE WHEN status = 'pending' THEN coalesce($3, {now}) END,
    error_message = CASE WHEN status = 'pending'
        THEN 'a job after which this job was to run did not complete' ELSE error_message END,
    errors        = CASE WHEN status = 'pending' THEN {kept_errors} || jsonb_build_array({entry_of_attempt}
        || jsonb_build_object('outcome', 'parent', 'message', (SELECT reason.of FROM reason) ->> job.job_id,
            'ended_at', coalesce($3, {now}))) ELSE errors END,
    blocked_on    = NULL,
    options       = CASE WHEN status = 'pending' THEN {options_with_wait} ELSE options END,
    on_end        = CASE WHEN status = 'pending' THEN {on_end_with_result}
        ELSE (on_end - 'replacement') || jsonb_build_object('in_vain', (on_end -> 'replacement') || jsonb_build_object(
            'attempt', attempt, 'reason', (SELECT reason.of FROM reason) -> job.job_id)) END
WHERE job_id = ANY ($1)
  AND (status = 'pending' AND coalesce(blocked_on, '') = 'after'
       OR status = 'running' AND (on_end -> 'replacement' ->> 'blocked_on') = 'after')
RETURNING job_id, {named}, attempt, finished_at IS NOT NULL AS ended,
    finished_at IS NOT NULL AND on_end IS NOT NULL AS has_consequences;

-- name: table_blocks_of_edges
-- route: pool
-- Return the size of the table of edges in blocks.
SELECT pg_relation_size(to_regclass($1)) / current_setting('block_size')::bigint;

-- name: broken_edges
-- route: pool
-- Return the jobs that wait, in the blocks from $1 up to $2, for jobs that have ended or do not exist.
SELECT DISTINCT edge.child_id
FROM {schema}scheduler_after AS edge
LEFT JOIN LATERAL (
    SELECT job_id, finished_at, on_end FROM {schema}scheduled_jobs WHERE job_id = edge.parent_id OFFSET 0
) AS parent ON true
WHERE edge.ctid >= $1::tid AND edge.ctid < $2::tid
  AND (parent.job_id IS NULL OR parent.finished_at IS NOT NULL AND (parent.on_end -> 'alive') IS NULL);

-- name: blocked_jobs
-- route: pool
-- Return a page of jobs that wait for others, after the position $1 to $3, and whether each has an edge.
SELECT job_id, priority, execution_time::text AS due,
    EXISTS (SELECT FROM {schema}scheduler_after AS edge WHERE edge.child_id = page.job_id OFFSET 0) AS has_edge
FROM (
    SELECT job_id, priority, execution_time
    FROM {schema}scheduled_jobs
    WHERE blocked_on = 'after'
      AND (priority, execution_time, job_id COLLATE "C") > ($1::integer, ($2::text)::timestamptz, $3::text)
    ORDER BY priority, execution_time, job_id COLLATE "C"
    LIMIT $4
) AS page;
