-- name: fold_failures
-- route: shared, tuned
-- Add at most $1 rows of failures to their groups and to the counts of their minutes, hours and days; return their
-- number.
--
-- Rows that another worker adds are skipped, so each counts once. A name with $2 groups gets no further one: its other
-- errors count as one group, with the text $3. All workers write the rows in one order, so none waits for another in a
-- circle. A row that was written by hand must not keep the others from being added, so its values are bounded.
WITH gone AS (
    DELETE FROM {schema}scheduler_failures
    WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM {schema}scheduler_failures LIMIT $1 FOR UPDATE SKIP LOCKED
    ))
    RETURNING left(fingerprint, 64) AS fingerprint, left(job_name, 500) AS job_name, text, status,
        greatest(jobs, 0) AS jobs, least(greatest(at, {first_day}), {last_day}) AS at, release, job_id
),
crowded AS MATERIALIZED (
    SELECT name.job_name
    FROM (SELECT DISTINCT job_name FROM gone) AS name
    CROSS JOIN LATERAL (
        SELECT count(*) AS groups
        FROM (
            SELECT FROM {schema}scheduler_error_groups AS known
            WHERE known.job_name = name.job_name
            LIMIT $2
        ) AS counted
    ) AS counted
    WHERE counted.groups >= $2::bigint
),
failure AS MATERIALIZED (
    SELECT CASE WHEN error.text = gone.text THEN gone.fingerprint ELSE {fingerprint} END AS fingerprint, error.job_name,
        error.text, gone.status, gone.jobs, gone.at, gone.release, gone.job_id
    FROM gone
    CROSS JOIN LATERAL (
        SELECT gone.job_name, CASE
            WHEN EXISTS (SELECT FROM crowded WHERE crowded.job_name = gone.job_name)
                AND NOT EXISTS (
                    SELECT FROM {schema}scheduler_error_groups AS known WHERE known.fingerprint = gone.fingerprint
                )
                THEN $3::text
            ELSE gone.text
        END AS text
    ) AS error
),
added AS (
    INSERT INTO {schema}scheduler_error_groups AS old (
        fingerprint, job_name, text, status, jobs, first_at, first_release, last_at, last_release, last_job_id
    )
    SELECT fingerprint, min(job_name), min(text), (array_agg(status ORDER BY at DESC))[1], sum(jobs),
        min(at), (array_agg(release ORDER BY at))[1],
        max(at), (array_agg(release ORDER BY at DESC))[1], (array_agg(job_id ORDER BY at DESC, job_id DESC))[1]
    FROM failure
    GROUP BY fingerprint
    ORDER BY fingerprint COLLATE "C"
    ON CONFLICT (fingerprint) DO UPDATE SET
        jobs          = least(old.jobs::numeric + EXCLUDED.jobs, 9223372036854775807)::bigint,
        first_at      = least(old.first_at, EXCLUDED.first_at),
        first_release = CASE WHEN EXCLUDED.first_at < old.first_at
            THEN EXCLUDED.first_release ELSE old.first_release END,
        status        = CASE WHEN EXCLUDED.last_at >= old.last_at THEN EXCLUDED.status ELSE old.status END,
        last_release  = CASE WHEN EXCLUDED.last_at >= old.last_at
            THEN EXCLUDED.last_release ELSE old.last_release END,
        last_job_id   = CASE WHEN EXCLUDED.last_at >= old.last_at
            THEN EXCLUDED.last_job_id ELSE old.last_job_id END,
        last_at       = greatest(old.last_at, EXCLUDED.last_at)
),
counted AS (
    INSERT INTO {schema}scheduler_error_counts AS old (fingerprint, span, bucket, jobs)
    SELECT failure.fingerprint, span.seconds,
        to_timestamp(floor(extract(epoch FROM failure.at) / span.seconds) * span.seconds), sum(failure.jobs)
    FROM failure
    CROSS JOIN (VALUES (60), (3600), (86400)) AS span (seconds)
    GROUP BY 1, 2, 3
    ORDER BY failure.fingerprint COLLATE "C", 2, 3
    ON CONFLICT (fingerprint, span, bucket) DO UPDATE SET
        jobs = least(old.jobs::numeric + EXCLUDED.jobs, 9223372036854775807)::bigint
)
SELECT count(*) FROM gone;
