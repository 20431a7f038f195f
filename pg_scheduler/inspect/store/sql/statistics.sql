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
      AND bucket <= coalesce($7, now())
      AND (bucket, job_name) < (coalesce($4::timestamptz, {last_instant}), coalesce($5::text, ''))
      AND ($3::text[] IS NULL OR job_name = ANY ($3))
    ORDER BY bucket DESC, job_name DESC
    LIMIT $6::bigint
) AS figures ON true;

-- fragment: examined_rows
-- How many rows a page of sums has examined, and the position of the last of them.
(
    SELECT count(*) AS examined, min(bucket) AS last_bucket,
        (SELECT job_name FROM examined ORDER BY bucket, job_name LIMIT 1) AS last_name
    FROM examined
)

-- fragment: summed_counts
ARRAY [
    sum(counts[1]), sum(counts[2]), sum(counts[3]), sum(counts[4]), sum(counts[5]), sum(counts[6]),
    sum(counts[7]), sum(counts[8]), sum(counts[9]), sum(counts[10]), sum(counts[11]), sum(counts[12])
]::bigint[]

-- fragment: summed_durations
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
]

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
      AND bucket <= coalesce($7, now())
      AND (bucket, job_name) < (coalesce($4::timestamptz, {last_instant}), coalesce($5::text, ''))
    ORDER BY bucket DESC, job_name DESC
    LIMIT $6::bigint
),
added AS (
    SELECT to_timestamp(floor(extract(epoch FROM bucket) / $8::double precision) * $8) AS start,
        {summed_counts} AS counts,
        ARRAY [sum(sums[1]), sum(sums[2])] AS sums,
        {summed_durations} AS run_hist,
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
FROM {examined_rows} AS whole
LEFT JOIN added ON true;

-- name: sum_statistics_by_name
-- route: pool
-- Add up $6 rows of statistics of the span $1 by job name, newest first, without the lateness.
--
-- Those that end after $2 and not after $3, NULL for the last one that has begun at $7; after the position $4 and $5
-- (NULL at the start). Each row has how many rows were read and the position of the last of them, which come alone where
-- there are none.
WITH examined AS MATERIALIZED (
    SELECT bucket, job_name, counts, sums, run_hist
    FROM {schema}scheduler_stats
    WHERE span = $1::integer
      AND bucket > ($2::timestamptz - make_interval(secs => $1::integer))
      AND bucket <= coalesce($3::timestamptz - make_interval(secs => $1::integer), $7, now())
      AND (bucket, job_name) < (coalesce($4::timestamptz, {last_instant}), coalesce($5::text, ''))
    ORDER BY bucket DESC, job_name DESC
    LIMIT $6::bigint
),
added AS (
    SELECT job_name,
        {summed_counts} AS counts,
        ARRAY [sum(sums[1])] AS sums,
        {summed_durations} AS run_hist
    FROM examined
    GROUP BY job_name
)
SELECT whole.*, added.*
FROM {examined_rows} AS whole
LEFT JOIN added ON true;

-- name: read_starts
-- route: pool
-- Return how many attempts started in the minutes since $1 seconds ago, and the seconds since the first of them.
SELECT sum(counts[2])::bigint AS started,
    extract(epoch FROM coalesce($2, now()) - min(bucket))::double precision AS seconds
FROM {schema}scheduler_stats
WHERE span = 60
  AND bucket > (coalesce($2, now()) - make_interval(secs => $1::double precision))
  AND bucket <= coalesce($2, now());
