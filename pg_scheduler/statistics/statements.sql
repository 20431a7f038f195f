-- fragment: added_arrays
counts    = ARRAY (
            SELECT coalesce(a, 0) + coalesce(b, 0)
            FROM ROWS FROM (unnest(old.counts), unnest(EXCLUDED.counts)) WITH ORDINALITY AS pair (a, b, place)
            ORDER BY place
        ),
        sums      = ARRAY (
            SELECT coalesce(a, 0) + coalesce(b, 0)
            FROM ROWS FROM (unnest(old.sums), unnest(EXCLUDED.sums)) WITH ORDINALITY AS pair (a, b, place)
            ORDER BY place
        ),
        run_hist  = ARRAY (
            SELECT coalesce(a, 0) + coalesce(b, 0)
            FROM ROWS FROM (unnest(old.run_hist), unnest(EXCLUDED.run_hist)) WITH ORDINALITY AS pair (a, b, place)
            ORDER BY place
        ),
        late_hist = ARRAY (
            SELECT coalesce(a, 0) + coalesce(b, 0)
            FROM ROWS FROM (unnest(old.late_hist), unnest(EXCLUDED.late_hist)) WITH ORDINALITY AS pair (a, b, place)
            ORDER BY place
        )

-- name: add_statistics
-- route: shared, tuned
-- Add figures ($3, an array of objects) to the rows of the minute and to the totals. A batch counts once.
--
-- The row of worker $1 remembers the last batch, so the statement may safely run twice. Returns whether that row
-- exists; without it nothing is added. All workers write the rows in the order of their names, so none waits for
-- another in a circle.
WITH worker AS (
    UPDATE {schema}scheduler_workers SET statistics_batch = $2
    WHERE worker_id = $1 AND statistics_batch < $2::bigint
    RETURNING worker_id
),
added AS MATERIALIZED (
    SELECT figures.row ->> 'job_name' AS job_name,
        string_to_array(btrim(figures.row ->> 'counts', '[]'), ',')::bigint[] AS counts,
        string_to_array(btrim(figures.row ->> 'sums', '[]'), ',')::double precision[] AS sums,
        string_to_array(btrim(figures.row ->> 'run_hist', '[]'), ',')::integer[] AS run_hist,
        string_to_array(btrim(figures.row ->> 'late_hist', '[]'), ',')::integer[] AS late_hist
    FROM worker
    CROSS JOIN jsonb_array_elements($3::text::jsonb) AS figures (row)
),
minute AS (
    INSERT INTO {schema}scheduler_stats AS old (bucket, span, job_name, counts, sums, run_hist, late_hist)
    SELECT to_timestamp(floor(extract(epoch FROM coalesce($4, {now})) / 60) * 60), 60,
        job_name, counts, sums, run_hist, late_hist
    FROM added
    ORDER BY job_name COLLATE "C"
    ON CONFLICT (span, bucket, job_name) DO UPDATE SET
        {added_arrays}
),
total AS (
    INSERT INTO {schema}scheduler_totals AS old (job_name, counts, sums, run_hist, late_hist, updated_at)
    SELECT job_name, counts, sums, run_hist, late_hist, coalesce($4, {now})
    FROM added
    ORDER BY job_name COLLATE "C"
    ON CONFLICT (job_name) DO UPDATE SET
        {added_arrays},
        updated_at = EXCLUDED.updated_at
)
SELECT EXISTS (SELECT FROM {schema}scheduler_workers WHERE worker_id = $1);

-- name: fold_statistics
-- route: pool
-- Merge at most $4 rows of $1 seconds that are older than $3 seconds into rows of $2 seconds; return their number.
WITH gone AS (
    DELETE FROM {schema}scheduler_stats
    WHERE ctid = ANY (ARRAY (
        SELECT ctid
        FROM {schema}scheduler_stats
        WHERE span = $1::integer
          AND bucket < to_timestamp(floor(
              (extract(epoch FROM coalesce($5, {now}))::double precision - $3::double precision) / $2::integer
          ) * $2::integer)
        ORDER BY bucket, job_name
        LIMIT $4
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING bucket, job_name, counts, sums, run_hist, late_hist
),
elements AS (
    SELECT to_timestamp(floor(extract(epoch FROM bucket) / $2::integer) * $2::integer) AS bucket, job_name, place,
        sum(one)::bigint AS one, sum(amount) AS amount, sum(run)::integer AS run, sum(late)::integer AS late
    FROM gone
    CROSS JOIN LATERAL ROWS FROM (unnest(counts), unnest(sums), unnest(run_hist), unnest(late_hist))
        WITH ORDINALITY AS each (one, amount, run, late, place)
    GROUP BY 1, 2, 3
),
folded AS (
    INSERT INTO {schema}scheduler_stats AS old (bucket, span, job_name, counts, sums, run_hist, late_hist)
    SELECT bucket, $2::integer, job_name,
        array_agg(one ORDER BY place) FILTER (WHERE one IS NOT NULL),
        array_agg(amount ORDER BY place) FILTER (WHERE amount IS NOT NULL),
        array_agg(run ORDER BY place) FILTER (WHERE run IS NOT NULL),
        array_agg(late ORDER BY place) FILTER (WHERE late IS NOT NULL)
    FROM elements
    GROUP BY bucket, job_name
    ORDER BY bucket, job_name COLLATE "C"
    ON CONFLICT (span, bucket, job_name) DO UPDATE SET
        {added_arrays}
)
SELECT count(*) FROM gone;

-- name: delete_statistics
-- route: pool
-- Delete old statistics and counts of errors, at most $3 rows of a table; return the number of the table with the most.
--
-- Old are rows of statistics of $1 seconds after $2 seconds, counts of minutes after $5, of hours after $6 and of days
-- after $7, and groups of errors whose last one is older than $7.
WITH gone AS (
    DELETE FROM {schema}scheduler_stats
    WHERE ctid = ANY (ARRAY (
        SELECT ctid
        FROM {schema}scheduler_stats
        WHERE span = $1::integer AND bucket < (coalesce($4, {now}) - make_interval(secs => $2))
        ORDER BY bucket, job_name
        LIMIT $3
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING 1
),
old_count AS (
    SELECT counts.place
    FROM (VALUES (60, $5::double precision), (3600, $6), (86400, $7)) AS span (seconds, age)
    CROSS JOIN LATERAL (
        SELECT ctid AS place
        FROM {schema}scheduler_error_counts
        WHERE span = span.seconds AND bucket < (coalesce($4, {now}) - make_interval(secs => span.age))
        LIMIT $3
        FOR UPDATE SKIP LOCKED
    ) AS counts
    LIMIT $3
),
gone_count AS (
    DELETE FROM {schema}scheduler_error_counts WHERE ctid = ANY (ARRAY (SELECT place FROM old_count)) RETURNING 1
),
gone_group AS (
    DELETE FROM {schema}scheduler_error_groups
    WHERE ctid = ANY (ARRAY (
        SELECT ctid
        FROM {schema}scheduler_error_groups
        WHERE last_at < (coalesce($4, {now}) - make_interval(secs => $7))
        LIMIT $3
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING 1
)
SELECT greatest(
    (SELECT count(*) FROM gone), (SELECT count(*) FROM gone_count), (SELECT count(*) FROM gone_group)
);
