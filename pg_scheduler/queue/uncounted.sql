-- name: count_failures
-- route: tuned
-- Count jobs $1, with the texts $2, that failed or expired ($3) without being counted, as settle_failed does.
--
-- The count was refused, or had to wait for a lock. A job that was retried meanwhile is not counted.
WITH place AS MATERIALIZED ({places}),
ended AS MATERIALIZED (
    SELECT job_id, {named}, status, worker_id, finished_at, ($2::text[])[{place}] AS text
    FROM {schema}scheduled_jobs
    WHERE job_id = ANY ($1) AND finished_at IS NOT NULL AND status = ($3::text[])[{place}]
){counted_failures}
SELECT count(*) FROM ended;
