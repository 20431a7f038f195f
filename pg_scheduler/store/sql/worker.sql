-- name: register_worker
-- A worker's row with a fresh lease.
INSERT INTO {schema}scheduler_workers (
    worker_id, hostname, pid, version, max_concurrent_jobs, liveness_key, started_at, last_beat, lease_until
)
VALUES ($1, $2, $3, $4, $5, $8, coalesce($7, now()), coalesce($7, now()),
        coalesce($7, now()) + make_interval(secs => $6))
ON CONFLICT (worker_id) DO UPDATE SET
    last_beat = EXCLUDED.last_beat, lease_until = EXCLUDED.lease_until, liveness_key = EXCLUDED.liveness_key;

-- name: suspect_workers
-- Workers that seem to be dead: their lease is over, or (where $3) their liveness lock can be had, so their session
-- has ended. That says nothing in the first $2 seconds after a start of the server, which ended everybody's. A
-- server that has started in the future has had its clock put back since. The lease is a text, since it may be one
-- that Python has no word for.
SELECT worker_id, liveness_key, lease_until::text
FROM {schema}scheduler_workers
WHERE worker_id <> $1
  AND (lease_until < coalesce($4, now())
       OR ($3::boolean
           AND clock_timestamp() NOT BETWEEN pg_postmaster_start_time()
               AND pg_postmaster_start_time() + make_interval(secs => $2)
           AND pg_try_advisory_xact_lock_shared(liveness_key)));

-- name: renew_lease
-- One beat: the worker's row and the rows of the jobs it holds ($3 maps ids to attempts), $7 of which run. Returns
-- whether the worker still has its row, and which of its jobs are no longer its own. A row that somebody has locked
-- is renewed by a later beat: a transaction that stays open must not cost the worker its lease. $6 is the key
-- of the advisory lock that the process holds, NULL if it holds none: then silence means nothing. A beat that
-- comes when the lease was over, as all are at once when the server's clock is put forward, does not count as
-- one: by it nobody may tell that a claim which is just on its way is unknown to the worker (see lock_orphans).
WITH held AS MATERIALIZED (SELECT $3::text::jsonb AS attempts),
worker AS (
    UPDATE {schema}scheduler_workers SET
        last_beat    = CASE WHEN lease_until < coalesce($5, now()) THEN last_beat ELSE coalesce($5, now()) END,
        lease_until  = coalesce($5, now()) + make_interval(secs => $4),
        running_jobs = $7,
        liveness_key = $6
    WHERE worker_id = $1
    RETURNING lease_until, last_beat < coalesce($5, now()) AS late
),
own AS (
    SELECT job_id
    FROM {schema}scheduled_jobs, held
    WHERE job_id = ANY ($2)
      AND status = 'running'
      AND worker_id = $1
      AND attempt = (held.attempts ->> job_id)::integer
      AND EXISTS (SELECT FROM worker)
),
renewed AS (
    UPDATE {schema}scheduled_jobs SET
        last_heartbeat = coalesce($5, now()),
        lease_until    = (SELECT lease_until FROM worker)
    WHERE job_id = ANY (ARRAY (
        SELECT job_id
        FROM {schema}scheduled_jobs AS job, held
        WHERE job_id = ANY ($2)
          AND status = 'running'
          AND worker_id = $1
          AND attempt = (held.attempts ->> job_id)::integer
          AND EXISTS (SELECT FROM worker)
        FOR UPDATE OF job SKIP LOCKED
    ))
)
SELECT
    EXISTS (SELECT FROM worker) AS alive,
    coalesce((SELECT late FROM worker), false) AS late,
    ARRAY (SELECT unnest($2::text[]) EXCEPT SELECT job_id FROM own) AS lost;

-- name: deregister_worker
-- A worker that stops has no row.
DELETE FROM {schema}scheduler_workers WHERE worker_id = $1;

-- name: list_workers
-- Every worker with a row, and whether its lease still runs. Instants beyond the calendar of Python are its ends.
SELECT worker_id, hostname, pid, version, max_concurrent_jobs, running_jobs,
    least(greatest(started_at, '0001-01-01 00:00:00.000001Z'), '9999-12-31 23:59:59.999998Z') AS started_at,
    least(greatest(last_beat, '0001-01-01 00:00:00.000001Z'), '9999-12-31 23:59:59.999998Z') AS last_beat,
    least(greatest(lease_until, '0001-01-01 00:00:00.000001Z'), '9999-12-31 23:59:59.999998Z') AS lease_until,
    lease_until > coalesce($1, now()) AS is_alive
FROM {schema}scheduler_workers AS worker
ORDER BY worker.started_at, worker_id;

-- name: restart_leases
-- A heartbeat that lies in the future was made before the server's clock was put back. The lease that it gave
-- would last for longer by as much: it begins anew, now. Whoever lives does that by itself with its next beat; this
-- is for those who died, and for claims whose answer was lost. Not by now(): beats may have come since then.
WITH worker AS (
    UPDATE {schema}scheduler_workers SET
        last_beat   = coalesce($1, clock_timestamp()),
        lease_until = coalesce($1, clock_timestamp()) + (lease_until - last_beat)
    WHERE last_beat > coalesce($1, clock_timestamp()) AND last_beat < lease_until AND lease_until < '9999-12-31'
)
UPDATE {schema}scheduled_jobs SET
    last_heartbeat = coalesce($1, clock_timestamp()),
    lease_until    = coalesce($1, clock_timestamp()) + (lease_until - last_heartbeat)
WHERE ctid = ANY (ARRAY (
    SELECT early.ctid
    FROM (VALUES (1), (3), (5), (8)) AS level (priority)
    CROSS JOIN LATERAL (
        SELECT ctid
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NULL
          AND priority = level.priority
          AND execution_time <= coalesce($1, now())
          AND status = 'running'
          AND last_heartbeat > coalesce($1, clock_timestamp())
          AND last_heartbeat < lease_until
          AND lease_until < '9999-12-31'
        LIMIT $2
        FOR UPDATE SKIP LOCKED
    ) AS early
    LIMIT $2
));

-- name: delete_dead_workers
-- First half of a rescue: those of $2, found doubtful, whose lease is still over or whose liveness lock can still
-- be had, lose their row; where $2 is NULL, all whose lease is over. A claim of theirs that is under way holds
-- it FOR KEY SHARE: such a worker waits for the next pass.
DELETE FROM {schema}scheduler_workers
WHERE worker_id = ANY (ARRAY (
    SELECT worker_id FROM {schema}scheduler_workers
    WHERE CASE WHEN $2::text[] IS NULL THEN lease_until < coalesce($1, now())
        ELSE worker_id = ANY ($2)
            AND (lease_until < coalesce($1, now()) OR pg_try_advisory_xact_lock(liveness_key)) END
    FOR UPDATE SKIP LOCKED
))
RETURNING worker_id;

-- name: lock_orphans
-- Second half, in a statement of its own that sees every claim the dead workers committed: their running
-- jobs, and those whose own lease is over. That ends at now for a worker without a row (of 0.2.x, say;
-- $3 seconds after the last heartbeat where there is no lease). For a worker that lives it ends at its
-- last beat: a beat renews every job the worker knows of, so one that was out of lease by then is unknown
-- to it, because the answer to the claim was lost on the way. A heartbeat of the far future, to which nothing
-- can be added, is none. Found through the claim index: a running job was due. At most $4 of them: the rest is
-- found by its own lease. They are released under their own tokens, in the same transaction. Those of workers
-- that were just declared dead have crashed, unless a new definition waits, which has not run at all.
SELECT orphan.*
FROM (VALUES (1), (3), (5), (8)) AS level (priority)
CROSS JOIN LATERAL (
    SELECT job_id, job_name, worker_id, attempt, crash_count,
        worker_id = ANY ($1) AND replacement IS NULL AS crashed
    FROM {schema}scheduled_jobs AS job
    WHERE finished_at IS NULL
      AND priority = level.priority
      AND execution_time <= coalesce($2, now())
      AND status = 'running'
      AND (worker_id = ANY ($1)
           OR coalesce(
               lease_until,
               CASE WHEN last_heartbeat < '9999-12-31' THEN last_heartbeat + make_interval(secs => $3) END,
               '-infinity') < coalesce(
               (SELECT last_beat FROM {schema}scheduler_workers AS worker WHERE worker.worker_id = job.worker_id),
               $2, now()))
    LIMIT $4
    FOR UPDATE SKIP LOCKED
) AS orphan
LIMIT $4;

-- name: lock_unacknowledged
-- Running jobs of a worker that does not know of them ($2 maps those it does to attempts): they were claimed, and the
-- answer was lost with the connection. At most $4 of them; the rest is found by its lease. Found and released as
-- orphans are.
WITH known AS MATERIALIZED (SELECT $2::text::jsonb AS attempts)
SELECT unheard.*
FROM (VALUES (1), (3), (5), (8)) AS level (priority)
CROSS JOIN LATERAL (
    SELECT job_id, attempt
    FROM {schema}scheduled_jobs
    WHERE finished_at IS NULL
      AND priority = level.priority
      AND execution_time <= coalesce($3, now())
      AND status = 'running'
      AND worker_id = $1
      AND ((SELECT attempts FROM known) ->> job_id)::integer IS DISTINCT FROM attempt
    LIMIT $4
    FOR UPDATE SKIP LOCKED
) AS unheard
LIMIT $4;

-- name: look_ahead
-- Seconds until the first lease ends and until the first waiting job expires; negative if it is over, NULL if
-- there is none. A look locks nothing and, with nothing to write, is all that an idle worker does for both.
-- It walks the claim index over what is due within $2 seconds, so it knows of every job that will expire by
-- then. Of running rows only those count that are orphans or have no worker (see lock_orphans): of the
-- others the worker's own lease tells. A heartbeat of the future is looked into at once (see restart_leases).
-- epoch, since infinite instants cannot be subtracted; OFFSET 0, since
-- the planner would else turn the join round, when the table is empty, and then walk the future too.
WITH unfinished AS (
    SELECT
        CASE WHEN job.status = 'pending' THEN job.expires_at END AS expiry,
        CASE WHEN job.status = 'running' AND job.lapse < coalesce(
            (SELECT last_beat FROM {schema}scheduler_workers AS worker WHERE worker.worker_id = job.worker_id),
            'infinity') THEN job.lapse END AS lapse,
        job.status = 'running' AND job.last_heartbeat > coalesce($1, clock_timestamp())
            AND job.last_heartbeat < job.lease_until AND job.lease_until < '9999-12-31' AS early
    FROM (VALUES (1), (3), (5), (8)) AS level (priority)
    CROSS JOIN LATERAL (
        SELECT status, worker_id, expires_at, last_heartbeat, lease_until,
            greatest(execution_time, coalesce(
                lease_until,
                CASE WHEN last_heartbeat < '9999-12-31' THEN last_heartbeat + make_interval(secs => $3) END
            )) AS lapse
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NULL
          AND priority = level.priority
          AND execution_time <= coalesce($1, now()) + make_interval(secs => $2)
        OFFSET 0
    ) AS job
)
SELECT
    CASE WHEN bool_or(early) OR EXISTS (
        SELECT FROM {schema}scheduler_workers
        WHERE last_beat > coalesce($1, clock_timestamp()) AND last_beat < lease_until AND lease_until < '9999-12-31'
    ) THEN 0
    ELSE (extract(epoch FROM least((SELECT min(lease_until) FROM {schema}scheduler_workers), min(lapse)))
        - extract(epoch FROM coalesce($1, now())))::double precision END AS lapse_in,
    (extract(epoch FROM min(expiry)) - extract(epoch FROM coalesce($1, now())))::double precision AS expiry_in
FROM unfinished;
