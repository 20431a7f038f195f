-- name: restart_leases
-- route: tuned
-- Restart leases whose heartbeat lies in the future, because the server's clock was set back.
--
-- Live workers correct theirs with the next heartbeat. This is for dead workers, and for claims whose answer
-- was lost. clock_timestamp(), not now(): heartbeats may have come in since the transaction began.
WITH early AS MATERIALIZED (
    SELECT early.ctid, early.job_id
    FROM {levels}
    CROSS JOIN LATERAL (
        SELECT ctid, job_id
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NULL
          AND blocked_on IS NULL
          AND priority = level.priority
          AND execution_time <= coalesce($1, {now})
          AND status = 'running'
          AND last_heartbeat > coalesce($1, clock_timestamp())
          AND last_heartbeat < lease_until
          AND lease_until < {last_day}{left_out}
        LIMIT $2
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS early
    LIMIT $2
),
changed AS (
    UPDATE {schema}scheduled_jobs SET
        last_heartbeat = coalesce($1, clock_timestamp()),
        lease_until    = coalesce($1, clock_timestamp()) + (lease_until - last_heartbeat)
    WHERE ctid = ANY (ARRAY (SELECT ctid FROM early))
    RETURNING job_id
),
worker AS (
    UPDATE {schema}scheduler_workers SET
        last_beat   = coalesce($1, clock_timestamp()),
        lease_until = coalesce($1, clock_timestamp()) + (lease_until - last_beat)
    WHERE worker_id = ANY (ARRAY (
        SELECT worker_id
        FROM {schema}scheduler_workers
        WHERE last_beat > coalesce($1, clock_timestamp()) AND last_beat < lease_until AND lease_until < {last_day}
        FOR UPDATE SKIP LOCKED
    ))
)
SELECT count(*) FROM changed;

-- name: delete_dead_workers
-- route: caller
-- Delete suspects ($2) whose liveness lock is still free, or whose lease and its extension are still expired.
--
-- NULL for every worker whose lease expired. A held lock extends the lease: a job that holds the GIL stops
-- every thread of its process, the lease keeper's too. It is a shared lock here, so that one rescuer does not
-- take another for the worker. SKIP LOCKED: a claim in progress holds its worker's row FOR KEY SHARE, and that
-- worker is left for the next pass.
DELETE FROM {schema}scheduler_workers
WHERE worker_id = ANY (ARRAY (
    SELECT worker_id FROM {schema}scheduler_workers
    WHERE CASE WHEN $2::text[] IS NULL THEN lease_until < coalesce($1, {now}) ELSE worker_id = ANY ($2) END
      AND (lease_until < (coalesce($1, {now}) - make_interval(
               secs => CASE WHEN liveness_key IS NULL THEN 0
                   ELSE greatest(least(coalesce(lease_extension, 0), {longest_extension_s}), 0) END))
           OR pg_try_advisory_xact_lock_shared(liveness_key))
    FOR UPDATE SKIP LOCKED
))
RETURNING worker_id, stopping, jsonb_build_object(
    'worker_id', worker_id, 'hostname', left(hostname, 200), 'pid', pid, 'version', left(version, 200),
    'release', left(metadata ->> 'release', 200), 'role', left(role, 200), 'identity', left(identity, 200),
    'slots', max_concurrent_jobs, 'started_at', least(greatest(started_at, {first_instant}), {last_instant}),
    'last_beat', least(greatest(last_beat, {first_instant}), {last_instant}))::text AS described;

-- name: record_dead_workers
-- route: tuned
-- Record that workers were declared dead: $2 is an array of their descriptions, each with the "count" of their jobs and
-- the ids of some of these "jobs".
--
-- The ids may have been written by hand, and the subject of a record has at most 2,000 bytes.
{into_audit}
SELECT coalesce($1, {now}), 'declare_dead', left(dead.worker ->> 'worker_id', 500), $3, $4,
    $5::text::jsonb || jsonb_build_object(
        'worker', dead.worker - ARRAY ['worker_id', 'count', 'jobs'],
        'count', dead.worker -> 'count', 'jobs', dead.worker -> 'jobs')
FROM jsonb_array_elements($2::text::jsonb) AS dead (worker);

-- name: lock_orphans
-- route: caller
-- Lock at most $4 running jobs of the dead workers ($1), and those whose own lease expired and whose worker has no row.
--
-- A statement after delete_dead_workers, so that its snapshot contains every claim that they committed. Where a row
-- has no lease, as those of 0.2, it expires $3 seconds after the last heartbeat.
--
-- The job of a live worker is no orphan, however old the lease in its row: heartbeats skip a row that a transaction of
-- the application has locked. Only the worker itself knows which jobs it has, so worker $5 also finds its own jobs that
-- are not in $6, which maps ids to attempts: the answer to that claim was lost. Their lease must have expired at its
-- last heartbeat, because another claim may be on its way to it. A stopping worker makes no such pass any more. Its
-- heartbeats name the attempts that run on in its threads, so others find its other jobs.
--
-- The claim index finds them, because a running job was due. The jobs of dead workers crashed, unless a replacement
-- waits, which has not run. A worker without a row is dead, which an earlier pass may have declared. Once an attempt has stored a step, earlier retries do not count any more; a signal that
-- came before its wait is no such step, and neither is a failed attempt of a step.
WITH known AS MATERIALIZED (SELECT $6::text::jsonb AS attempts)
SELECT orphan.*
FROM {levels}
CROSS JOIN LATERAL (
    SELECT job_id, {named}, worker_id, attempt, crash_count, {bounded_due},
        worker_id = ANY ($1) AND {has_no_coming_definition} AS crashed,
        NOT EXISTS (
            SELECT FROM {schema}scheduler_workers AS worker WHERE worker.worker_id = job.worker_id
        ) AS has_dead_worker,
        CASE WHEN (options -> 'steps') IS NOT NULL AND EXISTS (
            SELECT FROM {schema}scheduler_steps AS step
            WHERE step.job_id = job.job_id AND step.attempt = job.attempt
              AND step.kind <> 'retry' AND (step.kind <> 'signal' OR step.until IS NOT NULL)
        ) THEN retry_count ELSE 0 END AS past_retries
    FROM {schema}scheduled_jobs AS job
    WHERE finished_at IS NULL
      AND blocked_on IS NULL
      AND priority = level.priority
      AND execution_time <= coalesce($2, {now})
      AND status = 'running'
      AND (worker_id = ANY ($1)
           OR coalesce(
               lease_until,
               CASE WHEN last_heartbeat < {last_day} THEN last_heartbeat + make_interval(secs => $3) END,
               '-infinity') < coalesce(
               (SELECT CASE
                    WHEN {ended_in_stopped} THEN worker.last_beat
                    WHEN worker.worker_id = $5
                        AND (((SELECT attempts FROM known) ->> job.job_id)::integer = job.attempt) IS NOT TRUE
                        THEN worker.last_beat
                    ELSE '-infinity' END
                FROM {schema}scheduler_workers AS worker
                WHERE worker.worker_id = job.worker_id),
               $2, {now}))
    LIMIT $4
    FOR NO KEY UPDATE SKIP LOCKED
) AS orphan
LIMIT $4;

-- name: lock_unacknowledged
-- route: caller
-- Lock at most $4 running jobs of a worker that it does not know ($2 maps those it knows to attempts).
--
-- They were claimed, and the answer was lost with the connection.
WITH known AS MATERIALIZED (SELECT $2::text::jsonb AS attempts)
SELECT unacknowledged.*
FROM {levels}
CROSS JOIN LATERAL (
    SELECT job_id, attempt
    FROM {schema}scheduled_jobs
    WHERE finished_at IS NULL
      AND blocked_on IS NULL
      AND priority = level.priority
      AND execution_time <= coalesce($3, {now})
      AND status = 'running'
      AND worker_id = $1
      AND (((SELECT attempts FROM known) ->> job_id)::integer = attempt) IS NOT TRUE
    LIMIT $4
    FOR NO KEY UPDATE SKIP LOCKED
) AS unacknowledged
LIMIT $4;
