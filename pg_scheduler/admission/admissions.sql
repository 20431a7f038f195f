-- name: admit_attempts
-- route: caller
-- Admit the attempts of worker $1 ($3 ids, $4 attempts) that their limits have room for, and block the others.
--
-- $5 are the limits of the attempts of the positions $6, in the order in which they are declared, $7 all limits
-- once and $8 the seconds for which their starts are kept, $9 to $12 the numbers of the limits. The attempts are
-- taken in their order, so one that is blocked takes no room from the next. A limit with several numbers has
-- the room of the smallest. If no attempt has two limits, or all have room, the rank of an attempt among those
-- of its limit decides; else the attempts are taken in steps, each of which costs a pass over all of them.
--
-- A job that was never claimed before also ranks behind the blocked jobs that precede it, or it would overtake
-- them while the limit has room and they are not unblocked yet. A job that was unblocked does not: another
-- session may have locked one that precedes it.
--
-- An attempt has its start in the log while it runs, which is a probe of its job: nothing has to be undone when
-- it ends in whatever way. An attempt that was ended by hand counts for 2 more seconds, while its worker stops it. A
-- start in the future was written before the clock was set back. A start with the number of an attempt that asks
-- for admission is that of an earlier job with this id, which was deleted: it continues to count as a start, under
-- a negative number. Within other limits, such a start is found by its time, which lies before the claim.
--
-- An attempt whose claim lies in the future was claimed before the clock was set back. Its start would lie before its
-- claim, or in a future that no rate counts. So it gets no decision, and its worker releases it, to claim it again.
--
-- A blocked job gets no entry of this attempt. If one of an earlier attempt gave it its due time, last_heartbeat notes
-- that a clock gave it; see given_at.
--
-- The result has no row for an attempt that is not this worker's any more, that has a new definition waiting, or whose
-- claim lies in the future.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT coalesce($2, clock_timestamp()) AS at
),
own AS MATERIALIZED (
    SELECT claim.n, claim.job_id, claim.attempt, held.priority, held.execution_time
    FROM ROWS FROM (unnest($3::text[]), unnest($4::integer[])) WITH ORDINALITY AS claim (job_id, attempt, n)
    CROSS JOIN clock
    CROSS JOIN LATERAL (
        SELECT job.priority, job.execution_time
        FROM {schema}scheduled_jobs AS job
        WHERE job.job_id = claim.job_id AND job.attempt = claim.attempt
          AND job.status = 'running' AND job.worker_id = $1 AND {has_no_coming_definition}
          AND (job.started_at > clock.at) IS NOT TRUE
        OFFSET 0
    ) AS held
),
claimed AS MATERIALIZED (
    SELECT jsonb_object_agg(own.job_id, own.attempt) AS attempts FROM own
),
request AS MATERIALIZED (
    SELECT each.key, each.n, each.place
    FROM ROWS FROM (unnest($5::text[]), unnest($6::bigint[])) WITH ORDINALITY AS each (key, n, place)
),
used AS MATERIALIZED (
    SELECT each.key, started.running, started.past, started.earlier
    FROM ROWS FROM (unnest($7::text[]), unnest($8::double precision[])) AS each (key, keep_s)
    CROSS JOIN LATERAL (
        SELECT
            count(*) FILTER (WHERE log.is_running AND NOT log.is_earlier) AS running,
            array_agg(log.ctid) FILTER (WHERE NOT (log.is_running OR log.is_earlier) AND (
                log.at <= (clock.at - make_interval(secs => log.kept_s))
                OR log.at >= (clock.at + make_interval(secs => log.kept_s))
            )) AS past,
            array_agg(log.ctid) FILTER (WHERE log.is_earlier) AS earlier
        FROM clock
        CROSS JOIN claimed
        CROSS JOIN LATERAL (
            SELECT start.ctid, start.job_id, start.attempt, start.at, {is_running} AS is_running,
                ((claimed.attempts ->> start.job_id)::integer = start.attempt) IS TRUE AS is_earlier,
                least(greatest(each.keep_s, start.keep_s), {longest_extension_s}) AS kept_s
            FROM {schema}scheduler_starts AS start
            WHERE start.key = each.key
            OFFSET 0
        ) AS log
    ) AS started
),
room AS MATERIALIZED (
    SELECT declared.key, min(least(
        declared.max_running - used.running,
        CASE WHEN declared.max_starts IS NOT NULL THEN declared.max_starts - (SELECT count(*) FROM {starts_within}) END
    )) AS free
    FROM {declared_limits}
    JOIN used ON used.key = declared.key
    CROSS JOIN clock
    GROUP BY declared.key
),
queue AS MATERIALIZED (
    SELECT request.key, request.n, request.place, own.attempt, own.priority, own.execution_time, own.job_id
    FROM own
    JOIN request ON request.n = own.n
    UNION ALL
    SELECT room.key, NULL, NULL, NULL, waiting.priority, waiting.execution_time, waiting.job_id
    FROM room
    CROSS JOIN LATERAL (
        SELECT job.priority, job.execution_time, job.job_id
        FROM {schema}scheduled_jobs AS job
        WHERE job.blocked_on = room.key
        ORDER BY job.priority, job.execution_time, job.job_id COLLATE "C"
        LIMIT greatest(least(room.free, cardinality($3)), 0)
    ) AS waiting
),
ranked AS MATERIALIZED (
    SELECT line.key, line.n, line.place,
        CASE WHEN line.attempt = 1 THEN line.rank ELSE line.own_rank END > room.free AS is_late
    FROM (
        SELECT queue.key, queue.n, queue.place, queue.attempt,
            row_number() OVER ahead AS rank,
            count(queue.n) OVER ahead AS own_rank
        FROM queue
        WINDOW ahead AS (
            PARTITION BY queue.key
            ORDER BY queue.priority, queue.execution_time, queue.job_id COLLATE "C"
            ROWS UNBOUNDED PRECEDING
        )
    ) AS line
    JOIN room ON room.key = line.key
    WHERE line.n IS NOT NULL
),
by_rank AS MATERIALIZED (
    SELECT count(*) = count(DISTINCT ranked.n) OR NOT bool_or(ranked.is_late) AS decides FROM ranked
),
late AS MATERIALIZED (
    SELECT ranked.n, (array_agg(ranked.key ORDER BY ranked.place))[1] AS blocked_on
    FROM ranked
    WHERE ranked.is_late AND (SELECT decides FROM by_rank)
    GROUP BY ranked.n
),
step AS (
    SELECT 0::bigint AS n, NULL::text AS blocked_on,
        (SELECT jsonb_object_agg(key, free) FROM room WHERE free IS NOT NULL) AS room
    UNION ALL
    SELECT step.n + 1, next.blocked_on,
        CASE WHEN next.taken IS NULL OR next.blocked_on IS NOT NULL THEN step.room ELSE step.room || next.taken END
    FROM step
    CROSS JOIN LATERAL (
        SELECT
            (array_agg(request.key ORDER BY request.place)
                FILTER (WHERE (step.room ->> request.key)::bigint <= 0))[1] AS blocked_on,
            jsonb_object_agg(request.key, (step.room ->> request.key)::bigint - 1)
                FILTER (WHERE (step.room ->> request.key) IS NOT NULL) AS taken
        FROM request
        JOIN own ON own.n = request.n
        WHERE request.n = (step.n + 1)
    ) AS next
    WHERE step.n < cardinality($3) AND NOT (SELECT decides FROM by_rank)
),
decided AS MATERIALIZED (
    SELECT own.n, own.job_id, own.attempt, coalesce(late.blocked_on, step.blocked_on) AS blocked_on,
        late.blocked_on IS NULL AND step.blocked_on IS NULL AS is_admitted
    FROM own
    LEFT JOIN late ON late.n = own.n
    LEFT JOIN step ON step.n = own.n
),
deleted AS (
    DELETE FROM {schema}scheduler_starts
    WHERE ctid = ANY (ARRAY (SELECT unnest(past) FROM used))
),
admitted AS (
    INSERT INTO {schema}scheduler_starts (key, job_id, attempt, at, keep_s)
    SELECT request.key, decided.job_id, decided.attempt, clock.at, each.keep_s
    FROM decided
    JOIN request ON request.n = decided.n
    JOIN ROWS FROM (unnest($7::text[]), unnest($8::double precision[])) AS each (key, keep_s)
        ON each.key = request.key
    CROSS JOIN clock
    WHERE decided.is_admitted -- IS NULL would be estimated as few rows, and joined by a nested loop
    UNION ALL
    SELECT start.key, start.job_id, least(lowest.attempt, 0) - 1, start.at, start.keep_s
    FROM (
        SELECT key, job_id, attempt, at, keep_s
        FROM {schema}scheduler_starts
        WHERE ctid = ANY (ARRAY (SELECT unnest(earlier) FROM used))
        OFFSET 0 -- otherwise the ids below may be looked up in the whole index, for 58 ms a batch
    ) AS start
    CROSS JOIN LATERAL (
        SELECT min(other.attempt) AS attempt
        FROM {schema}scheduler_starts AS other
        WHERE other.key = start.key AND other.job_id = start.job_id
    ) AS lowest
    WHERE start.job_id = ANY (ARRAY (SELECT job_id FROM decided WHERE is_admitted))
    ON CONFLICT (key, job_id, attempt) DO UPDATE SET at = EXCLUDED.at, keep_s = EXCLUDED.keep_s
),
blocked AS (
    UPDATE {schema}scheduled_jobs AS job SET
        status         = 'pending',
        blocked_on     = (SELECT decided.blocked_on FROM decided WHERE decided.job_id = job.job_id),
        worker_id      = NULL,
        started_at     = NULL,
        last_heartbeat = CASE WHEN (job.errors #> ARRAY ['-1']) IS NOT NULL THEN job.execution_time END,
        lease_until    = NULL
    WHERE job.job_id = ANY (ARRAY (SELECT decided.job_id FROM decided WHERE decided.blocked_on IS NOT NULL))
      AND job.status = 'running'
      AND job.worker_id = $1
      AND job.attempt = (SELECT decided.attempt FROM decided WHERE decided.job_id = job.job_id)
      AND {has_no_coming_definition}
    RETURNING job.job_id
)
SELECT decided.job_id, decided.blocked_on
FROM decided
WHERE decided.blocked_on IS NULL OR decided.job_id = ANY (ARRAY (SELECT blocked.job_id FROM blocked));

-- name: delete_past_starts
-- route: shared, reserved
-- Delete at most $1 starts that no limit counts any more, of keys that have had no attempt since.
--
-- An attempt that has ended never runs again under its number, so no lock of limits is needed. A feeder writes turns of
-- tenants in the order of its choice: to wait for one with others locked would be a deadlock.
WITH past AS MATERIALIZED (
    SELECT start.ctid
    FROM {schema}scheduler_starts AS start
    CROSS JOIN (SELECT coalesce($2, {now}) AS at) AS clock
    WHERE start.at < (clock.at - make_interval(secs => least(greatest(start.keep_s, 0), {longest_extension_s})) - interval '1 hour')
      AND NOT {is_running}{left_out}
    LIMIT $1
    FOR UPDATE OF start SKIP LOCKED
),
changed AS (
    DELETE FROM {schema}scheduler_starts
    WHERE ctid = ANY (ARRAY (SELECT ctid FROM past))
    RETURNING key
)
SELECT count(*) FROM changed;
