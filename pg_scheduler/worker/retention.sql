-- name: table_blocks
-- route: pool
-- Return the size of a table in blocks.
SELECT pg_relation_size($1::text::regclass) / current_setting('block_size')::bigint;

-- fragment: last_pass
-- The last pass of the policies $1, and the seconds until the next one is due, for the worker $2.
--
-- It is due $3 seconds after the end of the last one, or at once if the worker that makes it has no row any more, or
-- is this one. NULL while another worker makes it. An end in the future is from a clock that was set back.
clock AS MATERIALIZED (SELECT coalesce($4, {now}) AS at),
pass AS MATERIALIZED (
    SELECT last.number,
        CASE
            WHEN last.ended_at <= clock.at THEN greatest(
                $3::double precision - extract(epoch FROM clock.at - last.ended_at)::double precision, 0)
            WHEN last.ended_at IS NOT NULL
                OR last.worker_id = $2
                OR NOT EXISTS (SELECT FROM {schema}scheduler_workers AS worker
                               WHERE worker.worker_id = last.worker_id) THEN 0
        END AS due_in
    FROM {schema}scheduler_vacuum_passes AS last, clock
    WHERE last.policies = $1
)

-- name: vacuum_pass_due
-- route: shared, reserved
-- Return the seconds until a pass of the policies $1 is due for worker $2: 0 if it is due now, or if there was none.
--
-- NULL while another worker makes it.
WITH {last_pass}
SELECT due_in FROM pass
UNION ALL
SELECT 0 WHERE NOT EXISTS (SELECT FROM pass);

-- name: begin_vacuum_pass
-- route: pool
-- Begin a pass of the policies $1 by worker $2 if one is due: 0, else the seconds until then.
--
-- The first one is due at a random part of the interval of $5 seconds. NULL or no row while another worker makes it:
-- of two that find it due, the second finds another number.
WITH {last_pass},
begun AS (
    UPDATE {schema}scheduler_vacuum_passes AS last
    SET number = last.number + 1, worker_id = $2, started_at = clock.at, ended_at = NULL
    FROM pass, clock
    WHERE last.policies = $1 AND last.number = pass.number AND pass.due_in = 0
    RETURNING pass.due_in
),
added AS (
    INSERT INTO {schema}scheduler_vacuum_passes (policies, worker_id, started_at, ended_at)
    SELECT $1, $2, chosen.at, chosen.at
    FROM (SELECT clock.at - make_interval(secs => $5::double precision * random()) AS at FROM clock) AS chosen
    WHERE NOT EXISTS (SELECT FROM pass)
    ON CONFLICT DO NOTHING
    RETURNING ended_at
)
SELECT due_in FROM begun
UNION ALL
SELECT due_in FROM pass WHERE due_in > 0
UNION ALL
SELECT greatest($3 - extract(epoch FROM clock.at - added.ended_at)::double precision, 0.001) FROM added, clock;

-- name: end_vacuum_pass
-- route: pool
-- Record that worker $2 has ended the pass of the policies $1, and forget policies that no pass had for 30 days.
WITH ended AS (
    UPDATE {schema}scheduler_vacuum_passes
    SET ended_at = coalesce($3, {now})
    WHERE policies = $1 AND worker_id = $2 AND ended_at IS NULL
)
DELETE FROM {schema}scheduler_vacuum_passes
WHERE policies <> $1 AND started_at < (coalesce($3, {now}) - interval '30 days');

-- name: read_ranges
-- route: pool
-- Return the ranges ($2 blocks) of the jobs table $1: whether each "may" have a job to delete, and of which statuses.
--
-- A range was read. Since then no job in it precedes the cutoff of its status ($3 to $6, NULL to keep all) before the
-- earliest one does, or one that finished later: not before the read, because finished_at is the time of a transaction.
-- Exceptions, such as rows that SQL inserts or moves, are found within a week. A read in the future is from a clock
-- that was set back. A range past the end of the table, as it was at the last pass, had no job. Another session may
-- replace a row by that of an earlier read, which is as true.
WITH jobs AS MATERIALIZED (
    SELECT pg_relation_filenode(to_regclass($1)) AS file,
        pg_relation_size(to_regclass($1)) / current_setting('block_size')::bigint AS blocks,
        $2::bigint AS step,
        coalesce($7, {now}) AS at
),
past_end AS MATERIALIZED (
    SELECT known.first_block, known.read_at
    FROM {schema}scheduler_vacuum_ranges AS known, jobs
    WHERE known.blocks IS NULL AND known.file = jobs.file
    ORDER BY known.first_block
    LIMIT 1
),
range AS MATERIALIZED (
    SELECT each.first_block, past_end.read_at AS empty_at
    FROM jobs
    CROSS JOIN LATERAL generate_series(0, jobs.blocks - 1, jobs.step) AS each (first_block)
    LEFT JOIN past_end ON each.first_block >= past_end.first_block
),
grown AS (
    INSERT INTO {schema}scheduler_vacuum_ranges AS known (first_block, blocks, file, read_at)
    SELECT range.first_block, jobs.step, jobs.file, range.empty_at FROM range, jobs WHERE range.empty_at IS NOT NULL
    UNION ALL
    SELECT ((jobs.blocks + jobs.step - 1) / jobs.step) * jobs.step, NULL, jobs.file, jobs.at FROM jobs
    ON CONFLICT (first_block) DO UPDATE SET
        blocks = EXCLUDED.blocks, file = EXCLUDED.file, read_at = EXCLUDED.read_at,
        completed = NULL, failed = NULL, cancelled = NULL, expired = NULL
)
SELECT due.first_block, due.completed, due.failed, due.cancelled, due.expired,
    due.completed OR due.failed OR due.cancelled OR due.expired
        OR due.read_at IS NULL
        OR due.read_at > jobs.at
        OR due.read_at <= (jobs.at - interval '7 days')
        OR due.read_at <= greatest($3::timestamptz, $4::timestamptz, $5::timestamptz, $6::timestamptz) AS may
FROM jobs
CROSS JOIN (
    SELECT range.first_block, coalesce(range.empty_at, known.read_at) AS read_at,
        coalesce(known.completed <= $3, false) AS completed,
        coalesce(known.failed <= $4, false) AS failed,
        coalesce(known.cancelled <= $5, false) AS cancelled,
        coalesce(known.expired <= $6, false) AS expired
    FROM jobs
    CROSS JOIN range
    LEFT JOIN {schema}scheduler_vacuum_ranges AS known
        ON known.first_block = range.first_block AND known.blocks = jobs.step AND known.file = jobs.file
            AND range.empty_at IS NULL
) AS due
ORDER BY due.first_block;

-- name: note_range
-- route: pool
-- Record when the first job of each status finished in the range of $4 blocks from $3 of the jobs table $5.
--
-- Return the statuses of which one precedes the cutoff ($6 to $9). OFFSET 0 keeps the planner from repeating the
-- condition for each column.
WITH found AS MATERIALIZED (
    SELECT min(CASE WHEN status = 'completed' THEN finished_at END) AS completed,
        min(CASE WHEN status = 'failed' THEN finished_at END) AS failed,
        min(CASE WHEN status = 'cancelled' THEN finished_at END) AS cancelled,
        min(CASE WHEN status = 'expired' THEN finished_at END) AS expired
    FROM (
        SELECT status, finished_at
        FROM {schema}scheduled_jobs
        WHERE ctid >= $1::tid AND ctid < $2::tid AND finished_at IS NOT NULL
        OFFSET 0
    ) AS job
),
noted AS (
    INSERT INTO {schema}scheduler_vacuum_ranges AS known (
        first_block, blocks, file, read_at, completed, failed, cancelled, expired
    )
    SELECT $3::bigint, $4::bigint, pg_relation_filenode(to_regclass($5)), coalesce($10, {now}),
        completed, failed, cancelled, expired
    FROM found
    ON CONFLICT (first_block) DO UPDATE SET
        blocks = EXCLUDED.blocks, file = EXCLUDED.file, read_at = EXCLUDED.read_at,
        completed = EXCLUDED.completed, failed = EXCLUDED.failed, cancelled = EXCLUDED.cancelled,
        expired = EXCLUDED.expired
)
SELECT completed <= $6 AS completed, failed <= $7 AS failed, cancelled <= $8 AS cancelled, expired <= $9 AS expired
FROM found;

-- name: vacuum_blocks
-- route: pool
-- Delete within a range of blocks the jobs of the status $3 that finished before the cutoff $4.
--
-- A job with "on_end" stays until its consequences are applied: other jobs may wait for its outcome.
-- Walking the table in such steps needs no index on the history, which every finished job would have to pay
-- for. RETURNING would double the cost of a row, so the server's count of deleted rows is used. The steps of marked
-- jobs are deleted with them, and the results of earlier ends: these jobs are locked before the first row is deleted,
-- which is what the count is for.
WITH gone AS (
    SELECT job_id, status, attempt, finished_at
    FROM {schema}scheduled_jobs AS job
    WHERE ctid >= $1::tid AND ctid < $2::tid AND status = $3 AND finished_at <= $4 AND on_end IS NULL
      AND ((options -> 'steps') IS NOT NULL
           OR EXISTS (
               SELECT FROM {schema}scheduler_results AS kept
               WHERE kept.job_id = job.job_id AND ({is_of_last_end}) IS NOT TRUE
               OFFSET 0
           ))
    FOR UPDATE
),
steps AS (
    DELETE FROM {schema}scheduler_steps WHERE job_id = ANY (ARRAY (SELECT job_id FROM gone))
),
results AS (
    {delete_former_results}
)
DELETE FROM {schema}scheduled_jobs
WHERE ctid >= $1::tid AND ctid < $2::tid AND status = $3 AND finished_at <= $4 AND on_end IS NULL
  AND (SELECT count(*) FROM gone) >= 0;

-- name: vacuum_unlocked
-- route: pool
-- Delete what vacuum_blocks deletes, besides the jobs that other transactions hold, and count them.
WITH gone AS (
    DELETE FROM {schema}scheduled_jobs
    WHERE ctid = ANY (ARRAY (
        SELECT ctid
        FROM {schema}scheduled_jobs
        WHERE ctid >= $1::tid AND ctid < $2::tid AND status = $3 AND finished_at <= $4 AND on_end IS NULL
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING job_id, status, attempt, finished_at, (options -> 'steps') IS NOT NULL AS is_marked
),
steps AS (
    DELETE FROM {schema}scheduler_steps WHERE job_id = ANY (ARRAY (SELECT job_id FROM gone WHERE is_marked))
),
results AS (
    {delete_former_results}
)
SELECT count(*) FROM gone;

-- name: count_in_blocks
-- route: pool
-- Count within a range of blocks the jobs that vacuum_blocks would delete; the cutoffs are $3 to $6, NULL to keep all.
SELECT status, count(*)
FROM {schema}scheduled_jobs
WHERE ctid >= $1::tid AND ctid < $2::tid
  AND finished_at <= CASE
        WHEN status = 'completed' THEN $3::timestamptz
        WHEN status = 'failed' THEN $4::timestamptz
        WHEN status = 'cancelled' THEN $5::timestamptz
        WHEN status = 'expired' THEN $6::timestamptz
    END
  AND on_end IS NULL
GROUP BY status;

-- name: find_surplus
-- route: pool
-- Return at most $3 finished jobs of a status beyond the newest $2 of each name, but for the jobs $4.
--
-- Each has the end by which it was found. "on_end" is as in vacuum_blocks.
SELECT job_id, finished_at
FROM (
    SELECT job_id, finished_at,
        row_number() OVER (PARTITION BY coalesce(function, job_name) ORDER BY finished_at DESC, job_id DESC) AS rank
    FROM {schema}scheduled_jobs
    WHERE status = $1 AND on_end IS NULL
) AS ranked
WHERE rank > $2 AND job_id <> ALL ($4::text[])
LIMIT $3;

-- name: vacuum_surplus
-- route: pool
-- Delete those of the jobs $1 that have not ended again since the ends $2 by which they were found; return their ids.
WITH surplus AS MATERIALIZED (
    SELECT job.ctid
    FROM ROWS FROM (unnest($1::text[]), unnest($2::timestamptz[])) AS candidate (job_id, finished_at)
    CROSS JOIN LATERAL (
        SELECT ctid
        FROM {schema}scheduled_jobs
        WHERE job_id = candidate.job_id AND finished_at = candidate.finished_at
        OFFSET 0
        FOR UPDATE SKIP LOCKED
    ) AS job
),
gone AS (
    DELETE FROM {schema}scheduled_jobs
    WHERE finished_at IS NOT NULL
      AND on_end IS NULL
      AND ctid = ANY (ARRAY (SELECT ctid FROM surplus))
    RETURNING job_id, status, attempt, finished_at, (options -> 'steps') IS NOT NULL AS is_marked
),
steps AS (
    DELETE FROM {schema}scheduler_steps WHERE job_id = ANY (ARRAY (SELECT job_id FROM gone WHERE is_marked))
),
results AS (
    {delete_former_results}
)
SELECT job_id FROM gone;

-- name: vacuum_steps
-- route: pool
-- Delete steps without a marked job among those of the next $2 ids after $1, at most $2; return the last of these ids.
--
-- A job that does not use steps has replaced theirs, or SQL has deleted it. The ids are read by one probe of the index
-- each. A new job of the id may overwrite such a row meanwhile: that is seen by its start when the row is locked. NULL at
-- the end.
WITH RECURSIVE found AS (
    (SELECT job_id, 1 AS n FROM {schema}scheduler_steps WHERE job_id > $1 ORDER BY job_id LIMIT 1)
    UNION ALL
    SELECT (
        SELECT next.job_id
        FROM {schema}scheduler_steps AS next
        WHERE next.job_id > found.job_id
        ORDER BY next.job_id
        LIMIT 1
    ), found.n + 1
    FROM found
    WHERE found.job_id IS NOT NULL AND found.n < $2::bigint
),
orphan AS MATERIALIZED (
    SELECT found.job_id
    FROM found
    LEFT JOIN LATERAL (
        SELECT (job.options -> 'steps') IS NOT NULL AS is_marked
        FROM {schema}scheduled_jobs AS job
        WHERE job.job_id = found.job_id
        LIMIT 1
    ) AS owner ON true
    WHERE owner.is_marked IS NOT TRUE
),
old AS MATERIALIZED (
    SELECT ctid, job_id
    FROM {schema}scheduler_steps
    WHERE job_id = ANY (ARRAY (SELECT job_id FROM orphan))
      AND started_at < (coalesce($3, {now}) - interval '1 hour'){left_out}
    LIMIT $2
    FOR UPDATE SKIP LOCKED
),
changed AS (
    DELETE FROM {schema}scheduler_steps WHERE ctid = ANY (ARRAY (SELECT ctid FROM old))
)
SELECT job_id FROM found WHERE n = $2;

-- name: record_vacuum
-- route: tuned
-- Add to the counts of the day.
INSERT INTO {schema}vacuum_stats AS day (
    stat_date, deleted_completed, deleted_failed, deleted_cancelled, deleted_expired, last_run, worker_id
)
VALUES ((coalesce($6, {now}) AT TIME ZONE 'UTC')::date, $1, $2, $3, $4, coalesce($6, {now}), $5)
ON CONFLICT (stat_date) DO UPDATE SET
    deleted_completed = coalesce(day.deleted_completed, 0) + EXCLUDED.deleted_completed,
    deleted_failed    = coalesce(day.deleted_failed, 0) + EXCLUDED.deleted_failed,
    deleted_cancelled = coalesce(day.deleted_cancelled, 0) + EXCLUDED.deleted_cancelled,
    deleted_expired   = day.deleted_expired + EXCLUDED.deleted_expired,
    last_run          = EXCLUDED.last_run,
    worker_id         = EXCLUDED.worker_id;

-- name: vacuum_stats
-- route: pool
-- Return the counts of the last days, newest first.
SELECT stat_date, deleted_completed, deleted_failed, deleted_cancelled, deleted_expired, last_run, worker_id
FROM {schema}vacuum_stats
WHERE stat_date > ((coalesce($2, {now}) AT TIME ZONE 'UTC')::date - $1::integer)
ORDER BY stat_date DESC;

-- name: total_vacuum_stats
-- route: pool
-- Return the counts of all days.
SELECT
    coalesce(sum(deleted_completed), 0) AS total_completed,
    coalesce(sum(deleted_failed), 0)    AS total_failed,
    coalesce(sum(deleted_cancelled), 0) AS total_cancelled,
    coalesce(sum(deleted_expired), 0)   AS total_expired,
    max(last_run)                       AS last_vacuum_run
FROM {schema}vacuum_stats;
