-- name: inspect_tenants
-- route: tuned
-- Count the jobs that wait for the turns of each of the tenants $1, at most $2 of each; return when its last turn was.
SELECT tenant.key, waiting.jobs, (
    SELECT least(greatest(turn.at, {first_instant}), {last_instant})
    FROM {schema}scheduler_starts AS turn
    WHERE turn.key = ('fed' || substr(tenant.key, 6)) AND turn.job_id = '' AND turn.attempt = 0
) AS last_turn_at
FROM unnest($1::text[]) AS tenant (key)
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs
    FROM (
        SELECT FROM {schema}scheduled_jobs
        WHERE blocked_on IS NOT NULL AND blocked_on = tenant.key
        ORDER BY priority, execution_time, job_id COLLATE "C"
        LIMIT $2::bigint
    ) AS each
) AS waiting;

-- name: inspect_in_flight
-- route: pool
-- Count the jobs in flight by tenant, as feed_shares counts them: those that it moved, and that have neither ended nor
-- wait for a later time or other jobs. At most $1 are read.
SELECT moved.key, count(*) AS jobs
FROM (SELECT key, job_id FROM {schema}scheduler_starts WHERE key > 'share:' AND attempt = 0 LIMIT $1::bigint) AS moved
CROSS JOIN (SELECT coalesce($2, clock_timestamp()) AS at) AS clock
CROSS JOIN LATERAL (
    SELECT finished_at, blocked_on, status, execution_time
    FROM {schema}scheduled_jobs
    WHERE job_id = moved.job_id
    OFFSET 0  -- not joined in another way, which reads all jobs
) AS job
WHERE job.finished_at IS NULL
  AND (job.blocked_on > 'share:' OR job.blocked_on = 'after') IS NOT TRUE
  AND (
      job.blocked_on IS NOT NULL
      OR job.status = 'running'
      OR job.execution_time <= (clock.at + interval '4 seconds')
  )
GROUP BY moved.key;
