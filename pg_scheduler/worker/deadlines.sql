-- name: scan_deadlines
-- route: shared, tuned
-- Return the seconds until the first lease and the first pending job expire, and whether a job is overdue, "blocked"
-- by a limit, or "queued" in a share.
--
-- Also returns whether the consequences of a job that has "ended" are to be applied, whether jobs are "waiting" for
-- others, the seconds until the next deadline of a job, and whether one has "passed", for end_past_deadlines or
-- forget_deadlines.
-- Negative for one that has expired, NULL for none. Only jobs due within $2 seconds are read. Of running rows
-- only those count that lock_orphans may find: of workers without a row, and those that were not renewed of this one
-- ($4) and of stopping ones. The lease of the worker stands for the others. A heartbeat in the future counts as expired
-- (see restart_leases). extract(epoch), because infinite instants cannot be subtracted; OFFSET 0, because on an empty
-- table the planner would otherwise turn the join round, and later read the future rows too.
WITH unfinished AS (
    SELECT
        CASE WHEN job.status = 'pending' THEN job.expires_at END AS expiry,
        job.status = 'pending' AND job.execution_time < {overdue_instant}
            AND (job.expires_at < coalesce($1, {now})) IS NOT TRUE AS overdue,
        CASE WHEN job.status = 'running' AND job.lapse < coalesce(
            (SELECT CASE WHEN {ended_in_stopped} OR worker.worker_id = $4 THEN worker.last_beat ELSE '-infinity' END
             FROM {schema}scheduler_workers AS worker
             WHERE worker.worker_id = job.worker_id),
            'infinity') THEN job.lapse END AS lapse,
        job.status = 'running' AND job.last_heartbeat > coalesce($1, clock_timestamp())
            AND job.last_heartbeat < job.lease_until AND job.lease_until < {last_day} AS early
    FROM {levels}
    CROSS JOIN LATERAL (
        SELECT job_id, attempt, status, worker_id, execution_time, expires_at, last_heartbeat, lease_until,
            greatest(execution_time, coalesce(
                lease_until,
                CASE WHEN last_heartbeat < {last_day} THEN last_heartbeat + make_interval(secs => $3) END
            )) AS lapse
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NULL
          AND blocked_on IS NULL
          AND priority = level.priority
          AND execution_time <= (coalesce($1, {now}) + make_interval(secs => $2))
        OFFSET 0
    ) AS job
)
SELECT
    CASE WHEN bool_or(early) OR EXISTS (
        SELECT FROM {schema}scheduler_workers
        WHERE last_beat > coalesce($1, clock_timestamp())
          AND last_beat < lease_until AND lease_until < {last_day}
    ) THEN 0
    ELSE (extract(epoch FROM least((SELECT min(lease_until) FROM {schema}scheduler_workers), min(lapse)))
        - extract(epoch FROM coalesce($1, {now})))::double precision END AS lapse_in,
    (extract(epoch FROM min(expiry)) - extract(epoch FROM coalesce($1, {now})))::double precision AS expiry_in,
    (extract(epoch FROM (SELECT min(at) FROM {schema}scheduler_deadlines WHERE at >= coalesce($1, {now})))
        - extract(epoch FROM coalesce($1, {now})))::double precision AS deadline_in,
    EXISTS (SELECT FROM {schema}scheduler_deadlines AS entry
            WHERE entry.at < coalesce($1, {now}) AND ({ends_job} OR {is_forgotten})) AS passed,
    coalesce(bool_or(overdue), false) AS overdue,
    EXISTS (SELECT FROM {schema}scheduled_jobs 
            WHERE finished_at IS NOT NULL AND on_end IS NOT NULL) AS ended,
    EXISTS (SELECT FROM {schema}scheduled_jobs WHERE blocked_on = 'after')
        OR EXISTS (SELECT FROM {schema}scheduler_after) AS waiting,
    EXISTS (SELECT FROM {schema}scheduled_jobs WHERE blocked_on > 'after' AND blocked_on < 'share:') AS blocked,
    EXISTS (SELECT FROM {schema}scheduled_jobs WHERE blocked_on > 'share:') AS queued
FROM unfinished;

-- name: next_instants
-- route: sticky
-- Return the seconds until the next pending job is due, and until the next expiry of a job, of another's lease or of
-- the pause of a task, or the next deadline.
--
-- For the test kit, which moves its clock from one to the next. Only instants after now count, so that a job that
-- no function claims does not stop the clock. A job that waits for the turn of its tenant counts: a pass moves it
-- when it is due. Jobs expire and leases end a microsecond after the instant in the row.
-- extract(epoch), because infinite instants cannot be subtracted. NULL for none.
SELECT
    (extract(epoch FROM (
        SELECT min(execution_time)
        FROM {schema}scheduled_jobs
        WHERE finished_at IS NULL
          AND (blocked_on IS NULL OR blocked_on > 'share:')
          AND status = 'pending'
          AND execution_time > coalesce($1, {now})
    )) - extract(epoch FROM coalesce($1, {now})))::double precision AS due_in,
    (least(extract(epoch FROM least(
        (SELECT min(expires_at)
         FROM {schema}scheduled_jobs
         WHERE finished_at IS NULL
           AND blocked_on IS NULL
           AND status = 'pending'
           AND expires_at >= coalesce($1, {now})),
        (SELECT min(lease_until)
         FROM {schema}scheduled_jobs
         WHERE finished_at IS NULL
           AND blocked_on IS NULL
           AND status = 'running'
           AND worker_id <> $2
           AND lease_until >= coalesce($1, {now})),
        (SELECT min(lease_until)
         FROM {schema}scheduler_workers
         WHERE worker_id <> $2
           AND lease_until >= coalesce($1, {now})),
        (SELECT min(entry.at)
         FROM {schema}scheduler_deadlines AS entry
         JOIN {schema}scheduled_jobs AS job ON job.job_id = entry.job_id
         WHERE entry.at >= coalesce($1, {now}) AND job.finished_at IS NULL)
    )) + 0.000001, (
        SELECT extract(epoch FROM min(paused_until))
        FROM {schema}scheduler_tasks
        WHERE paused_until > coalesce($1, {now})
    )) - extract(epoch FROM coalesce($1, {now})))::double precision AS expiry_in;

-- fragment: has_passed_deadline
-- Whether a pending job ($1 is now) has passed its deadline, which the entry of scheduler_deadlines found.
--
-- The deadline in the row decides: the entry may be that of an earlier definition. Both are texts of the same width in
-- UTC, which are in the order of their instants, so that no text in a row that was written by hand is cast.
status = 'pending' AND ((options ->> 'deadline') COLLATE "C" < to_char(
        coalesce($1, {now}) AT TIME ZONE 'UTC', {deadline_format}))

-- fragment: expires_first
-- Whether the misfire grace time of such a job ended before its deadline, so that the expirer or a claim expires it.
coalesce(
        blocked_on IS NULL AND execution_time <= coalesce($1, {now}) AND expires_at < coalesce($1, {now})
            AND to_char(expires_at AT TIME ZONE 'UTC', {deadline_format}) < ((options ->> 'deadline') COLLATE "C")
            AND {may_expire},
        false)

-- fragment: ends_job
coalesce((
        SELECT {has_passed_deadline} AND NOT {expires_first}
        FROM {schema}scheduled_jobs AS job
        WHERE job.job_id = entry.job_id
    ), false)

-- fragment: is_forgotten
-- Whether an entry means nothing any more: its job has ended, has another deadline, or does not exist. One of a job that
-- runs stays, since the job may become pending again. After a minute, the transaction that wrote an entry before its job
-- has ended, and so has a retry that began before the deadline. An entry of a clock that was set back since is old, too.
(entry.at < (coalesce($1, {now}) - interval '1 minute')
    AND (entry.noted_at < (coalesce($1, {now}) - interval '1 minute')
        OR entry.noted_at > (coalesce($1, {now}) + interval '1 minute'))
    AND NOT EXISTS (
        SELECT FROM {schema}scheduled_jobs AS job
        WHERE job.job_id = entry.job_id AND (status = 'running' OR {has_passed_deadline})
        OFFSET 0
    ))

-- name: end_past_deadlines
-- route: tuned
-- Fail at most $2 pending jobs that have passed their deadlines, whatever they wait for; $3 is the text by which they
-- count.
--
-- An attempt that runs is ended by its worker, so its row is left alone; if its worker has died, the row is pending soon.
-- The row is locked, and its status is compared under the lock: a claim that was first makes the job running, and a later
-- one finds that the job has ended.
WITH past AS MATERIALIZED (
    SELECT entry.job_id
    FROM {schema}scheduler_deadlines AS entry
    WHERE entry.at < coalesce($1, {now}) AND {ends_job}{left_out}
    ORDER BY entry.at
    LIMIT $2
),
old AS (
    SELECT job_id, {has_consequences} OR {keeps_result} AS has_consequences, {is_awaited} AS is_awaited, $3::text AS text
    FROM {schema}scheduled_jobs
    WHERE job_id = ANY (ARRAY (SELECT job_id FROM past)) AND {has_passed_deadline} AND NOT {expires_first}
    ORDER BY job_id COLLATE "C"
    FOR NO KEY UPDATE SKIP LOCKED
),
changed AS (
    UPDATE {schema}scheduled_jobs AS job SET
        status        = 'failed',
        finished_at   = coalesce($1, {now}),
        error_message = concat_ws('; ',
            format('DeadlineExceededError: the job passed its deadline of %s UTC',
                replace(left(job.options ->> 'deadline', 19), 'T', ' ')),
            'error of the last attempt: ' || job.error_message),
        blocked_on    = NULL,
        options       = {options_with_wait},
        on_end        = {kept_on_end}
    FROM old
    WHERE job.job_id = ANY (ARRAY (SELECT job_id FROM old)) AND job.job_id = old.job_id
    RETURNING job.job_id, {named}, job.attempt, job.status, NULL::text AS worker_id, job.finished_at, old.text,
        job.error_message, job.options ->> 'deadline' AS deadline, job.on_end IS NOT NULL AS has_consequences
),
ended AS (SELECT * FROM changed){counted_failures}
SELECT job_id, job_name, attempt, error_message, deadline, has_consequences FROM ended;

-- name: forget_deadlines
-- route: tuned
-- Delete at most $2 entries that mean nothing any more, and return their number.
WITH past AS (
    SELECT entry.entry_id
    FROM {schema}scheduler_deadlines AS entry
    WHERE {is_forgotten}{left_out}
    ORDER BY entry.at
    LIMIT $2
    FOR UPDATE OF entry SKIP LOCKED
),
changed AS (
    DELETE FROM {schema}scheduler_deadlines
    WHERE entry_id = ANY (ARRAY (SELECT entry_id FROM past))
    RETURNING 1
)
SELECT count(*) FROM changed;

-- fragment: has_deadline_of_entry
-- Whether the deadline of an entry is that of its job, or of the definition that waits for the end of its attempt.
to_char(page.at AT TIME ZONE 'UTC', {deadline_format}) = ANY (ARRAY [
                job.options ->> 'deadline',
                job.on_end #>> ARRAY ['replacement', 'options', 'deadline'],
                job.on_end #>> ARRAY ['in_vain', 'options', 'deadline']])

-- name: vacuum_deadlines
-- route: pool
-- Delete entries without an unfinished job that has their deadline among the next $2 after $1; return the last of these.
--
-- The job was refused or replaced, or has ended: a retry writes another entry. Of several entries of one job the newest
-- stays. One that was written within the last hour may precede its job, which is not committed yet. NULL at the end.
WITH page AS MATERIALIZED (
    SELECT entry_id, job_id, at, noted_at
    FROM {schema}scheduler_deadlines
    WHERE entry_id > coalesce($1::uuid, '00000000-0000-0000-0000-000000000000')
    ORDER BY entry_id
    LIMIT $2::bigint
),
old AS MATERIALIZED (
    SELECT entry.entry_id
    FROM page
    JOIN {schema}scheduler_deadlines AS entry ON entry.entry_id = page.entry_id
    WHERE entry.entry_id = ANY (ARRAY (SELECT entry_id FROM page))
      AND page.noted_at < (coalesce($3, {now}) - interval '1 hour')
      AND (
          NOT EXISTS (
              SELECT FROM {schema}scheduled_jobs AS job
              WHERE job.job_id = page.job_id AND job.finished_at IS NULL AND {has_deadline_of_entry}
              OFFSET 0
          )
          OR EXISTS (
              SELECT FROM {schema}scheduler_deadlines AS newer
              WHERE newer.at = page.at
                AND newer.job_id = page.job_id
                AND (newer.noted_at, newer.entry_id) > (page.noted_at, page.entry_id)
              OFFSET 0
          )
      ){left_out}
    FOR UPDATE OF entry SKIP LOCKED
),
changed AS (
    DELETE FROM {schema}scheduler_deadlines WHERE entry_id = ANY (ARRAY (SELECT entry_id FROM old))
)
SELECT entry_id AS last_id FROM page WHERE (SELECT count(*) FROM page) = $2 ORDER BY entry_id DESC LIMIT 1;
