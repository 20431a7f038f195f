-- name: lock_shares
-- route: caller
-- Take the locks of those shares ($2) that no other feeder holds, until the end of the transaction; return them.
--
-- A statement of its own: the snapshot of the next one then contains what the last holder committed. The commit does
-- not wait for the disk: after a crash of the server, the jobs that it moved wait for their turn again.
SELECT prefix, set_config('synchronous_commit', 'off', true)
FROM unnest($2::text[]) AS share (prefix)
WHERE pg_try_advisory_xact_lock($1, hashtext(prefix));

-- fragment: turns
-- The order in which jobs of a share start.
candidate.priority, candidate.place, candidate.since, candidate.last_turn NULLS FIRST, candidate.job_id COLLATE "C"

-- name: feed_shares
-- route: caller
-- Move the next jobs of tenants ($1, of the shares $2) to the claim index; return how many, how many more there is room
-- for, when the first one is due, and which were passed over because another transaction has locked them.
--
-- Each share must be locked. $3 and $4 are pairs of a share and the name of a task, $5 all names that this worker
-- claims. A share has room for as many due jobs that no worker has claimed yet as there are slots of live workers that
-- claim one of its tasks, and each task for as many as there are slots of those that claim this one: others would leave
-- them. It is at least 1: this worker claims them, even if its row does not name a task yet that has just been
-- registered. Jobs that become due within 4 seconds have as much room again, or a timer would wait for a pass.
--
-- The next jobs are those of the highest priority, then of the tenants with the fewest jobs in flight. Of these, the
-- tenant that waits longest comes first: since the job was due, or since its last turn, whatever is later. Without the
-- turn, tenants with old jobs would alternate ahead of the others.
--
-- Locked jobs take the place of others of their tenant among the candidates, so the next passes leave them out: $7 has
-- them as the keys of an object, which is searched faster than an array.
--
-- Claims go by time, so a moved job gets that of its move, in the order of the turns; it remains in the past, or the
-- claim that follows would overlook it.
--
-- A moved job has a row in scheduler_starts, with attempt 0, while it counts as in flight: until it has ended, waits
-- for a retry or is suspended. One that waits for children would delay them, if they are of its tenant. One that a limit
-- blocks counts, or its tenant would move all of its jobs there. One that no live worker claims, as of a paused task,
-- does not count: its tenant would have no turn for other tasks. No cleanup of starts deletes these rows, because of
-- their keep_s. The time of the last turn is in a row without a job; the cleanup deletes it an hour later. It is after
-- the one before, also if the clock was set back, or stands still as in tests: else a tenant would keep its turn. To
-- move too many jobs is harmless: limits are checked afterwards.
WITH clock AS MATERIALIZED (
    SELECT coalesce($6, clock_timestamp()) AS at
),
left_out AS MATERIALIZED (
    SELECT $7::text::jsonb AS jobs
),
worker AS MATERIALIZED (
    SELECT worker.names, worker.max_concurrent_jobs AS slots
    FROM {schema}scheduler_workers AS worker
    CROSS JOIN clock
    WHERE worker.lease_until > clock.at
      AND {claims_jobs}
),
task AS MATERIALIZED (
    SELECT pair.prefix, pair.name, (
        SELECT greatest(sum(worker.slots), 1) FROM worker WHERE worker.names IS NULL OR pair.name = ANY (worker.names)
    ) AS slots
    FROM ROWS FROM (unnest($3::text[]), unnest($4::text[])) AS pair (prefix, name)
),
share AS MATERIALIZED (
    SELECT declared.prefix, (
        SELECT greatest(sum(worker.slots), 1) FROM worker WHERE worker.names IS NULL OR worker.names && declared.names
    ) AS slots
    FROM (SELECT task.prefix, array_agg(task.name) AS names FROM task GROUP BY task.prefix) AS declared
),
moved AS MATERIALIZED (
    SELECT start.ctid, start.key, start.job_id, share.prefix, job.name,
        CASE
            WHEN job.unfinished IS NOT TRUE OR job.blocked_on > 'share:' OR job.blocked_on = 'after' THEN 'past'
            WHEN job.blocked_on IS NOT NULL OR job.status = 'running' THEN 'started'
            WHEN job.execution_time > (clock.at + interval '4 seconds') THEN 'past'
            WHEN job.name <> ALL ($5) THEN CASE
                WHEN EXISTS (SELECT FROM worker WHERE worker.names IS NULL OR job.name = ANY (worker.names)) THEN 'left'
                ELSE 'stalled'
            END
            WHEN job.execution_time > clock.at THEN 'early'
            ELSE 'due'
        END AS state
    FROM {schema}scheduler_starts AS start
    JOIN share ON share.prefix = ('share:' || split_part(start.key, ':', 2) || ':')
    CROSS JOIN clock
    LEFT JOIN LATERAL (
        SELECT finished_at IS NULL AS unfinished, blocked_on, status, execution_time,
            coalesce(function, job_name) AS name
        FROM {schema}scheduled_jobs
        WHERE job_id = start.job_id
        OFFSET 0
    ) AS job ON true
    WHERE start.key > 'share:'
),
flight AS MATERIALIZED (
    SELECT moved.key, count(*) AS jobs
    FROM moved
    WHERE moved.state <> ALL (ARRAY ['past', 'stalled'])
    GROUP BY moved.key
),
tenant AS MATERIALIZED (
    SELECT waiting.key, waiting.prefix, waiting.n, coalesce(flight.jobs, 0) AS in_flight,
        (SELECT start.at FROM {schema}scheduler_starts AS start
         WHERE start.key = ('fed' || substr(waiting.key, 6)) AND start.job_id = '' AND start.attempt = 0) AS last_turn
    FROM ROWS FROM (unnest($1::text[]), unnest($2::text[])) WITH ORDINALITY AS waiting (key, prefix, n)
    LEFT JOIN flight ON flight.key = waiting.key
),
task_room AS MATERIALIZED (
    SELECT task.prefix, task.name,
        task.slots - count(*) FILTER (WHERE moved.state = 'due') AS due,
        task.slots - count(*) FILTER (WHERE moved.state = 'early') AS early
    FROM task
    LEFT JOIN moved ON moved.prefix = task.prefix AND moved.name = task.name
    GROUP BY task.prefix, task.name, task.slots
),
room AS MATERIALIZED (
    SELECT share.prefix, free.due, free.early,
        ARRAY (
            SELECT task_room.name FROM task_room
            WHERE task_room.prefix = share.prefix AND greatest(task_room.due, task_room.early) <= 0
        ) AS full_tasks,
        greatest(2 * greatest(free.due, free.early)
            / greatest((SELECT count(*) FROM tenant WHERE tenant.prefix = share.prefix), 1), 1) AS per_tenant
    FROM share
    CROSS JOIN LATERAL (
        SELECT share.slots - count(*) FILTER (WHERE moved.state = 'due') AS due,
            share.slots - count(*) FILTER (WHERE moved.state = 'early') AS early
        FROM moved
        WHERE moved.prefix = share.prefix
    ) AS free
),
candidate AS MATERIALIZED (
    SELECT tenant.prefix, tenant.key, job.ctid, job.job_id, job.name, job.priority, job.execution_time,
        job.execution_time <= clock.at AS is_due,
        greatest(job.execution_time, tenant.last_turn) AS since, tenant.last_turn,
        tenant.in_flight + row_number() OVER (
            PARTITION BY tenant.n ORDER BY job.priority, job.execution_time, job.job_id COLLATE "C"
        ) AS place
    FROM tenant
    JOIN room ON room.prefix = tenant.prefix
    CROSS JOIN clock
    CROSS JOIN {levels}
    CROSS JOIN LATERAL (
        SELECT ctid, job_id, priority, execution_time, coalesce(function, job_name) AS name
        FROM {schema}scheduled_jobs
        WHERE blocked_on = tenant.key
          AND priority = level.priority
          AND execution_time <= (clock.at + interval '4 seconds')
          AND coalesce(function, job_name) = ANY ($5)
          AND coalesce(function, job_name) <> ALL (room.full_tasks){left_out}
          AND ((SELECT left_out.jobs FROM left_out) -> job_id) IS NULL
        ORDER BY execution_time, job_id COLLATE "C"
        LIMIT room.per_tenant
    ) AS job
    WHERE greatest(room.due, room.early) > 0
),
part AS MATERIALIZED (
    SELECT part.prefix, part.name, part.is_due, greatest(
        CASE WHEN part.is_due THEN least(room.due, task_room.due) ELSE least(room.early, task_room.early) END, 0
    ) AS jobs
    FROM (SELECT DISTINCT candidate.prefix, candidate.name, candidate.is_due FROM candidate) AS part
    JOIN room ON room.prefix = part.prefix
    LEFT JOIN task_room ON task_room.prefix = part.prefix AND task_room.name = part.name
),
ranked AS MATERIALIZED (
    SELECT candidate.*, row_number() OVER (
        PARTITION BY candidate.prefix, candidate.name, candidate.is_due ORDER BY {turns}
    ) AS rank
    FROM candidate
),
free AS MATERIALIZED (
    SELECT next.*
    FROM part
    CROSS JOIN LATERAL (
        SELECT sorted.*
        FROM (
            SELECT ranked.*
            FROM ranked
            WHERE ranked.prefix = part.prefix AND ranked.name = part.name AND ranked.is_due = part.is_due
            ORDER BY ranked.rank
        ) AS sorted
        CROSS JOIN LATERAL (
            SELECT FROM {schema}scheduled_jobs AS job
            WHERE job.ctid = sorted.ctid AND job.blocked_on = sorted.key
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS held
        LIMIT part.jobs
    ) AS next
),
locked AS MATERIALIZED (
    SELECT ranked.job_id
    FROM part
    CROSS JOIN LATERAL (
        SELECT CASE WHEN count(*) < part.jobs THEN 9223372036854775807 ELSE max(free.rank) END AS rank
        FROM free
        WHERE free.prefix = part.prefix AND free.name = part.name AND free.is_due = part.is_due
    ) AS end_of_free
    JOIN ranked ON ranked.prefix = part.prefix AND ranked.name = part.name AND ranked.is_due = part.is_due
        AND ranked.rank < end_of_free.rank
    WHERE part.jobs > 0 AND ranked.job_id <> ALL (ARRAY (SELECT free.job_id FROM free))
),
chosen AS MATERIALIZED (
    SELECT ranked.*, clock.at - make_interval(secs => (room.due - ranked.turn) * 0.000001) AS moved_at
    FROM (
        SELECT candidate.*, row_number() OVER (PARTITION BY candidate.prefix, candidate.is_due ORDER BY {turns}) AS turn
        FROM free AS candidate
    ) AS ranked
    JOIN room ON room.prefix = ranked.prefix
    CROSS JOIN clock
    WHERE ranked.turn <= CASE WHEN ranked.is_due THEN room.due ELSE room.early END
),
changed AS (
    UPDATE {schema}scheduled_jobs AS job SET
        blocked_on     = NULL,
        execution_time = greatest(job.execution_time, chosen.moved_at),
        last_heartbeat = CASE WHEN job.execution_time < chosen.moved_at THEN chosen.moved_at
            ELSE job.last_heartbeat END
    FROM chosen
    WHERE job.ctid = ANY (ARRAY (SELECT ctid FROM chosen))
      AND job.job_id = ANY (ARRAY (SELECT job_id FROM chosen))
      AND job.job_id = chosen.job_id
    RETURNING job.job_id, chosen.is_due, least(greatest(job.execution_time, {first_instant}), {last_instant}) AS due
),
deleted AS (
    DELETE FROM {schema}scheduler_starts
    WHERE ctid = ANY (ARRAY (
        SELECT moved.ctid
        FROM moved
        WHERE moved.state = 'past'
          AND NOT EXISTS (SELECT FROM chosen WHERE chosen.key = moved.key AND chosen.job_id = moved.job_id)
    ))
),
turns AS (
    INSERT INTO {schema}scheduler_starts AS start (key, job_id, attempt, at, keep_s)
    SELECT chosen.key, chosen.job_id, 0, clock.at, {longest_extension_s}
    FROM chosen
    CROSS JOIN clock
    WHERE chosen.job_id = ANY (ARRAY (SELECT job_id FROM changed))
    UNION ALL
    SELECT DISTINCT 'fed' || substr(chosen.key, 6), '', 0, clock.at, 0
    FROM chosen
    CROSS JOIN clock
    WHERE chosen.job_id = ANY (ARRAY (SELECT job_id FROM changed))
    ON CONFLICT (key, job_id, attempt) DO UPDATE SET at = greatest(EXCLUDED.at, start.at + interval '1 microsecond')
)
SELECT count(*) AS jobs, min(changed.due) AS due,
    (SELECT sum(greatest(room.due, 0)) FROM room)::bigint - count(*) FILTER (WHERE changed.is_due) AS room,
    ARRAY (SELECT locked.job_id FROM locked) AS locked
FROM changed;
