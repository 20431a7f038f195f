-- name: waiting_names
-- route: pool
-- Return the names of pending jobs.
SELECT DISTINCT coalesce(function, job_name)
FROM {schema}scheduled_jobs
WHERE finished_at IS NULL AND blocked_on IS NULL AND status = 'pending';

-- name: overdue_names
-- route: tuned
-- Count the overdue jobs of each name that is not in $2, among the oldest $3 jobs of each priority.
--
-- "busy" counts the other workers without a free slot, which may have registered the names.
SELECT job.name, count(*)::integer AS jobs, min(job.execution_time) AS due_since,
    (SELECT count(*) FROM {schema}scheduler_workers
     WHERE worker_id <> $4 AND lease_until > coalesce($1, {now})
       AND running_jobs >= max_concurrent_jobs)::integer AS busy
FROM {levels}
CROSS JOIN LATERAL (
    SELECT status, coalesce(function, job_name) AS name, execution_time
    FROM {schema}scheduled_jobs
    WHERE finished_at IS NULL
      AND blocked_on IS NULL
      AND priority = level.priority
      AND execution_time >= {first_instant}
      AND execution_time < {overdue_instant}
    ORDER BY execution_time, job_id COLLATE "C"
    LIMIT $3
) AS job
WHERE job.status = 'pending' AND job.name <> ALL ($2)
GROUP BY job.name
ORDER BY min(job.execution_time), job.name;
