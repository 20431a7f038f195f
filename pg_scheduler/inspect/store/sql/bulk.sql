-- name: lock_run
-- route: caller
-- Take the lock of a bulk run ($2) until the end of the transaction; $1 is the class of such locks.
--
-- A statement of its own: the snapshot of the next one then contains what the last holder committed.
SELECT pg_advisory_xact_lock($1, hashtext($2));

-- name: last_batch
-- route: caller
-- Return where the newest batch of a run ($1) ended, a record of the action $2 among the newest 1000 of the run.
SELECT (details ->> 'next') AS next
FROM (
    SELECT action, details
    FROM {schema}scheduler_audit
    WHERE (subject, id) <= (left($1, 500), 9223372036854775807) AND subject >= left($1, 500)
    ORDER BY subject DESC, id DESC
    LIMIT 1000
) AS newest
WHERE action = $2
LIMIT 1;

-- name: lock_batch
-- route: caller
-- Lock those of the jobs $1 that exist, in the order of all statements that lock several, and return them.
SELECT job_id, job_name, status
FROM {schema}scheduled_jobs
WHERE job_id = ANY ($1::text[])
ORDER BY job_id COLLATE "C"
FOR UPDATE;

-- name: retry_jobs
-- route: caller
-- Make those of the jobs $1 that have finished pending and due now, as retry_job does, and return them.
--
-- It leaves jobs whose unique key an unfinished job has; of several with one key it takes the first by id.
WITH found AS (
    SELECT job_id, unique_key
    FROM {schema}scheduled_jobs
    WHERE job_id = ANY ($1::text[]) AND finished_at IS NOT NULL AND NOT {may_run_on}
),
free AS (
    SELECT job_id FROM found WHERE unique_key IS NULL
    UNION ALL
    SELECT min(job_id)
    FROM found
    WHERE unique_key IS NOT NULL AND (  -- not EXISTS, which may become a join that reads every key
        SELECT holder.job_id
        FROM {schema}scheduled_jobs AS holder
        WHERE holder.unique_key = found.unique_key
          AND holder.unique_key IS NOT NULL
          AND holder.finished_at IS NULL
    ) IS NULL
    GROUP BY unique_key
)
UPDATE {schema}scheduled_jobs SET
    {retried_values}
WHERE job_id = ANY (ARRAY (SELECT job_id FROM free))
RETURNING job_id, execution_time;
