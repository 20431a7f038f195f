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
-- route: shared, reserved
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
    SELECT to_timestamp(floor(extract(epoch FROM coalesce($4, now())) / 60) * 60), 60,
        job_name, counts, sums, run_hist, late_hist
    FROM added
    ORDER BY job_name COLLATE "C"
    ON CONFLICT (span, bucket, job_name) DO UPDATE SET
        {added_arrays}
),
total AS (
    INSERT INTO {schema}scheduler_totals AS old (job_name, counts, sums, run_hist, late_hist, updated_at)
    SELECT job_name, counts, sums, run_hist, late_hist, coalesce($4, now())
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
              (extract(epoch FROM coalesce($5, now()))::double precision - $3::double precision) / $2::integer
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
-- Delete at most $3 rows of $1 seconds that are older than $2 seconds; return their number.
WITH gone AS (
    DELETE FROM {schema}scheduler_stats
    WHERE ctid = ANY (ARRAY (
        SELECT ctid
        FROM {schema}scheduler_stats
        WHERE span = $1::integer AND bucket < (coalesce($4, now()) - make_interval(secs => $2))
        ORDER BY bucket, job_name
        LIMIT $3
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING 1
)
SELECT count(*) FROM gone;

-- name: read_statistics
-- route: pool
-- Return $6 rows of statistics of the span $1, newest first, after the position $4 and $5 (NULL at the start).
--
-- Those of the last $2 seconds and of the names $3, NULL for all. The time of the database comes with each row, and
-- alone where there are none.
SELECT coalesce($7, now()) AS now, figures.*
FROM (SELECT) AS one
LEFT JOIN LATERAL (
    SELECT bucket, job_name, counts, sums, run_hist, late_hist
    FROM {schema}scheduler_stats
    WHERE span = $1::integer
      AND bucket > (coalesce($7, now()) - make_interval(secs => $2::double precision + $1::integer))
      AND (bucket, job_name) < (coalesce($4::timestamptz, {last_instant}), coalesce($5::text, ''))
      AND ($3::text[] IS NULL OR job_name = ANY ($3))
    ORDER BY bucket DESC, job_name DESC
    LIMIT $6::bigint
) AS figures ON true;

-- name: sum_statistics
-- route: pool
-- Add up $6 rows of statistics of the span $1, newest first, by intervals of $8 seconds.
--
-- Those of the last $2 seconds, after the position $4 and $5 (NULL at the start); only names like one of $3, NULL for
-- all. Each row has how many rows were read, the position of the last of them, and the time of the database, which
-- comes alone where there are none. A sum for each element takes a sixth of the time of unnest() and GROUP BY.
WITH examined AS MATERIALIZED (
    SELECT bucket, job_name, counts, sums, run_hist, late_hist
    FROM {schema}scheduler_stats
    WHERE span = $1::integer
      AND bucket > (coalesce($7, now()) - make_interval(secs => $2::double precision + $1::integer))
      AND (bucket, job_name) < (coalesce($4::timestamptz, {last_instant}), coalesce($5::text, ''))
    ORDER BY bucket DESC, job_name DESC
    LIMIT $6::bigint
),
added AS (
    SELECT to_timestamp(floor(extract(epoch FROM bucket) / $8::double precision) * $8) AS start,
        ARRAY [
            sum(counts[1]), sum(counts[2]), sum(counts[3]), sum(counts[4]), sum(counts[5]), sum(counts[6]),
            sum(counts[7]), sum(counts[8]), sum(counts[9]), sum(counts[10]), sum(counts[11])
        ]::bigint[] AS counts,
        ARRAY [sum(sums[1]), sum(sums[2])] AS sums,
        ARRAY [
            sum(run_hist[1]), sum(run_hist[2]), sum(run_hist[3]), sum(run_hist[4]), sum(run_hist[5]),
            sum(run_hist[6]), sum(run_hist[7]), sum(run_hist[8]), sum(run_hist[9]), sum(run_hist[10]),
            sum(run_hist[11]), sum(run_hist[12]), sum(run_hist[13]), sum(run_hist[14]), sum(run_hist[15]),
            sum(run_hist[16]), sum(run_hist[17]), sum(run_hist[18]), sum(run_hist[19]), sum(run_hist[20]),
            sum(run_hist[21]), sum(run_hist[22]), sum(run_hist[23]), sum(run_hist[24]), sum(run_hist[25]),
            sum(run_hist[26]), sum(run_hist[27]), sum(run_hist[28]), sum(run_hist[29]), sum(run_hist[30]),
            sum(run_hist[31]), sum(run_hist[32]), sum(run_hist[33]), sum(run_hist[34]), sum(run_hist[35]),
            sum(run_hist[36]), sum(run_hist[37]), sum(run_hist[38]), sum(run_hist[39]), sum(run_hist[40]),
            sum(run_hist[41]), sum(run_hist[42]), sum(run_hist[43]), sum(run_hist[44]), sum(run_hist[45]),
            sum(run_hist[46]), sum(run_hist[47]), sum(run_hist[48])
        ] AS run_hist,
        ARRAY [
            sum(late_hist[1]), sum(late_hist[2]), sum(late_hist[3]), sum(late_hist[4]), sum(late_hist[5]),
            sum(late_hist[6]), sum(late_hist[7]), sum(late_hist[8]), sum(late_hist[9]), sum(late_hist[10]),
            sum(late_hist[11]), sum(late_hist[12]), sum(late_hist[13]), sum(late_hist[14]), sum(late_hist[15]),
            sum(late_hist[16]), sum(late_hist[17]), sum(late_hist[18]), sum(late_hist[19]), sum(late_hist[20]),
            sum(late_hist[21]), sum(late_hist[22]), sum(late_hist[23]), sum(late_hist[24]), sum(late_hist[25]),
            sum(late_hist[26]), sum(late_hist[27]), sum(late_hist[28]), sum(late_hist[29]), sum(late_hist[30]),
            sum(late_hist[31]), sum(late_hist[32]), sum(late_hist[33]), sum(late_hist[34]), sum(late_hist[35]),
            sum(late_hist[36]), sum(late_hist[37]), sum(late_hist[38]), sum(late_hist[39]), sum(late_hist[40]),
            sum(late_hist[41]), sum(late_hist[42]), sum(late_hist[43]), sum(late_hist[44]), sum(late_hist[45]),
            sum(late_hist[46]), sum(late_hist[47]), sum(late_hist[48])
        ] AS late_hist
    FROM examined
    WHERE $3::text[] IS NULL OR job_name ~~ ANY ($3)
    GROUP BY 1
)
SELECT coalesce($7, now()) AS now, whole.*, added.*
FROM (
    SELECT count(*) AS examined, min(bucket) AS last_bucket,
        (SELECT job_name FROM examined ORDER BY bucket, job_name LIMIT 1) AS last_name
    FROM examined
) AS whole
LEFT JOIN added ON true;

-- name: read_starts
-- route: pool
-- Return how many attempts started in the minutes since $1 seconds ago, and the seconds since the first of them.
SELECT sum(counts[2])::bigint AS started,
    extract(epoch FROM coalesce($2, now()) - min(bucket))::double precision AS seconds
FROM {schema}scheduler_stats
WHERE span = 60 AND bucket > (coalesce($2, now()) - make_interval(secs => $1::double precision));
