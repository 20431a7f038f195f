-- A result belongs to one end of a job. Another end may follow, of the same definition or of a later one with the id, and
-- may keep no result. While the job has a row, readers compare the two ends. Afterwards no row shows that there was
-- another end. So each statement that deletes rows ("gone") also deletes the results of their earlier ends.

-- fragment: is_of_last_end
kept.status = job.status AND kept.attempts = job.attempt AND kept.finished_at = job.finished_at

-- The row is locked before: since then no other session stores a result of this job. FOR UPDATE reads the newest result,
-- also if it was stored after the begin of the statement. SKIP LOCKED: the vacuum of results deletes the row that it
-- holds, and no service waits for a session of the application. OFFSET 0 makes it one probe of the index per row.

-- fragment: delete_former_results
DELETE FROM {schema}scheduler_results
    WHERE ctid = ANY (ARRAY (
        SELECT former.place
        FROM gone AS job
        CROSS JOIN LATERAL (
            SELECT kept.ctid AS place
            FROM {schema}scheduler_results AS kept
            WHERE kept.job_id = job.job_id AND ({is_of_last_end}) IS NOT TRUE
            OFFSET 0
            FOR UPDATE SKIP LOCKED
        ) AS former
    ))

-- name: keep_results
-- route: caller
-- Store the results of jobs that have just ended: arrays of ids, seconds, values, reasons and errors.
--
-- In the transaction that ended them. Each id is announced by the commit, for its waiters. The result of the outcome of
-- an attempt ($6) is stored first, and the one that follows from the row then, if no other result of this end is stored.
INSERT INTO {schema}scheduler_results AS former (
    job_id, status, value, no_value_reason, error, attempts, started_at, finished_at, expires_at
)
SELECT job_id, status, kept.value::jsonb, kept.reason, kept.error::jsonb, attempt, started_at, finished_at,
    finished_at + make_interval(secs => kept.seconds)
FROM ROWS FROM (
    unnest($1::text[]), unnest($2::double precision[]), unnest($3::text[]), unnest($4::text[]),
    unnest($5::text[])
) AS kept (id, seconds, value, reason, error)
JOIN {schema}scheduled_jobs ON job_id = kept.id
WHERE job_id = ANY ($1) AND finished_at IS NOT NULL
ON CONFLICT (job_id) DO UPDATE SET
    status = EXCLUDED.status, value = EXCLUDED.value, no_value_reason = EXCLUDED.no_value_reason,
    error = EXCLUDED.error, attempts = EXCLUDED.attempts, started_at = EXCLUDED.started_at,
    finished_at = EXCLUDED.finished_at, expires_at = EXCLUDED.expires_at
WHERE $6::boolean
    OR (former.status = EXCLUDED.status AND former.attempts = EXCLUDED.attempts
        AND former.finished_at = EXCLUDED.finished_at) IS NOT TRUE
RETURNING pg_notify({channel}, 'result ' || job_id);

-- name: get_results
-- route: pool
-- Return the kept results of jobs and the state of their rows, which may be deleted or unfinished. If a job has ended,
-- only the result of this end counts: an earlier end, or an earlier job with the id, may have kept a result too.
SELECT wanted.id AS job_id,
    job.job_id IS NOT NULL AS has_row,
    job.status AS row_status, job.attempt AS row_attempts, job.error_message AS row_error,
    job.errors #>> ARRAY['-1', 'error_type'] AS row_error_type,
    CASE WHEN job.started_at >= {first_day} AND job.started_at <= {last_day} THEN job.started_at END
        AS row_started_at,
    CASE WHEN job.finished_at >= {first_day} AND job.finished_at <= {last_day} THEN job.finished_at END
        AS row_finished_at,
    kept.status, kept.value::text AS value, kept.no_value_reason, kept.error::text AS error, kept.attempts,
    CASE WHEN kept.started_at >= {first_day} AND kept.started_at <= {last_day} THEN kept.started_at END
        AS started_at,
    CASE WHEN kept.finished_at >= {first_day} AND kept.finished_at <= {last_day} THEN kept.finished_at END
        AS finished_at,
    CASE WHEN kept.expires_at >= {first_day} AND kept.expires_at <= {last_day} THEN kept.expires_at END
        AS expires_at
FROM unnest($1::text[]) AS wanted (id)
LEFT JOIN LATERAL (
    SELECT job_id, status, attempt, error_message, errors, started_at, finished_at
    FROM {schema}scheduled_jobs
    WHERE job_id = wanted.id
    OFFSET 0
) AS job ON true
LEFT JOIN LATERAL (
    SELECT * FROM {schema}scheduler_results AS row WHERE row.job_id = wanted.id OFFSET 0
) AS kept
    ON kept.expires_at > coalesce($2, {now})
    AND (job.finished_at IS NULL OR {is_of_last_end});

-- name: vacuum_results
-- route: pool
-- Delete at most $1 results past their lifetime, and count them.
--
-- Not those of jobs whose consequences are not applied yet, which pass the results to the jobs that wait for them.
WITH old AS MATERIALIZED (
    SELECT job_id
    FROM {schema}scheduler_results AS kept
    WHERE expires_at <= coalesce($2, {now})
      AND NOT EXISTS (
          SELECT FROM {schema}scheduled_jobs AS job
          WHERE job.job_id = kept.job_id AND job.finished_at IS NOT NULL AND job.on_end IS NOT NULL
          OFFSET 0
      ){left_out}
    LIMIT $1
    FOR UPDATE OF kept SKIP LOCKED
),
changed AS (
    DELETE FROM {schema}scheduler_results
    WHERE job_id = ANY (ARRAY (SELECT job_id FROM old))
    RETURNING 1
)
SELECT count(*) FROM changed;
