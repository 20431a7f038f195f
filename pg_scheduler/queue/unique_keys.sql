-- name: find_conflicts
-- route: reserved
-- Return the jobs with one of the ids $1, and the unfinished ones with one of the unique keys $2.
SELECT job_id, status, unique_key, finished_at IS NULL AS is_unfinished
FROM {schema}scheduled_jobs
WHERE job_id = ANY ($1::text[])
UNION
SELECT holder.job_id, holder.status, holder.unique_key, TRUE
FROM unnest($2::text[]) AS wanted (key)
CROSS JOIN LATERAL (
    SELECT job_id, status, unique_key
    FROM {schema}scheduled_jobs
    WHERE unique_key = wanted.key AND unique_key IS NOT NULL AND finished_at IS NULL
    OFFSET 0
) AS holder;

-- name: lock_key_holders
-- route: caller
-- Lock the unfinished jobs with the unique keys $1, so that none of them ends before this transaction.
SELECT job_id, status, unique_key
FROM {schema}scheduled_jobs
WHERE unique_key = ANY ($1::text[]) AND unique_key IS NOT NULL AND finished_at IS NULL
ORDER BY unique_key COLLATE "C"
FOR NO KEY UPDATE;

-- name: find_key_holder
-- route: reserved
-- Return the unfinished job with the unique key of job $1.
SELECT job_id, status, unique_key
FROM {schema}scheduled_jobs
WHERE finished_at IS NULL
  AND unique_key IS NOT NULL
  AND unique_key = (SELECT unique_key FROM {schema}scheduled_jobs WHERE job_id = $1);

-- name: keep_holders_results
-- route: caller
-- Let those of the jobs $1 that do not run keep their results for $2 seconds; return the others that keep none.
--
-- The jobs have the unique keys of children, so a step will need their results. An attempt that runs has read the
-- options.
WITH holder AS MATERIALIZED (
    SELECT job_id, status, unique_key, {will_keep_result} AS keeps_result
    FROM {schema}scheduled_jobs AS job
    WHERE job_id = ANY ($1)
    ORDER BY job_id COLLATE "C"
    FOR NO KEY UPDATE
),
kept AS (
    UPDATE {schema}scheduled_jobs AS job SET
        options = {options_object} || jsonb_build_object('keep_result', $2::double precision::numeric)
    FROM holder
    WHERE job.job_id = ANY ($1)
      AND job.job_id = holder.job_id
      AND holder.status = 'pending'
      AND NOT holder.keeps_result
)
SELECT job_id, status, unique_key FROM holder WHERE status <> 'pending' AND NOT keeps_result;
