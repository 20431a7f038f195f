-- A service that may not write a record runs the statement without these two.

-- fragment: into_audit
INSERT INTO {schema}scheduler_audit (at, action, subject, actor, via, details)

-- fragment: once_per_release
ON CONFLICT (subject) WHERE action = 'start_release' DO NOTHING

-- name: insert_audit
-- route: pool
-- Record an action $2 on the subject $3 by the actor $4, with the way $5 and the details $6; return its id.
--
-- The statements that change schedules and the pauses of tasks record themselves.
{into_audit}
VALUES (coalesce($1, {now}), $2, left($3, 500), $4, $5, $6::text::jsonb)
RETURNING id;

-- name: vacuum_audit
-- route: pool
-- Delete at most $2 records from before an instant, and at most $2 bulk runs that were last changed before it.
--
-- Returns the greater of the two numbers. The first start of a release is kept while a worker of it has a row: it would
-- be recorded again.
WITH records AS (
    DELETE FROM {schema}scheduler_audit
    WHERE id = ANY (ARRAY (
        SELECT id
        FROM {schema}scheduler_audit AS record
        WHERE at <= $1
          AND NOT (action = 'start_release' AND EXISTS (
              SELECT FROM {schema}scheduler_workers AS worker
              WHERE (worker.metadata ->> 'release') = record.subject
          ))
        LIMIT $2
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING 1
),
runs AS (
    DELETE FROM {schema}scheduler_bulk_runs
    WHERE run_id = ANY (ARRAY (
        SELECT run_id
        FROM {schema}scheduler_bulk_runs
        WHERE created_at <= $1 AND last_at <= $1
        LIMIT $2
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING 1
)
SELECT greatest((SELECT count(*) FROM records), (SELECT count(*) FROM runs));
