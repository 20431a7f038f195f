-- fragment: wanted_kinds
-- The classes of events to which other workers than $1 subscribe, NULL for none.
(SELECT array_agg(DISTINCT kind)
     FROM {schema}scheduler_workers AS other, unnest(other.subscriptions) AS kind
     WHERE other.worker_id <> $1)

-- name: register_worker
-- route: shared, tuned
-- Write a worker's row with a new lease, and record the first worker of a release ($19).
--
-- Returns the server's time, what is requested of the worker, whether there are others, and which classes of events
-- these subscribe to: what the first heartbeat would read.
WITH released AS (
    {into_audit}
    SELECT coalesce($7, {now}), 'start_release', $19, coalesce($11, $1), 'worker',
        jsonb_build_object('host', $2::text, 'version', $4::text)
    WHERE $19::text IS NOT NULL
    {once_per_release}
),
registered AS (
    INSERT INTO {schema}scheduler_workers (
        worker_id, hostname, pid, version, max_concurrent_jobs, liveness_key, lease_extension,
        role, identity, metadata, settings, state, health, names, wanted, started_at, last_beat, lease_until
    )
    VALUES ($1, $2, $3, $4, $5, $8, $9, $10, $11, $12::text::jsonb,
            $13::text::jsonb || coalesce($17::text::jsonb, jsonb_build_object()), $14, $15::text::jsonb, $16, $18,
            coalesce($7, {now}), coalesce($7, {now}), coalesce($7, {now}) + make_interval(secs => $6))
    ON CONFLICT (worker_id) DO UPDATE SET
        last_beat = EXCLUDED.last_beat, lease_until = EXCLUDED.lease_until, liveness_key = EXCLUDED.liveness_key,
        lease_extension = EXCLUDED.lease_extension
    RETURNING wanted
)
SELECT
    coalesce($7, {now}) AS now,
    (SELECT wanted FROM registered) AS wanted,
    EXISTS (SELECT FROM {schema}scheduler_workers WHERE worker_id <> $1) AS has_others,
    {wanted_kinds} AS subscriptions;

-- name: suspect_workers
-- route: reserved
-- Return other workers that may be dead: the lease expired, or (where $3) the liveness lock is free.
--
-- A free lock means nothing in the first $2 seconds after a start of the server, which ended every session. A
-- start in the future means that the server's clock was set back since. The lease is text: Python may not be
-- able to hold it.
SELECT worker_id, liveness_key, lease_until::text
FROM {schema}scheduler_workers
WHERE worker_id <> $1
  AND (lease_until < coalesce($4, {now})
       OR ($3::boolean
           AND (clock_timestamp() < pg_postmaster_start_time()
                OR clock_timestamp() > (pg_postmaster_start_time() + make_interval(secs => $2)))
           AND pg_try_advisory_xact_lock_shared(liveness_key)));

-- name: ended_namesakes
-- route: reserved
-- Return other workers of identity $2 on host $3 whose liveness lock is free; see suspect_workers.
SELECT worker_id
FROM {schema}scheduler_workers
WHERE worker_id <> $1
  AND identity = $2
  AND hostname = $3
  AND (clock_timestamp() < pg_postmaster_start_time()
       OR clock_timestamp() > (pg_postmaster_start_time() + make_interval(secs => $4)))
  AND pg_try_advisory_xact_lock_shared(liveness_key);

-- name: renew_lease
-- route: shared, tuned
-- Renew the lease of a worker and of the jobs it holds ($3 maps ids to attempts), $7 of which run.
--
-- Returns whether the worker still has its row, and which jobs it lost, among them those whose attempts were revoked. SKIP LOCKED: an open transaction on a
-- job's row must not cost the worker its lease; a later heartbeat renews the row. $6 is the key of the
-- worker's liveness lock, NULL for none, and $8 the seconds for which it extends the lease. A heartbeat after
-- the lease expired does not set last_beat: lock_orphans could otherwise release a claim that is still on its
-- way to the worker. Returns also the server's time, which classes of events other workers subscribe to, NULL for
-- none, and what is requested of the worker. $9 to $12 are its report; NULL leaves what the row has. A worker that
-- has stopped names the attempts that run on, because an old lease does not show that their threads have ended.
WITH held AS MATERIALIZED (SELECT $3::text::jsonb AS attempts),
worker AS (
    UPDATE {schema}scheduler_workers SET
        last_beat       = CASE WHEN lease_until < coalesce($5, {now}) THEN last_beat
            ELSE coalesce($5, {now}) END,
        lease_until     = coalesce($5, {now}) + make_interval(secs => $4),
        running_jobs    = $7,
        liveness_key    = $6,
        lease_extension = $8,
        state           = coalesce($9, state),
        health          = CASE WHEN stopping THEN coalesce($10::text::jsonb, health, jsonb_build_object())
                || jsonb_build_object('held', (SELECT attempts FROM held))
            ELSE coalesce($10::text::jsonb, health) END,
        names           = coalesce($11::text[], names),
        settings        = CASE WHEN $12::text IS NULL THEN settings
            ELSE coalesce(settings, jsonb_build_object()) || $12::text::jsonb END
    WHERE worker_id = $1
    RETURNING lease_until, last_beat < coalesce($5, {now}) AS late, wanted
),
own AS (
    SELECT job_id
    FROM {schema}scheduled_jobs
    WHERE job_id = ANY ($2)
      AND status = 'running'
      AND worker_id = $1
      AND attempt = ((SELECT attempts FROM held) ->> job_id)::integer
      AND NOT {attempt_is_revoked}
      AND EXISTS (SELECT FROM worker)
),
renewed AS (
    UPDATE {schema}scheduled_jobs SET
        last_heartbeat = coalesce($5, {now}),
        lease_until    = (SELECT lease_until FROM worker)
    WHERE job_id = ANY (ARRAY (
        SELECT job_id
        FROM {schema}scheduled_jobs AS job
        WHERE job_id = ANY ($2)
          AND status = 'running'
          AND worker_id = $1
          AND attempt = ((SELECT attempts FROM held) ->> job_id)::integer
          AND EXISTS (SELECT FROM worker)
        FOR NO KEY UPDATE OF job SKIP LOCKED
    ))
)
SELECT
    EXISTS (SELECT FROM worker) AS alive,
    coalesce((SELECT late FROM worker), false) AS late,
    ARRAY (SELECT unnest($2::text[]) EXCEPT SELECT job_id FROM own) AS lost,
    coalesce($5, {now}) AS now,
    {wanted_kinds} AS subscriptions,
    (SELECT wanted FROM worker) AS wanted;

-- name: renew_worker
-- route: tuned
-- Renew the lease of a worker without those of its jobs, because their table is locked or refuses a row; see renew_lease.
--
-- The jobs stay with the worker meanwhile: a claim counts as lost only if its lease ended before the last_beat of the
-- worker, which stays as it is.
UPDATE {schema}scheduler_workers SET
    lease_until     = coalesce($3, {now}) + make_interval(secs => $2),
    running_jobs    = $5,
    liveness_key    = $4,
    lease_extension = $6,
    state           = coalesce($7, state),
    health          = coalesce($8::text::jsonb, health),
    names           = coalesce($9::text[], names),
    settings        = CASE WHEN $10::text IS NULL THEN settings
        ELSE coalesce(settings, jsonb_build_object()) || $10::text::jsonb END
WHERE worker_id = $1
RETURNING coalesce($3, {now}) AS now, wanted;

-- name: find_lost
-- route: reserved
-- Return those of the jobs $2 ($3 maps them to attempts) that worker $1 does not hold; see renew_lease.
SELECT mine.job_id
FROM unnest($2::text[]) AS mine (job_id)
WHERE NOT EXISTS (
    SELECT FROM {schema}scheduled_jobs AS job
    WHERE job.job_id = mine.job_id
      AND job.status = 'running'
      AND job.worker_id = $1
      AND job.attempt = (($3::text::jsonb) ->> mine.job_id)::integer
    OFFSET 0
);

-- name: request_state
-- route: reserved
-- Write what the workers $1 are to do ($2, NULL for nothing), and request a heartbeat of each.
--
-- $3 is the message without the id of the worker. A request that changes something is recorded as the action $5 ($6
-- to $8). Returns the ids of the workers that have a row.
WITH asked AS (
    SELECT worker_id, coalesce(wanted <> $2::text, wanted IS NOT NULL OR $2 IS NOT NULL) AS is_new
    FROM {schema}scheduler_workers
    WHERE worker_id = ANY ($1)
    ORDER BY worker_id
    FOR UPDATE
),
requested AS (
    UPDATE {schema}scheduler_workers SET wanted = $2
    WHERE worker_id = ANY (ARRAY (SELECT worker_id FROM asked))
    RETURNING worker_id
),
audited AS (
    {into_audit}
    SELECT coalesce($4, {now}), $5, worker_id, $6, $7, $8::text::jsonb FROM asked WHERE is_new
)
SELECT worker_id, pg_notify({channel}, $3 || ' ' || worker_id) FROM requested;

-- name: announce_subscriptions
-- route: tuned
-- Write the classes of events that a worker wants ($2), and notify every worker ($3).
WITH announced AS (
    UPDATE {schema}scheduler_workers SET subscriptions = $2 WHERE worker_id = $1 RETURNING worker_id
)
SELECT pg_notify({channel}, $3) FROM announced;

-- name: mark_stopping
-- route: tuned
-- Mark a worker that has stopped while threads of its process run on: their jobs are not released as crashed.
UPDATE {schema}scheduler_workers SET stopping = true WHERE worker_id = $1;

-- name: deregister_worker
-- route: shared, tuned
-- Delete a worker's row.
DELETE FROM {schema}scheduler_workers WHERE worker_id = $1;

-- name: list_workers
-- route: reserved
-- Return every worker, and whether its lease is valid.
SELECT worker_id, hostname, pid, version, max_concurrent_jobs, running_jobs,
    least(greatest(started_at, {first_instant}), {last_instant}) AS started_at,
    least(greatest(last_beat, {first_instant}), {last_instant}) AS last_beat,
    least(greatest(lease_until, {first_instant}), {last_instant}) AS lease_until,
    lease_until > coalesce($1, {now}) AS is_alive,
    stopping AS is_stopping, role, identity, metadata::text AS metadata, settings::text AS settings,
    health::text AS health, names, state, wanted
FROM {schema}scheduler_workers AS worker
ORDER BY worker.started_at, worker_id;
