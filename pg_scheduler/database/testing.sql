-- The statements of the test kits, which run jobs within the transaction of a test, alone. Most have a parameter for
-- whether they are limited to the rows that this transaction has written: other rows belong to workers, and the rollback
-- of the test would let these run a job again that the test has run.

-- fragment: written_here
-- Whether this transaction, or a savepoint of it, has written the version of the row that the statement sees.
--
-- The transaction and its savepoints have numbers of their own, and "xmin" has the one that wrote the version, in 32 bits.
-- The numbers of savepoints are greater than that of the transaction. Those of other transactions may be, too, but the
-- statement sees what they wrote only after their commit. So a version that it sees belongs to this transaction if its
-- number is not less, and is still in progress.
--
-- Numbers from the end of the snapshot on are those of this transaction, because nothing that others write under them is
-- visible. pg_xact_status() is not called for them, since it rejects numbers that no transaction has had yet. A version
-- from thousands of millions of transactions ago may seem to have one, as its 32 bits may be those of a later number. The
-- limit of a million leaves such versions out, nearly always.
CASE
        WHEN pg_current_xact_id_if_assigned() IS NULL OR {transactions_since} >= 2147483648 THEN false
        WHEN ({own_transaction} + ({transactions_since})) >= {snapshot_end}
            THEN ({own_transaction} + ({transactions_since})) < ({snapshot_end} + 1000000)
        ELSE pg_xact_status(({own_transaction} + ({transactions_since}))::text::xid8) = 'in progress'
    END

-- fragment: own_transaction
pg_current_xact_id_if_assigned()::text::bigint

-- fragment: snapshot_end
pg_snapshot_xmax(pg_current_snapshot())::text::bigint

-- fragment: transactions_since
-- How many transactions began after this one until the one that wrote the row.
(xmin::text::bigint - {own_transaction}) & 4294967295

-- name: claim_next
-- route: reserved
-- Claim the job that exchange_jobs would claim first, of the names $2 and the ids $3 (NULL for all), or expire it.
--
-- If $5, only one that this transaction has written. There is neither a worker with a lease nor a cursor, and a crashed job
-- is like any other. There is no other job to wait for either, so a job of a share needs no turn. A job of a sequence does
-- wait for those before it: the kit moves the heads of sequences first.
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
      AND ($5::boolean IS NOT TRUE OR {written_here})
    ORDER BY priority, execution_time, job_id COLLATE "C"
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
))
RETURNING {claim_columns}, finished_at IS NOT NULL AS expired;

-- name: job_ids
-- route: pool
-- Return the ids of all jobs, or of those that are due at $1 and can start; if $2, only of jobs that this transaction has
-- written.
SELECT job_id
FROM {schema}scheduled_jobs
WHERE ($1::timestamptz IS NULL
       OR (finished_at IS NULL AND (blocked_on IS NULL OR blocked_on > 'share:') AND status = 'pending'
           AND execution_time <= $1::timestamptz))
  AND ($2::boolean IS NOT TRUE OR {written_here});

-- name: ready_names
-- route: pool
-- Return the names of pending jobs that wait for nothing but their time; if $1, only of jobs that this transaction has
-- written.
SELECT DISTINCT coalesce(function, job_name)
FROM {schema}scheduled_jobs
WHERE finished_at IS NULL AND blocked_on IS NULL AND status = 'pending' AND ($1::boolean IS NOT TRUE OR {written_here});

-- name: kit_pauses
-- route: pool
-- Return the names of all pauses; if $1, only of those that this transaction has written.
SELECT name FROM {schema}scheduler_tasks WHERE $1::boolean IS NOT TRUE OR {written_here};

-- name: movable_sequences
-- route: pool
-- Return the sequences with waiting jobs; if $1, only those whose next head would be a job that this transaction has
-- written.
--
-- The next head is the first waiting job, or the last head if that waits again after a retry.
SELECT waiting.key
FROM (
    SELECT DISTINCT blocked_on AS key
    FROM {schema}scheduled_jobs
    WHERE blocked_on > $2 AND blocked_on < $3 AND ($1::boolean IS NOT TRUE OR {written_here})
) AS waiting
CROSS JOIN LATERAL (
    {first_in_sequence}
) AS first
WHERE $1::boolean IS NOT TRUE
   OR (SELECT {written_here} FROM {schema}scheduled_jobs WHERE job_id = first.job_id)
  AND NOT EXISTS (
      SELECT FROM {schema}scheduled_jobs
      WHERE blocked_on = waiting.key
        AND NOT ({written_here})
        AND job_id = (SELECT job_id FROM {schema}scheduler_sequences WHERE key = waiting.key)
  );

-- name: mark_uncommitted
-- route: pool
-- Mark all jobs that others wait for, as the commit of their edges would; if $1, only what this transaction has written.
UPDATE {schema}scheduled_jobs SET
    on_end = CASE WHEN jsonb_typeof(on_end) = 'object' THEN on_end ELSE jsonb_build_object() END
        || jsonb_build_object('child', true)
WHERE job_id = ANY (ARRAY (
    SELECT parent_id FROM {schema}scheduler_after WHERE $1::boolean IS NOT TRUE OR {written_here}
))
  AND (on_end -> 'child') IS NULL
  AND ($1::boolean IS NOT TRUE OR {written_here})
RETURNING job_id, finished_at IS NOT NULL AS has_ended;
