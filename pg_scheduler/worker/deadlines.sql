-- name: scan_deadlines
-- route: shared, tuned
-- Return the seconds until the first lease and the first pending job expire, and whether a job is overdue, "blocked"
-- by a limit, or "queued" in a share.
--
-- Also returns whether the consequences of a job that has "ended" are to be applied, and whether jobs are
-- "waiting" for others.
-- Negative for one that has expired, NULL for none. Only jobs due within $2 seconds are read. Of running rows
-- only those count that lock_orphans may find: of workers without a row, and those that were not renewed of this one
-- ($4) and of stopping ones. The lease of the worker stands for the others. A heartbeat in the future counts as expired
-- (see restart_leases). extract(epoch), because infinite instants cannot be subtracted; OFFSET 0, because on an empty
-- table the planner would otherwise turn the join round, and later read the future rows too.
WITH unfinished AS (
    SELECT
        CASE WHEN job.status = 'pending' THEN job.expires_at END AS expiry,
        job.status = 'pending' AND job.execution_time < {overdue_instant} AS overdue,
        CASE WHEN job.status = 'running' AND job.lapse < coalesce(
            (SELECT CASE WHEN {ended_in_stopped} OR worker.worker_id = $4 THEN worker.last_beat ELSE '-infinity' END
             FROM {schema}scheduler_workers AS worker
             WHERE worker.worker_id = job.worker_id),
            'infinity') THEN job.lapse END AS lapse,
        job.status = 'running' AND job.last_heartbeat > coalesce($1, clock_timestamp())
            AND job.last_heartbeat < job.lease_until AND job.lease_until < {last_day} AS early
    FROM {levels}
    CROSS JOIN LATERAL (
        SELECT job_id, attempt, status, worker_id, execution_time, expires_at, last_heartbeat, lease_until,
            greatest(execution_time, coalesce(
                lease_until,
                CASE WHEN last_heartbeat < {last_day} THEN last_heartbeat + make_interval(secs => $3) END
            )) AS lapse
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NULL
          AND blocked_on IS NULL
          AND priority = level.priority
          AND execution_time <= (coalesce($1, {now}) + make_interval(secs => $2))
        OFFSET 0
    ) AS job
)
SELECT
    CASE WHEN bool_or(early) OR EXISTS (
        SELECT FROM {schema}scheduler_workers
        WHERE last_beat > coalesce($1, clock_timestamp())
          AND last_beat < lease_until AND lease_until < {last_day}
    ) THEN 0
    ELSE (extract(epoch FROM least((SELECT min(lease_until) FROM {schema}scheduler_workers), min(lapse)))
        - extract(epoch FROM coalesce($1, {now})))::double precision END AS lapse_in,
    (extract(epoch FROM min(expiry)) - extract(epoch FROM coalesce($1, {now})))::double precision AS expiry_in,
    coalesce(bool_or(overdue), false) AS overdue,
    EXISTS (SELECT FROM {schema}scheduled_jobs 
            WHERE finished_at IS NOT NULL AND on_end IS NOT NULL) AS ended,
    EXISTS (SELECT FROM {schema}scheduled_jobs WHERE blocked_on = 'after')
        OR EXISTS (SELECT FROM {schema}scheduler_after) AS waiting,
    EXISTS (SELECT FROM {schema}scheduled_jobs WHERE blocked_on > 'after' AND blocked_on < 'share:') AS blocked,
    EXISTS (SELECT FROM {schema}scheduled_jobs WHERE blocked_on > 'share:') AS queued
FROM unfinished;

-- name: next_instants
-- route: sticky
-- Return the seconds until the next pending job is due, and until the next expiry of a job, of another's lease or of
-- the pause of a task.
--
-- For the test kit, which moves its clock from one to the next. Only instants after now count, so that a job that
-- no function claims does not stop the clock. A job that waits for the turn of its tenant counts: a pass moves it
-- when it is due. Jobs expire and leases end a microsecond after the instant in the row.
-- extract(epoch), because infinite instants cannot be subtracted. NULL for none.
SELECT
    (extract(epoch FROM (
        SELECT min(execution_time)
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NULL
          AND (blocked_on IS NULL OR blocked_on > 'share:')
          AND status = 'pending'
          AND execution_time > coalesce($1, {now})
    )) - extract(epoch FROM coalesce($1, {now})))::double precision AS due_in,
    (least(extract(epoch FROM least(
        (SELECT min(expires_at)
         FROM {schema}scheduled_jobs
         WHERE finished_at IS NULL
           AND blocked_on IS NULL
           AND status = 'pending'
           AND expires_at >= coalesce($1, {now})),
        (SELECT min(lease_until)
         FROM {schema}scheduled_jobs
         WHERE finished_at IS NULL
           AND blocked_on IS NULL
           AND status = 'running'
           AND worker_id <> $2
           AND lease_until >= coalesce($1, {now})),
        (SELECT min(lease_until)
         FROM {schema}scheduler_workers
         WHERE worker_id <> $2
           AND lease_until >= coalesce($1, {now}))
    )) + 0.000001, (
        SELECT extract(epoch FROM min(paused_until))
        FROM {schema}scheduler_tasks
        WHERE paused_until > coalesce($1, {now})
    )) - extract(epoch FROM coalesce($1, {now})))::double precision AS expiry_in;
