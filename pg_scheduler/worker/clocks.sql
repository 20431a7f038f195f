-- The instant from which on a time is in the future. A clock that was set back by less changes nothing.

-- fragment: future
(coalesce($1, {now}) + interval '5 seconds')

-- When the last attempt ended, as the history has it; NULL if its entry belongs to an earlier one, or was written by
-- hand.

-- fragment: last_end
CASE WHEN (errors #>> ARRAY ['-1', 'attempt']) = attempt::text
        AND (errors #>> ARRAY ['-1', 'ended_at']) ~ concat(
            '^[0-9][0-9][0-9][0-9]-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)',
            'T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]+)?[+-](0[0-9]|1[0-4]):?([0-5][0-9])?$'
        )
    THEN (errors #>> ARRAY ['-1', 'ended_at'])::timestamptz END

-- When a pending job got its due time: when it was added, or when something else made it due, which notes that in
-- last_heartbeat: a call that replaced it, let it run again or at once; a signal or a child for which it was suspended;
-- the turn of its tenant; and a limit that blocks the claimed job, if its due time is that of a retry.

-- fragment: given_at
coalesce(last_heartbeat, created_at)

-- How long a call may take between the due time of a job that is due at once and the time that it notes. If the clock was
-- ahead by more than a day, nothing else is due near that time, so the call may have been slow.

-- fragment: delay_of_a_call
CASE WHEN {given_at} > (coalesce($1, {now}) + interval '1 day') THEN interval '1 minute' ELSE interval '1 second' END

-- The same for a job in a sequence, which would be overtaken if it was not corrected with the jobs behind it: its call may
-- always have been slow.

-- fragment: delay_in_a_sequence
CASE WHEN left(blocked_on, 10) = 'zsequence:' THEN interval '1 minute' ELSE {delay_of_a_call} END

-- When a job that is due in the future is due by the clock as it is now; NULL if its due time is what a caller wanted.
--
-- A job that runs was due, and so was one that was released. A job of a schedule, and one to run at once, were due when
-- they were added, also if a limit blocked their first attempts. A retry and a snooze begin with the end of their attempt. A suspended job is due when the first of
-- its waits ends: now if one has, as by a signal, or if it is due before all of them. A job without the mark of a
-- suspension may be one that a node of an earlier checkout has suspended, if it has stored a step.

-- fragment: due_again
CASE
    WHEN status = 'running' THEN CASE WHEN attempt > 0 AND worker_id IS NOT NULL THEN coalesce($1, {now}) END
    WHEN attempt = 0 OR last_heartbeat IS NOT NULL
        OR (errors #> ARRAY ['-1']) IS NULL AND coalesce(options -> 'steps', '0') = '0' THEN CASE
        WHEN {given_at} > {future}
            AND ((options -> 'schedule_id') IS NOT NULL
                OR execution_time >= ({given_at} - {delay_in_a_sequence})
                AND execution_time <= ({given_at} + {delay_of_a_call}))
        THEN coalesce($1, {now}) END
    WHEN (errors #>> ARRAY ['-1', 'attempt']) = attempt::text THEN CASE
        WHEN {last_end} > {future} AND execution_time >= {last_end}
        THEN coalesce($1, {now}) + (execution_time - {last_end})
        WHEN {last_end} > {future}
            AND (errors #>> ARRAY ['-1', 'outcome']) = ANY (ARRAY ['released', 'lost', 'crashed'])
        THEN coalesce($1, {now})
        WHEN created_at > {future} AND (options -> 'schedule_id') IS NOT NULL THEN coalesce($1, {now}) END
    WHEN coalesce(options -> 'steps', '0') <> '0' AND NOT {was_moved} THEN (
        SELECT CASE
            WHEN count(step.ended_at) > 0 OR count(*) FILTER (WHERE step.until <= job.execution_time) = 0
            THEN coalesce($1, {now})
            WHEN min(step.until) < job.execution_time THEN greatest(coalesce($1, {now}), min(step.until))
        END
        FROM {schema}scheduler_steps AS step
        WHERE step.job_id = job.job_id
          AND CASE WHEN ({suspension}) IS NULL THEN step.ended_at IS NULL
            ELSE ({suspension}) @> to_jsonb(step.name) END
    )
END

-- Whether the clock gave the due time of a job before it was set back.

-- fragment: is_early
execution_time > {future} AND execution_time < {last_day} AND {due_again} < execution_time

-- name: correct_waits
-- route: tuned
-- Set back the steps of at most $2 suspended jobs that were stored before the server's clock was set back.
--
-- All such steps of a job are set back by the same time, so their order stays, and the last one was stored now. Their
-- ends and the timeouts of waits move with them.
WITH suspended AS MATERIALIZED (
    SELECT job.job_id, job.ahead
    FROM {levels}
    CROSS JOIN LATERAL (
        SELECT early.job_id, newest.written_at - coalesce($1, {now}) AS ahead
        FROM (
            SELECT job_id
            FROM {schema}scheduled_jobs
            WHERE finished_at IS NULL
              AND blocked_on IS NULL
              AND priority = level.priority
              AND execution_time > {future}
              AND (options -> 'steps') IS NOT NULL{left_out}
            OFFSET 0
        ) AS early
        CROSS JOIN LATERAL (
            SELECT max({last_write}) AS written_at FROM {schema}scheduler_steps AS step
            WHERE job_id = early.job_id AND kind <> 'result'
        ) AS newest
        WHERE newest.written_at > {future} AND newest.written_at < {last_day}
        LIMIT $2
    ) AS job
),
early AS MATERIALIZED (
    SELECT step.ctid, step.job_id, suspended.ahead, coalesce($1, {now}) AS now
    FROM suspended
    JOIN {schema}scheduler_steps AS step ON step.job_id = suspended.job_id
    WHERE step.job_id = ANY (ARRAY (SELECT job_id FROM suspended))
      AND step.kind <> 'result' AND {last_write} > coalesce($1, {now})
    ORDER BY step.job_id, step.name
    FOR NO KEY UPDATE OF step SKIP LOCKED
),
changed AS (
    UPDATE {schema}scheduler_steps AS step SET
        {times_set_back}
    FROM early
    WHERE step.ctid = early.ctid
    RETURNING step.job_id
)
SELECT count(*) FROM changed;

-- name: correct_due_times
-- route: tuned
-- Compute the due times of at most $2 jobs again that the server's clock gave before it was set back, and count them.
--
-- Jobs that wait in a sequence keep their order: they follow those that are due within the next seconds, which are not
-- corrected, and a job is not corrected before one in front of it that another transaction has locked. Each notes its new
-- due time, so that it is corrected once more with the others if the clock is set back again.
WITH waiting AS MATERIALIZED (
    SELECT job.ctid, job.job_id, job.blocked_on, job.execution_time, {due_again} AS due
    FROM {schema}scheduled_jobs AS job
    WHERE blocked_on > 'zs'
      AND left(blocked_on, 10) = 'zsequence:'
      AND finished_at IS NULL
      AND {is_early}{left_out}
    ORDER BY blocked_on, execution_time, job_id COLLATE "C"
    LIMIT $2
),
held AS MATERIALIZED (
    SELECT job.ctid
    FROM {schema}scheduled_jobs AS job
    WHERE job.ctid = ANY (ARRAY (SELECT waiting.ctid FROM waiting)) AND blocked_on IS NOT NULL AND {is_early}
    FOR NO KEY UPDATE SKIP LOCKED
),
in_order AS (
    SELECT waiting.ctid, waiting.job_id, waiting.due, waiting.blocked_on,
        row_number() OVER sequence AS place,
        bool_and(held.ctid IS NOT NULL) OVER sequence AS is_reached
    FROM waiting
    LEFT JOIN held ON held.ctid = waiting.ctid
    WINDOW sequence AS (
        PARTITION BY waiting.blocked_on ORDER BY waiting.execution_time, waiting.job_id COLLATE "C"
        ROWS UNBOUNDED PRECEDING
    )
),
front AS MATERIALIZED (
    SELECT sequence.blocked_on, (
        SELECT max(job.execution_time)
        FROM {schema}scheduled_jobs AS job
        WHERE job.blocked_on = sequence.blocked_on AND job.execution_time <= {future}
    ) AS last_due
    FROM (SELECT DISTINCT waiting.blocked_on FROM waiting) AS sequence
),
early AS MATERIALIZED (
    SELECT early.ctid, early.job_id, early.due, NULL::timestamptz AS noted
    FROM {levels}
    CROSS JOIN LATERAL (
        SELECT job.ctid, job.job_id, {due_again} AS due
        FROM {schema}scheduled_jobs AS job
        WHERE finished_at IS NULL
          AND blocked_on IS NULL
          AND priority = level.priority
          AND {is_early}{left_out}
        LIMIT $2
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS early
    UNION ALL
    SELECT blocked.ctid, blocked.job_id, blocked.due, NULL
    FROM (
        SELECT job.ctid, job.job_id, {due_again} AS due
        FROM {schema}scheduled_jobs AS job
        WHERE blocked_on IS NOT NULL
          AND left(blocked_on, 10) <> 'zsequence:'
          AND finished_at IS NULL
          AND {is_early}{left_out}
        LIMIT $2
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS blocked
    UNION ALL
    SELECT in_turn.ctid, in_turn.job_id, in_turn.due, in_turn.due
    FROM (
        SELECT in_order.ctid, in_order.job_id,
            greatest(in_order.due, front.last_due) + (in_order.place * interval '1 microsecond') AS due
        FROM in_order
        JOIN front ON front.blocked_on = in_order.blocked_on
        WHERE in_order.is_reached
    ) AS in_turn
),
changed AS (
    UPDATE {schema}scheduled_jobs AS job SET
        execution_time = early.due,
        last_heartbeat = coalesce(early.noted, job.last_heartbeat),
        expires_at     = early.due + make_interval(secs => job.misfire_grace_time)
    FROM early
    WHERE job.ctid = early.ctid
    RETURNING 1
)
SELECT count(*) FROM changed;

-- name: find_uncorrected
-- route: tuned
-- Return whether due times or steps are left that correct_due_times and correct_waits skipped, since their rows were
-- locked; whether a transaction is open that began while the clock was ahead; and the oldest running transaction
-- with this one.
--
-- A transaction that began before the clock was set back may still add such rows. Those that have written by the first
-- pass have ended when the oldest one is not older than the one of that pass. The start of a transaction that has not
-- written yet can be read if it is of this role, or this role has pg_read_all_stats.
SELECT EXISTS (
        SELECT FROM {levels}
        CROSS JOIN LATERAL (
            SELECT
            FROM {schema}scheduled_jobs AS job
            WHERE finished_at IS NULL
              AND blocked_on IS NULL
              AND priority = level.priority
              AND execution_time > {future}
              AND ({is_early}
                  OR (options -> 'steps') IS NOT NULL
                  AND (
                      SELECT max(started_at) > {future} AND max(started_at) < {last_day}
                      FROM {schema}scheduler_steps WHERE job_id = job.job_id AND kind <> 'result'
                  ))
            LIMIT 1
        ) AS early
    ) OR EXISTS (
        SELECT
        FROM {schema}scheduled_jobs AS job
        WHERE blocked_on IS NOT NULL
          AND finished_at IS NULL
          AND {is_early}
    ) AS is_left,
    EXISTS (
        SELECT FROM pg_catalog.pg_stat_activity AS session
        WHERE session.datname = current_database() AND session.xact_start > ({now} + interval '5 seconds')
    ) AS is_open,
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest,
    pg_current_xact_id()::text::bigint AS newest;
