-- fragment: first_in_sequence
-- The first job that waits in the sequence "waiting.key". Its priority does not matter: one index probe finds the first job
-- of the most urgent priority, and one more for each less urgent one finds a job that is due earlier.
SELECT job.ctid, job.job_id, job.execution_time
    FROM (
        SELECT ctid, job_id, execution_time, priority
        FROM {schema}scheduled_jobs
        WHERE blocked_on = waiting.key
        ORDER BY priority, execution_time, job_id COLLATE "C"
        LIMIT 1
    ) AS urgent
    CROSS JOIN LATERAL (
        SELECT urgent.ctid, urgent.job_id, urgent.execution_time
        UNION ALL
        SELECT later.ctid, later.job_id, later.execution_time
        FROM {levels}
        CROSS JOIN LATERAL (
            SELECT ctid, job_id, execution_time
            FROM {schema}scheduled_jobs
            WHERE blocked_on = waiting.key AND priority = level.priority
            ORDER BY execution_time, job_id COLLATE "C"
            LIMIT 1
        ) AS later
        WHERE level.priority > urgent.priority
    ) AS job
    ORDER BY job.execution_time, job.job_id COLLATE "C"
    LIMIT 1

-- fragment: head_of_sequence
-- The row of the head of "sequence", if it exists.
LEFT JOIN LATERAL (
        SELECT ctid, job_id, status, attempt, finished_at, blocked_on, execution_time, options, on_end
        FROM {schema}scheduled_jobs
        WHERE job_id = sequence.job_id
        OFFSET 0
    ) AS head ON true

-- fragment: state_of_head
-- What becomes of the head of "sequence". A head that is 'active' is not finished, or its consequences are not applied yet:
-- its attempt may still run. At one that has 'failed' the sequence is to stop, and then it has 'stopped', also when the
-- vacuum has deleted the row. One that was retried after that waits again, and is the first. Any other head is
-- 'gone', so the next job follows, as behind a failed one that a person has skipped while its attempt still ran.
CASE
            WHEN head.job_id IS NULL THEN CASE WHEN sequence.stopped_at IS NULL THEN 'gone' ELSE 'stopped' END
            WHEN ((head.options #>> ARRAY ['sequence', 'key']) = sequence.key) IS NOT TRUE THEN 'gone'
            WHEN head.finished_at IS NULL THEN
                CASE WHEN (head.blocked_on = sequence.key) IS NOT TRUE THEN 'active'
                    WHEN sequence.stopped_at IS NOT NULL
                        AND (head.options -> 'retried_by_hand') = to_jsonb(head.attempt) THEN 'retried'
                    ELSE 'gone' END
            WHEN (head.on_end -> 'sequence') IS NOT NULL THEN 'active'
            WHEN head.status = ANY (ARRAY ['failed', 'expired'])
                AND (head.options #>> ARRAY ['sequence', 'on_failure']) = 'stop'
                AND ((head.options #> ARRAY ['sequence', 'skipped'])
                    = to_jsonb(extract(epoch FROM head.finished_at))) IS NOT TRUE
                THEN CASE WHEN sequence.stopped_at IS NULL THEN 'failed' ELSE 'stopped' END
            ELSE 'gone' END

-- name: find_idle
-- route: shared, tuned
-- Return those of the sequences ($1) whose waiting jobs have no head before them, or a failed one that is not yet recorded,
-- with the seconds until the first job is due. One whose stop has ended by a new definition of the failed job is due at
-- once: its row states the stop until a pass.
--
-- It reads without locks, so it may be wrong by the time that its result is used. lock_sequences and move_heads decide.
SELECT waiting.key,
    CASE WHEN waiting.state = 'failed' OR waiting.state = 'gone' AND waiting.has_stopped THEN 0
        ELSE extract(epoch FROM
            CASE WHEN waiting.state = 'retried' THEN waiting.execution_time ELSE first.execution_time END
            - coalesce($2, clock_timestamp()))
        END::double precision AS due_in
FROM (
    SELECT declared.key, head.execution_time, sequence.stopped_at IS NOT NULL AS has_stopped,
        {state_of_head} AS state
    FROM unnest($1::text[]) AS declared (key)
    LEFT JOIN LATERAL (
        SELECT key, job_id, stopped_at FROM {schema}scheduler_sequences WHERE key = declared.key OFFSET 0
    ) AS sequence ON true
    {head_of_sequence}
    WHERE EXISTS (SELECT FROM {schema}scheduled_jobs AS job WHERE job.blocked_on = declared.key OFFSET 0)
    OFFSET 0
) AS waiting
CROSS JOIN LATERAL (
    {first_in_sequence}
) AS first
WHERE waiting.state = ANY (ARRAY ['gone', 'retried', 'failed']);

-- name: lock_sequences
-- route: caller
-- Take the locks of those sequences ($1) of which no other transaction holds them, and return these.
--
-- A statement of its own: the snapshot of the next one then contains what the last holder committed. A sequence without a
-- row gets one. The insert waits for another transaction that inserts the same row, which commits within milliseconds;
-- all insert in one order.
WITH inserted AS (
    INSERT INTO {schema}scheduler_sequences (key, job_id)
    SELECT idle.key, ''
    FROM unnest($1::text[]) AS idle (key)
    WHERE NOT EXISTS (SELECT FROM {schema}scheduler_sequences AS row WHERE row.key = idle.key OFFSET 0)
    ORDER BY idle.key COLLATE "C"
    ON CONFLICT DO NOTHING
    RETURNING key
),
held AS (
    SELECT key FROM {schema}scheduler_sequences WHERE key = ANY ($1) FOR NO KEY UPDATE SKIP LOCKED
)
SELECT key FROM inserted
UNION ALL
SELECT key FROM held;

-- name: lock_heads
-- route: caller
-- Take the locks of those sequences ($1) whose heads ($2) have ended in this transaction, and return these.
--
-- It waits for a pass that holds one, which takes milliseconds. A job that is not the head of its sequence, as one that is
-- cancelled while it waits, changes nothing for the others.
SELECT key
FROM {schema}scheduler_sequences
WHERE key = ANY ($1) AND job_id = ANY ($2)
ORDER BY key COLLATE "C"
FOR NO KEY UPDATE;

-- name: move_heads
-- route: caller
-- Make the first due job of each of the sequences ($1) its head, if its last head is gone; return how many jobs were moved,
-- when the first of them is due, and which sequences were passed over because another transaction has locked the job.
--
-- Each sequence must be locked by an earlier statement. A moved job gets the time of its move, as claims go by time, and
-- its whole misfire grace time: until then it did not wait for a worker. A job is never passed over for a later one. A
-- sequence without a due job loses its row.
WITH clock AS MATERIALIZED (
    SELECT coalesce($2, clock_timestamp()) AS at
),
judged AS MATERIALIZED (
    SELECT sequence.ctid AS place, sequence.key, head.ctid, head.execution_time,
        {state_of_head} AS state
    FROM {schema}scheduler_sequences AS sequence
    {head_of_sequence}
    WHERE sequence.key = ANY ($1)
),
next AS MATERIALIZED (
    SELECT waiting.place, waiting.key, first.ctid, clock.at
    FROM judged AS waiting
    CROSS JOIN clock
    LEFT JOIN LATERAL (
        {first_in_sequence}
    ) AS first ON first.execution_time <= clock.at
    WHERE waiting.state = 'gone'
    UNION ALL
    SELECT judged.place, judged.key, judged.ctid, clock.at
    FROM judged
    CROSS JOIN clock
    WHERE judged.state = 'retried' AND judged.execution_time <= clock.at
),
held AS MATERIALIZED (
    SELECT next.key, next.at, job.ctid, job.job_id
    FROM next
    LEFT JOIN LATERAL (
        SELECT ctid, job_id
        FROM {schema}scheduled_jobs
        WHERE ctid = next.ctid AND blocked_on = next.key AND execution_time <= next.at
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS job ON true
    WHERE next.ctid IS NOT NULL
),
changed AS (
    UPDATE {schema}scheduled_jobs AS job SET
        blocked_on     = NULL,
        execution_time = greatest(job.execution_time, clock.at),
        last_heartbeat = clock.at,
        expires_at     = clock.at + make_interval(secs => job.misfire_grace_time)
    FROM clock
    WHERE job.ctid = ANY (ARRAY (SELECT held.ctid FROM held WHERE held.ctid IS NOT NULL))
    RETURNING {bounded_due}
),
moved AS (
    UPDATE {schema}scheduler_sequences AS sequence SET job_id = held.job_id, stopped_at = NULL
    FROM held
    WHERE sequence.key = ANY ($1) AND sequence.key = held.key AND held.ctid IS NOT NULL
),
stopped AS (
    UPDATE {schema}scheduler_sequences AS sequence SET stopped_at = clock.at
    FROM clock
    WHERE sequence.ctid = ANY (ARRAY (SELECT judged.place FROM judged WHERE judged.state = 'failed'))
),
emptied AS (
    DELETE FROM {schema}scheduler_sequences
    WHERE ctid = ANY (ARRAY (SELECT next.place FROM next WHERE next.ctid IS NULL))
)
SELECT count(*) AS jobs, min(changed.due) AS due,
    ARRAY (SELECT held.key FROM held WHERE held.ctid IS NULL) AS locked
FROM changed;

-- fragment: updated_heads
SELECT held.head AS ctid, true AS is_ended, false AS is_claimed
        FROM held
        UNION ALL

-- fragment: ended_heads
SELECT job_id FROM changed WHERE is_ended

-- fragment: deleted_heads
-- It takes the place of ended_heads where the rows of completed jobs are not kept; see load_variant().
DELETE FROM {schema}scheduled_jobs
    WHERE ctid = ANY (ARRAY (SELECT held.head FROM held))
    RETURNING job_id

-- name: hand_over
-- route: dedicated
-- timeout: hot
-- Complete the heads $5 of sequences, all of attempt $6, and make the next job of each its head, in one statement and one
-- commit; claim at most $3 of these, if worker $1 claims their names ($2).
--
-- A completion is fenced by worker and attempt, and refused if its end has other consequences, if the job is not the head
-- of its sequence, or if another transaction holds a row; settle_jobs decides about it then.
--
-- The lock of the row of the sequence is taken by the same statement that reads the waiting jobs. Nothing was decided in
-- between: the head runs under its attempt before and after, so no other transaction has moved the sequence on. A job that
-- was committed after the begin of the statement is not seen. So a sequence without a next job is returned, to be examined
-- once more. The first job is never passed over for a later one: if its row is locked, no job is moved.
--
-- Each row is a moved job with the columns of a claim, and whether it was claimed. Crashed jobs, under which $7 workers
-- died or more, are left to other claims. The last row has the completed ids, and the sequences without a next job.
--
-- For a single key, most of the time goes into setting the parts of this statement up, so it has no more of them than
-- necessary. One update writes the heads that end and the next ones, because the server reads the constraints and the
-- indexes of the table anew for each update of a statement: a second one would cost a sixth of the time. So a trigger of
-- the application that suppresses a completion is noticed only after the next job has started. Then the statement fails by
-- the cast of a text that is no array, which undoes it, and settle_jobs decides about the completions.
WITH held AS MATERIALIZED (
    SELECT head.ctid AS head, waiting.key, waiting.ctid AS place, first.ctid AS first,
        next.ctid, next.job_id, next.is_claimable
    FROM (
        SELECT ctid, job_id, options #>> ARRAY ['sequence', 'key'] AS key
        FROM {schema}scheduled_jobs
        WHERE job_id = ANY ($5)
          AND status = 'running'
          AND worker_id = $1
          AND attempt = $6
          AND on_end = '{"sequence": true}'::jsonb
          AND (options -> 'steps') IS NULL{without_result}
        FOR UPDATE SKIP LOCKED
    ) AS head
    CROSS JOIN LATERAL (
        SELECT ctid, key
        FROM {schema}scheduler_sequences
        WHERE key = head.key AND job_id = head.job_id AND stopped_at IS NULL
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS waiting
    LEFT JOIN LATERAL (
        {first_in_sequence}
    ) AS first ON first.execution_time <= coalesce($4, {now})
    LEFT JOIN LATERAL (
        SELECT ctid, job_id,
            coalesce(function, job_name) = ANY ($2::text[]) AND crash_count < $7::integer AS is_claimable
        FROM {schema}scheduled_jobs
        WHERE ctid = first.ctid AND blocked_on = waiting.key AND execution_time <= coalesce($4, {now})
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS next ON true
),
worker AS MATERIALIZED (
    SELECT lease_until
    FROM {schema}scheduler_workers
    WHERE worker_id = $1
      AND lease_until > coalesce($4, {now})
      AND $3::bigint > 0
      AND EXISTS (SELECT FROM held WHERE held.is_claimable)
    FOR KEY SHARE
),
changed AS (
    UPDATE {schema}scheduled_jobs AS job SET
        blocked_on     = NULL,
        status         = CASE WHEN target.is_ended THEN 'completed'
            WHEN target.is_claimed THEN 'running' ELSE 'pending' END,
        finished_at    = CASE WHEN target.is_ended THEN coalesce($4, {now}) END,
        error_message  = CASE WHEN target.is_ended THEN NULL ELSE job.error_message END,
        on_end         = CASE WHEN target.is_ended THEN NULL ELSE job.on_end END,
        attempt        = CASE WHEN target.is_claimed THEN job.attempt % 2147483647 + 1 ELSE job.attempt END,
        worker_id      = CASE WHEN target.is_ended OR target.is_claimed THEN $1 END,
        started_at     = CASE WHEN target.is_ended THEN job.started_at
            WHEN target.is_claimed THEN coalesce($4, {now}) END,
        lease_until    = CASE WHEN target.is_claimed THEN (SELECT worker.lease_until FROM worker) END,
        execution_time = CASE WHEN target.is_ended THEN job.execution_time
            ELSE greatest(job.execution_time, coalesce($4, {now})) END,
        last_heartbeat = CASE WHEN target.is_ended THEN job.last_heartbeat ELSE coalesce($4, {now}) END,
        expires_at     = CASE WHEN target.is_ended THEN job.expires_at
            ELSE coalesce($4, {now}) + make_interval(secs => job.misfire_grace_time) END
    FROM (
        {updated_heads}
        SELECT held.ctid, false AS is_ended,
            held.ctid = ANY (ARRAY (
                SELECT held.ctid FROM held CROSS JOIN worker WHERE held.is_claimable LIMIT $3
            )) AS is_claimed
        FROM held
        WHERE held.ctid IS NOT NULL
        OFFSET 0
    ) AS target
    WHERE job.ctid = target.ctid
    RETURNING job.job_id, job.job_name, job.function, job.attempt, job.execution_time, job.task_data, job.priority,
        job.retry_count, job.max_retries, job.timeout_seconds, job.lock_key, job.options, target.is_claimed, target.is_ended
),
ended AS (
    {ended_heads}
),
moved AS (
    UPDATE {schema}scheduler_sequences AS sequence SET job_id = held.job_id
    FROM held
    WHERE sequence.ctid = held.place AND held.ctid IS NOT NULL
),
emptied AS (
    DELETE FROM {schema}scheduler_sequences
    WHERE ctid = ANY (ARRAY (SELECT held.place FROM held WHERE held.first IS NULL))
)
SELECT {claim_columns}, is_claimed, NULL::text[] AS ended, NULL::text[] AS idle
FROM changed
WHERE NOT is_ended
UNION ALL
SELECT NULL, NULL, NULL, NULL, coalesce($4, {now}), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    ARRAY (SELECT ended.job_id FROM ended),
    CASE WHEN (SELECT count(*) FROM ended) = (SELECT count(*) FROM held)
        THEN ARRAY (SELECT held.key FROM held WHERE held.ctid IS NULL)
        ELSE concat('a trigger of the application suppressed a completion of worker ', $1)::text[] END;

-- name: resume_sequence
-- route: pool
-- Let the sequence $1 continue behind the failed job at which it has stopped, only if that is $2 unless NULL; return the
-- id of that job.
--
-- One that was retried by a node of an earlier release runs again, as the head.
WITH sequence AS (
    SELECT key, job_id
    FROM {schema}scheduler_sequences AS sequence
    WHERE key = $1
      AND ($2::text IS NULL OR job_id = $2)
      AND stopped_at IS NOT NULL
      AND NOT EXISTS (
          SELECT FROM {schema}scheduled_jobs AS job
          WHERE job.job_id = sequence.job_id AND job.finished_at IS NULL AND (job.blocked_on = $1) IS NOT TRUE
          OFFSET 0
      ){within_lock_limit}
    FOR UPDATE
)
DELETE FROM {schema}scheduler_sequences AS row
USING sequence
WHERE row.key = $1 AND row.key = sequence.key
RETURNING row.job_id;

-- name: skip_failed_head
-- route: pool
-- Let the sequence $1 continue behind its head $2, which has failed, once its attempt has ended; return its id.
--
-- The mark has the instant of this end. So it means nothing any more when the job is retried and fails again.
UPDATE {schema}scheduled_jobs AS job SET
    options = jsonb_set(job.options, ARRAY ['sequence', 'skipped'], to_jsonb(extract(epoch FROM job.finished_at)))
WHERE job_id = $2
  AND status = ANY (ARRAY ['failed', 'expired'])
  AND finished_at IS NOT NULL
  AND (on_end -> 'sequence') IS NOT NULL
  AND (options #>> ARRAY ['sequence', 'key']) = $1
  AND EXISTS (
      SELECT FROM {schema}scheduler_sequences AS sequence WHERE sequence.key = $1 AND sequence.job_id = job.job_id
  ){within_lock_limit}
RETURNING job_id;

-- name: move_to_front
-- route: pool
-- Make the job $1, which waits in a sequence, the first of those that wait there; return when it is due.
--
-- The order is that of the due times, so it becomes due before the others, and at once. It notes that time, so that it is
-- corrected with the others if the clock is set back: see is_early. coalesce(), because the partial index of the blocked
-- jobs does not fit then: a plan of a drained table would read all of it.
WITH waiting AS (
    SELECT ctid, blocked_on AS key
    FROM {schema}scheduled_jobs
    WHERE job_id = $1 AND coalesce(left(blocked_on, 10), '') = 'zsequence:'{within_lock_limit}
    FOR NO KEY UPDATE
),
moved AS (
    UPDATE {schema}scheduled_jobs AS job SET
        execution_time = place.due,
        last_heartbeat = place.due
    FROM waiting
    CROSS JOIN LATERAL (
        {first_in_sequence}
    ) AS first
    CROSS JOIN LATERAL (
        SELECT greatest(
            least(first.execution_time - interval '1 microsecond', coalesce($2, {now})), {first_instant}::timestamptz
        ) AS due
    ) AS place
    WHERE job.ctid = waiting.ctid
    RETURNING job.execution_time
)
SELECT {bounded_due} FROM moved;

-- name: find_past_heads
-- route: shared, tuned
-- Return at most $1 sequences in which no job waits and whose head is gone, or has failed and is not yet recorded.
--
-- Their heads were deleted by hand, or were ended by a node of an earlier release.
SELECT sequence.key
FROM {schema}scheduler_sequences AS sequence
{head_of_sequence}
CROSS JOIN LATERAL (
    SELECT
        {state_of_head} AS state
    OFFSET 0
) AS judged
WHERE sequence.stopped_at IS NULL
  AND (judged.state = 'failed' OR judged.state = 'gone' AND NOT EXISTS (
      SELECT FROM {schema}scheduled_jobs AS job WHERE job.blocked_on = sequence.key OFFSET 0
  ))
LIMIT $1;
