-- name: inspect_error_groups
-- route: pool
-- Return at most $4 groups of errors of which jobs ended since the instant $2, the newest first, of the names $5 unless
-- NULL.
--
-- $1 and $7 are the span of the counts, in seconds, and the start of the first one that is read. There is always a row,
-- with the time and since when errors are counted. Failures that no worker has added to the groups yet are read with
-- them, up to $3.
WITH chosen AS (
    SELECT fingerprint
    FROM {schema}scheduler_error_groups
    WHERE last_at >= $2::timestamptz AND ($5::text[] IS NULL OR job_name = ANY ($5))
    ORDER BY last_at DESC
    LIMIT $4
),
waiting AS MATERIALIZED (
    SELECT * FROM {schema}scheduler_failures LIMIT $3
),
fresh AS MATERIALIZED (
    SELECT {fresh_columns}
    FROM waiting
    WHERE $5::text[] IS NULL OR job_name = ANY ($5)
),
{grouped_errors};

-- name: inspect_error_group
-- route: pool
-- Return the group of errors with the fingerprint $5 as inspect_error_groups does, also without jobs since $2.
WITH chosen AS (
    SELECT $5::text AS fingerprint
),
waiting AS MATERIALIZED (
    SELECT * FROM {schema}scheduler_failures LIMIT $3
),
fresh AS MATERIALIZED (
    SELECT {fresh_columns}
    FROM waiting
    WHERE fingerprint = $5
),
{grouped_errors};

-- fragment: fresh_columns
-- The values of rows that were written by hand are bounded.
fingerprint, job_name, text, status, greatest(jobs, 0) AS jobs,
        least(greatest(at, {first_day}), {last_day}) AS at, release, job_id

-- fragment: bounded_sum
least(coalesce(sum(jobs), 0), 9223372036854775807)::bigint

-- fragment: grouped_errors
-- The groups of the errors that are "chosen", and of the "fresh" failures, with both added up.
picked AS MATERIALIZED (
    SELECT fingerprint FROM chosen
    UNION
    SELECT fingerprint FROM fresh WHERE at >= $2::timestamptz
),
history AS MATERIALIZED (
    SELECT picked.fingerprint, counts.jobs, counts.buckets, counts.counts
    FROM picked
    CROSS JOIN LATERAL (
        SELECT {bounded_sum} AS jobs, array_agg(bucket) AS buckets, array_agg(jobs) AS counts
        FROM (
            SELECT bucket, greatest(jobs, 0) AS jobs
            FROM {schema}scheduler_error_counts
            WHERE fingerprint = picked.fingerprint AND span = $1::integer AND bucket >= $7::timestamptz
            OFFSET 0  -- the index of the age would read the counts of all groups
        ) AS stored
        WHERE bucket <= coalesce($6, {now})
    ) AS counts
),
added AS MATERIALIZED (
    SELECT fingerprint, {bounded_sum} AS jobs, array_agg(at) AS buckets, array_agg(jobs::bigint) AS counts
    FROM fresh
    WHERE at >= $7::timestamptz
    GROUP BY fingerprint
),
error AS (
    SELECT groups.fingerprint, groups.job_name, groups.text, groups.status, greatest(groups.jobs, 0) AS jobs,
        least(greatest(groups.first_at, {first_day}), {last_day}) AS first_at, groups.first_release,
        least(greatest(groups.last_at, {first_day}), {last_day}) AS last_at, groups.last_release, groups.last_job_id
    FROM picked
    CROSS JOIN LATERAL (
        SELECT * FROM {schema}scheduler_error_groups WHERE fingerprint = picked.fingerprint OFFSET 0
    ) AS groups
    UNION ALL
    SELECT fingerprint, job_name, text, status, jobs, at, release, at, release, job_id
    FROM fresh
    WHERE fingerprint = ANY (ARRAY (SELECT fingerprint FROM picked))
),
merged AS (
    SELECT fingerprint, min(job_name) AS job_name, min(text) AS text,
        CASE WHEN (array_agg(status ORDER BY last_at DESC))[1] = 'expired' THEN 'expired' ELSE 'failed' END AS status,
        {bounded_sum} AS total,
        min(first_at) AS first_at, (array_agg(first_release ORDER BY first_at))[1] AS first_release,
        max(last_at) AS last_at, (array_agg(last_release ORDER BY last_at DESC))[1] AS last_release,
        (array_agg(last_job_id ORDER BY last_at DESC))[1] AS last_job_id
    FROM error
    GROUP BY fingerprint
    ORDER BY max(last_at) DESC
    LIMIT $4
)
SELECT coalesce($6, {now}) AS now,
    (SELECT applied_at FROM {schema}scheduler_migrations WHERE version = 5) AS counted_since,
    (SELECT count(*) FROM waiting) >= $3 AS is_capped,
    merged.*, least(coalesce(history.jobs, 0)::numeric + coalesce(added.jobs, 0), 9223372036854775807)::bigint AS jobs,
    history.buckets || added.buckets AS buckets, history.counts || added.counts AS counts,
    coalesce(left(job.error_message, 300), merged.text) AS example
FROM (SELECT) AS one
LEFT JOIN merged ON true
LEFT JOIN history ON history.fingerprint = merged.fingerprint
LEFT JOIN added ON added.fingerprint = merged.fingerprint
LEFT JOIN LATERAL (
    SELECT error_message FROM {schema}scheduled_jobs WHERE job_id = merged.last_job_id OFFSET 0
) AS job ON true
ORDER BY merged.last_at DESC
