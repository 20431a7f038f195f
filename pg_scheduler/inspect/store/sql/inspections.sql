-- name: inspect_job
-- route: pool
-- Return a job, the name that a worker must claim for it, the time, how old the data of a standby is, whether the job is
-- marked, why it expired, and how calls postpone it.
SELECT {job_columns}, coalesce(function, job_name) AS task, coalesce($2, now()) AS now,
    CASE WHEN pg_is_in_recovery()
        THEN coalesce(extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()), 0)::double precision
    END AS standby_lag_s,
    (options -> 'steps') IS NOT NULL AS has_steps,
    CASE WHEN status = 'expired' THEN options ->> 'expiry' END AS expiry_cause,
    CASE WHEN status = 'pending' THEN options ->> 'debounce' END AS debounce
FROM {schema}scheduled_jobs
WHERE job_id = $1;

-- name: inspect_locks
-- route: pool
-- Return the sessions that lock the row of a job ($1) in a transaction of $2 seconds or more, or hold its advisory lock.
--
-- A session locks one row of a job with its own transaction id. Several that share a lock are not found, and the
-- role may not see the sessions of others.
SELECT 'row' AS kind, activity.pid, activity.application_name AS application,
    activity.xact_start AS since, left(activity.query, 200) AS statement
FROM {schema}scheduled_jobs AS job
JOIN pg_catalog.pg_stat_activity AS activity ON activity.backend_xid = job.xmax
WHERE job.job_id = $1 AND activity.xact_start <= (clock_timestamp() - make_interval(secs => $2))
UNION ALL
SELECT 'advisory', lock.pid, coalesce(activity.application_name, ''), activity.backend_start, left(activity.query, 200)
FROM {schema}scheduled_jobs AS job
JOIN pg_catalog.pg_locks AS lock
    ON lock.locktype = 'advisory' AND lock.granted AND lock.objsubid = 1
   AND lock.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
   AND lock.classid = (((job.lock_key # {lock_mask}) >> 32) & 4294967295)::oid
   AND lock.objid = ((job.lock_key # {lock_mask}) & 4294967295)::oid
LEFT JOIN pg_catalog.pg_stat_activity AS activity ON activity.pid = lock.pid
WHERE job.job_id = $1 AND job.lock_key IS NOT NULL
ORDER BY 1, 2
LIMIT 10;

-- name: inspect_migrations
-- route: pool
-- Return when the migrations of the schema were applied, in the order of their versions, up to $1.
SELECT applied_at FROM {schema}scheduler_migrations ORDER BY version LIMIT $1;

-- name: inspect_tenant_queue
-- route: tuned
-- Count the jobs that wait for what blocks a job ($1) of priority $2, due at $3, with the id $4, and precede it.
--
-- At most $5 are examined.
SELECT count(*) AS ahead, count(*) FILTER (WHERE priority < $2) AS outranked_by, count(*) >= $5 AS is_capped
FROM (
    SELECT priority
    FROM {schema}scheduled_jobs
    WHERE blocked_on = $1
      AND (priority, execution_time, job_id COLLATE "C") < ($2::integer, $3::timestamptz, $4::text)
    ORDER BY priority, execution_time, job_id COLLATE "C"
    LIMIT $5
) AS earlier;

-- name: inspect_queue
-- route: tuned
-- Count the due jobs that start before a job of priority $1, due at $2, with the id $3; examine $4 of each priority.
--
-- Those of the paused tasks $6 do not start.
SELECT count(*) FILTER (WHERE starts) AS ahead,
    count(*) FILTER (WHERE starts AND priority < $1) AS outranked_by,
    count(*) >= $4 AS is_capped
FROM (
    SELECT due.starts, due.priority
    FROM {levels}
    CROSS JOIN LATERAL (
        SELECT status = 'pending' AND coalesce(function, job_name) <> ALL ($6::text[]) AS starts, priority
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NULL
          AND blocked_on IS NULL
          AND priority = level.priority
          AND execution_time <= CASE WHEN level.priority < $1 THEN coalesce($5, now()) ELSE $2::timestamptz END
          AND (level.priority < $1 OR (execution_time, job_id COLLATE "C") < ($2, $3::text))
        ORDER BY execution_time, job_id COLLATE "C"
        LIMIT $4
    ) AS due
    WHERE level.priority <= $1::integer
    LIMIT $4::bigint
) AS examined;

-- name: inspect_blockers
-- route: pool
-- Return for each of the jobs $1 up to $2 unfinished jobs that it waits for, with their names.
SELECT child.id AS child_id, blocker.parent_id, blocker.job_name
FROM unnest($1::text[]) AS child (id)
CROSS JOIN LATERAL (
    SELECT edge.parent_id, job.job_name
    FROM {schema}scheduler_after AS edge
    CROSS JOIN LATERAL (
        SELECT {named}, finished_at
        FROM {schema}scheduled_jobs
        WHERE job_id = edge.parent_id
        OFFSET 0  -- not joined in another way, which reads all jobs
    ) AS job
    WHERE edge.child_id = child.id AND job.finished_at IS NULL
    ORDER BY edge.parent_id
    LIMIT $2
) AS blocker
ORDER BY child.id, blocker.parent_id;

-- name: inspect_look
-- route: pool
-- Return what the worker of a running job ($1) shows of its present attempt, as JSON; no row if it shows nothing.
SELECT (progress -> 'look')::text AS look
FROM {schema}scheduled_jobs
WHERE job_id = $1 AND status = 'running' AND (progress -> 'look' ->> 'attempt') = attempt::text;

-- name: inspect_parents
-- route: pool
-- Return $2 jobs that a job ($1) waits for, and their statuses; NULL for one that does not exist.
SELECT edge.parent_id, job.status
FROM {schema}scheduler_after AS edge
LEFT JOIN LATERAL (
    SELECT status, finished_at
    FROM {schema}scheduled_jobs
    WHERE job_id = edge.parent_id
    OFFSET 0  -- not joined in another way, which reads all jobs
) AS job ON true
WHERE edge.child_id = $1 AND job.finished_at IS NULL
ORDER BY edge.parent_id
LIMIT $2;

-- name: inspect_linked_jobs
-- route: pool
-- Return $2 jobs that a job ($1) waits for, and $2 that wait for it, with name and status; NULL for one that does not
-- exist.
--
-- Without an order of the edges, because a job can wait for any number of them.
SELECT edge.is_parent, edge.job_id, job.job_name, job.status
FROM (
    (SELECT true AS is_parent, parent_id AS job_id FROM {schema}scheduler_after WHERE child_id = $1 LIMIT $2)
    UNION ALL
    (SELECT false, child_id FROM {schema}scheduler_after WHERE parent_id = $1 LIMIT $2)
) AS edge
LEFT JOIN LATERAL (
    SELECT {named}, status
    FROM {schema}scheduled_jobs
    WHERE job_id = edge.job_id
    OFFSET 0  -- not joined in another way, which reads all jobs
) AS job ON true
ORDER BY edge.is_parent, edge.job_id;

-- name: inspect_edges
-- route: pool
-- Return which of the jobs $1 wait for which others of them, among $2 jobs that each of them waits for.
SELECT edge.parent_id, node.id AS child_id
FROM unnest($1::text[]) AS node (id)
CROSS JOIN LATERAL (
    SELECT parent_id FROM {schema}scheduler_after WHERE child_id = node.id LIMIT $2::bigint
) AS edge
WHERE edge.parent_id = ANY ($1);

-- name: inspect_slot_use
-- route: tuned
-- Return the 5 names whose attempts that ended between $1 and $2 took longest, in the newest $3 rows of each span.
SELECT examined.job_name, sum(examined.seconds) AS seconds
FROM (VALUES (60), (600), (3600)) AS spans (span)
CROSS JOIN LATERAL (
    SELECT job_name, sums[1] AS seconds
    FROM {schema}scheduler_stats AS stats
    WHERE stats.span = spans.span
      AND bucket > ($1::timestamptz - make_interval(secs => spans.span))
      AND bucket < $2::timestamptz
    ORDER BY bucket DESC, job_name DESC
    LIMIT $3::bigint
) AS examined
WHERE examined.seconds > 0
GROUP BY examined.job_name
ORDER BY 2 DESC, 1
LIMIT 5;

-- name: inspect_backlog
-- route: tuned
-- Count by name the due jobs among the first $1 of the claim index; return $3 names, the oldest job first.
WITH examined AS MATERIALIZED (
    SELECT due.*
    FROM {levels}
    CROSS JOIN LATERAL (
        SELECT coalesce(function, job_name) AS name, status, execution_time
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NULL
          AND blocked_on IS NULL
          AND priority = level.priority
          AND execution_time <= coalesce($2, now())
        ORDER BY execution_time, job_id COLLATE "C"
        LIMIT $1
    ) AS due
    LIMIT $1::bigint
)
SELECT name, count(*) FILTER (WHERE status = 'pending') AS due, count(*) FILTER (WHERE status = 'running') AS running,
    min(least(greatest(execution_time, {first_instant}), {last_instant})) FILTER (WHERE status = 'pending')
        AS oldest_due_at,
    (SELECT count(*) FROM examined) AS examined
FROM examined
GROUP BY name
ORDER BY min(execution_time) FILTER (WHERE status = 'pending'), name
LIMIT $3::bigint;

-- name: inspect_expiring
-- route: tuned
-- Count the due jobs of the names $1, and for each of the instants $3 those that expire before it unless they start, or
-- ever if it is NULL, among the first $2 due or waiting jobs and $2 blocked ones.
--
-- "expire_by" is when the last of the "due_expiring" ones, the due jobs that can expire, has expired.
WITH bound AS MATERIALIZED (
    SELECT CASE WHEN bool_or(until IS NULL) THEN 'infinity'
        ELSE greatest(max(until), coalesce($4, clock_timestamp())) END AS at
    FROM unnest($3::timestamptz[]) AS ends (until)
),
waiting AS MATERIALIZED (
    SELECT job.*
    FROM {levels}
    CROSS JOIN LATERAL (
        SELECT coalesce(function, job_name) AS name, status, execution_time, expires_at
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NULL
          AND blocked_on IS NULL
          AND priority = level.priority
          AND execution_time < (SELECT at FROM bound)
        ORDER BY execution_time, job_id COLLATE "C"
        LIMIT $2
    ) AS job
    LIMIT $2::bigint
),
blocked AS MATERIALIZED (
    SELECT coalesce(function, job_name) AS name, status, execution_time, expires_at
    FROM {schema}scheduled_jobs
    WHERE blocked_on > 'after'
    ORDER BY blocked_on, priority, execution_time, job_id COLLATE "C"
    LIMIT $2
),
own AS MATERIALIZED (
    SELECT execution_time <= coalesce($4, clock_timestamp()) AS is_due, expires_at
    FROM (SELECT * FROM waiting UNION ALL SELECT * FROM blocked) AS job
    WHERE name = ANY ($1::text[]) AND status = 'pending'
)
SELECT (SELECT count(*) FROM own WHERE is_due) AS due,
    (SELECT count(*) FROM own WHERE is_due AND expires_at < 'infinity') AS due_expiring,
    (SELECT max(expires_at) FROM own WHERE is_due AND expires_at > {first_day} AND expires_at < {last_day}) AS expire_by,
    ARRAY (
        SELECT (SELECT count(*) FROM own WHERE expires_at < coalesce(ends.until, 'infinity'))
        FROM unnest($3) WITH ORDINALITY AS ends (until, place)
        ORDER BY ends.place
    ) AS expiring,
    (SELECT count(*) FROM waiting) >= $2 OR (SELECT count(*) FROM blocked) >= $2 AS is_capped;

-- name: estimate_due
-- route: pool
-- Select all due jobs. This statement is planned only: the plan has their estimated number.
SELECT FROM {schema}scheduled_jobs
WHERE finished_at IS NULL AND blocked_on IS NULL AND execution_time <= coalesce($1, now());

-- fragment: shown_step_name
-- The name of a step or a signal, without the mark of a signal whose name a step has taken, or that is for the next
-- definition of the job, and without that of the failed attempts of a step.
CASE WHEN left(name, 8) = (chr(1) || 'signal:') THEN substr(name, 9)
            WHEN left(name, 6) = (chr(1) || 'next:') THEN substr(name, 7)
            WHEN left(name, 7) = (chr(1) || 'retry:') THEN substr(name, 8)
            ELSE name END

-- name: inspect_steps
-- route: pool
-- Return $3 stored steps of the job $1, or the one named $2, which is $4 if it is a message; no row if there is no such job.
--
-- Those of the job itself come first, the oldest first, and at most 10,000 rows are read. A row of NULLs stands for
-- none. Large values, and compressed ones, which hide their size, are read by their names only. The failed attempts of a
-- step are a part of its row, or a row of their own as long as the step has none. The former children of a step that was deleted
-- are no step.
SELECT step.name, step.kind,
    CASE WHEN $2::text IS NOT NULL OR (step.size <= 2000 AND pg_column_compression(step.value) IS NULL)
        THEN step.value::text
    END AS value,
    coalesce(step.size, 0) AS size, step.attempt, step.until, step.started_at, step.ended_at, step.is_wait,
    step.failures::text AS failures
FROM {schema}scheduled_jobs AS job
LEFT JOIN LATERAL (
    SELECT each.*, (
        SELECT failed.value
        FROM {schema}scheduler_steps AS failed
        WHERE failed.job_id = $1 AND failed.name = concat(chr(1), 'retry:', each.name) AND failed.kind = 'retry'
          AND coalesce(failed.definition = (job.options ->> 'definition'), true) AND each.kind = ANY (ARRAY ['step', 'retry'])
          AND pg_column_size(failed.value) <= 2000
    ) AS failures
    FROM (
        SELECT {shown_step_name} AS name, kind, value, pg_column_size(value) AS size, attempt, {bounded_until} AS until,
            least(greatest(started_at, {first_instant}), {last_instant}) AS started_at,
            CASE WHEN ended_at IS NOT NULL
                THEN least(greatest(ended_at, {first_instant}), {last_instant})
            END AS ended_at,
            job.finished_at IS NULL AND ended_at IS NULL AND {is_its_wait} AS is_wait
        FROM {schema}scheduler_steps AS step
        WHERE job_id = $1
          AND ($2::text IS NULL OR name = ANY (ARRAY [
              $2, $4, concat(chr(1), 'signal:', $2), concat(chr(1), 'next:', $2), concat(chr(1), 'next:', $4::text),
              concat(chr(1), 'retry:', $2)
          ]))
          AND ({of_definition} OR left(name, 6) = (chr(1) || 'next:'))
          AND left(name, 8) <> (chr(1) || 'former:')
          AND NOT (kind = 'retry' AND EXISTS (
              SELECT FROM {schema}scheduler_steps AS stored
              WHERE stored.job_id = $1 AND stored.name = substr(step.name, 8) AND stored.kind = 'step'
                AND coalesce(stored.definition = (job.options ->> 'definition'), true)
          ))
        LIMIT 10000
    ) AS each
    ORDER BY each.kind = 'result', each.started_at, each.name
    LIMIT $3::bigint
) AS step ON (job.options -> 'steps') IS NOT NULL
WHERE job.job_id = $1
ORDER BY step.kind = 'result', step.started_at, step.name;

-- name: inspect_published
-- route: pool
-- Return what the job $1 has published under at most $2 names: each value (number 0), and the last $3 items of each stream.
--
-- No row: there is no such job. A row of NULLs stands for nothing. Each name is one probe of the key. Large values, and
-- compressed ones, which hide their size, are NULL.
WITH RECURSIVE owner AS (
    SELECT job_id, options ->> 'streams' AS definition FROM {schema}scheduled_jobs WHERE job_id = $1
),
published AS (
    SELECT owner.job_id, owner.definition, first.name, 1 AS n
    FROM owner
    CROSS JOIN LATERAL (
        SELECT name
        FROM {schema}scheduler_streams
        WHERE job_id = owner.job_id AND definition = owner.definition
        ORDER BY name
        LIMIT 1
    ) AS first
    UNION ALL
    SELECT published.job_id, published.definition, next.name, published.n + 1
    FROM published
    CROSS JOIN LATERAL (
        SELECT stored.name
        FROM {schema}scheduler_streams AS stored
        WHERE stored.job_id = published.job_id
          AND stored.definition = published.definition
          AND stored.name > published.name
        ORDER BY stored.name
        LIMIT 1
    ) AS next
    WHERE published.n < $2::bigint
)
SELECT published.name, item.number,
    CASE WHEN item.size <= 2000 AND pg_column_compression(item.value) IS NULL THEN item.value::text END AS value,
    item.size
FROM owner
LEFT JOIN published ON true
LEFT JOIN LATERAL (
    SELECT each.number, each.value, pg_column_size(each.value) AS size
    FROM (
        (SELECT number, value
        FROM {schema}scheduler_streams
        WHERE job_id = published.job_id AND definition = published.definition AND name = published.name AND number = 0)
        UNION ALL
        (SELECT number, value
        FROM {schema}scheduler_streams
        WHERE job_id = published.job_id AND definition = published.definition AND name = published.name AND number > 0
        ORDER BY number DESC
        LIMIT $3::bigint)
    ) AS each
) AS item ON true
ORDER BY published.name, item.number;

-- name: inspect_waits
-- route: pool
-- Return $2 sleeps and waits of the job $1, which is marked, that last, and signals that came before a wait.
--
-- The wait for the next attempt of a step has the failed ones.
SELECT {shown_step_name} AS name, kind, {bounded_until} AS until,
    least(greatest(started_at, {first_instant}), {last_instant}) AS since, ended_at IS NULL AS is_open,
    CASE WHEN kind = 'retry' AND pg_column_size(value) <= 2000 THEN value::text END AS failures
FROM {schema}scheduler_steps AS step
WHERE job_id = $1
  AND (kind = 'signal' AND until IS NULL
    OR ended_at IS NULL AND (SELECT {is_its_wait} FROM {schema}scheduled_jobs AS job WHERE job.job_id = $1))
ORDER BY until, name
LIMIT $2::bigint;
