-- name: claim_next
-- route: reserved
-- Claim the job that exchange_jobs would claim first, of the names $2 and the ids $3 (NULL for all), or expire it.
--
-- For the test kits, which run jobs within the transaction of a test, alone. So there is neither a worker with a
-- lease nor a cursor, and a crashed job is like any other. There is no other job to wait for either, so a job of a share
-- needs no turn. A job of a sequence does wait for those before it: the kit moves the heads of sequences first.
UPDATE {schema}scheduled_jobs SET
    blocked_on     = NULL,
    status         = CASE WHEN expires_at < coalesce($4, {now}) THEN 'expired' ELSE 'running' END,
    finished_at    = CASE WHEN expires_at < coalesce($4, {now}) THEN coalesce($4, {now}) END,
    error_message  = CASE WHEN expires_at < coalesce($4, {now})
        THEN coalesce(error_message, {unexplained_expiry}) ELSE error_message END,
    attempt        = CASE WHEN expires_at < coalesce($4, {now}) THEN attempt
        ELSE attempt % 2147483647 + 1 END,
    worker_id      = $1,
    started_at     = CASE WHEN expires_at < coalesce($4, {now}) THEN started_at ELSE coalesce($4, {now}) END,
    last_heartbeat = coalesce($4, {now})
WHERE ctid = ANY (ARRAY (
    SELECT ctid
    FROM {schema}scheduled_jobs
    WHERE finished_at IS NULL
      AND (blocked_on IS NULL OR blocked_on > 'share:' AND blocked_on < 'z')
      AND status = 'pending'
      AND execution_time >= {first_instant}
      AND execution_time <= coalesce($4, {now})
      AND coalesce(function, job_name) = ANY ($2)
      AND ($3::text[] IS NULL OR job_id = ANY ($3::text[]))
      AND (expires_at IS NULL OR expires_at >= coalesce($4, {now}) OR {may_expire})
    ORDER BY priority, execution_time, job_id COLLATE "C"
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
))
RETURNING {claim_columns}, finished_at IS NOT NULL AS expired;

-- name: job_ids
-- route: pool
-- Return the ids of all jobs, or of those that are due at $1 and can start.
SELECT job_id
FROM {schema}scheduled_jobs
WHERE $1::timestamptz IS NULL
   OR (finished_at IS NULL AND (blocked_on IS NULL OR blocked_on > 'share:') AND status = 'pending'
       AND execution_time <= $1::timestamptz);

-- name: mark_uncommitted
-- route: pool
-- Mark all jobs that others wait for, as the commit of their edges would.
UPDATE {schema}scheduled_jobs SET
    on_end = CASE WHEN jsonb_typeof(on_end) = 'object' THEN on_end ELSE jsonb_build_object() END
        || jsonb_build_object('child', true)
WHERE job_id = ANY (ARRAY (SELECT parent_id FROM {schema}scheduler_after)) AND (on_end -> 'child') IS NULL
RETURNING job_id, finished_at IS NOT NULL AS has_ended;
