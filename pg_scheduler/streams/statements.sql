-- The values and the streams of jobs. A job that has published anything has the key "streams" in its options: a random
-- definition, which its rows have too. A new definition of the job (REPLACE) has other options, and a deleted job has
-- none. So no reader sees rows of an earlier job, and they are not in the way of new ones, before vacuum_streams deletes
-- them. A plain job has no such key, and no statement about it reads this table.

-- name: append_items
-- route: step
-- Store items and values ($5 names, $6 numbers, $7 JSON) for the attempt $3 of the job $1 that the worker $2 runs.
--
-- $4 is the definition of a job that has published nothing. No row: the attempt does not hold its job any more.
--
-- The lock of the job's row orders this with reclaiming, cancelling, replacing and the end of the job: either the items
-- are committed first, and the next attempt, claimed later, counts them, and a reader that sees the end sees them too; or
-- the row has changed, and nothing is stored. The attempt gives each item its number. Only one attempt at a time holds the
-- job, so a number that is stored already is one of this attempt, whose commit had no answer: the item stays as it is.
-- Of a value (number 0), the last one counts.
WITH held AS (
    SELECT job_id, options ->> 'streams' AS definition
    FROM {schema}scheduled_jobs
    WHERE job_id = $1 AND worker_id = $2 AND attempt = $3 AND status = 'running'{within_lock_limit}
    FOR NO KEY UPDATE
),
marked AS (
    UPDATE {schema}scheduled_jobs AS job SET options = {options_object} || jsonb_build_object('streams', $4::text)
    FROM held
    WHERE job.job_id = $1 AND job.job_id = held.job_id AND held.definition IS NULL
),
stored AS (
    INSERT INTO {schema}scheduler_streams AS item (job_id, definition, name, number, value)
    SELECT held.job_id, coalesce(held.definition, $4::text), new.name, new.number, new.value::jsonb
    FROM held, ROWS FROM (unnest($5::text[]), unnest($6::integer[]), unnest($7::text[])) AS new (name, number, value)
    ON CONFLICT (job_id, definition, name, number) DO UPDATE SET value = EXCLUDED.value
    WHERE item.number = 0
)
SELECT true AS is_held FROM held;

-- name: count_items
-- route: step
-- Return for each name under which the job $1 has published anything the last number, and the bytes of the items.
SELECT item.name, max(item.number) AS last,
    coalesce(sum(octet_length(item.value::text)) FILTER (WHERE item.number > 0), 0)::bigint AS bytes
FROM {schema}scheduled_jobs AS job
JOIN {schema}scheduler_streams AS item
    ON item.job_id = job.job_id AND item.definition = (job.options ->> 'streams')
WHERE job.job_id = $1
GROUP BY item.name;

-- name: read_items
-- route: pool
-- Return items of jobs: of each name ($1 jobs, $2 names) those after $3 up to $4, the first $5, with the state of the job.
--
-- A reader without items has one row with a NULL number. The row of the job and the items are of one snapshot. So if the
-- job has ended in it, no item is missing: an item is only stored while the job runs.
SELECT wanted.place::integer AS place, job.job_id IS NOT NULL AS has_row, job.finished_at IS NOT NULL AS has_ended,
    job.options ->> 'streams' AS definition, item.number, item.value::text AS value
FROM ROWS FROM (unnest($1::text[]), unnest($2::text[]), unnest($3::integer[]), unnest($4::integer[]))
    WITH ORDINALITY AS wanted (job_id, name, after, last, place)
LEFT JOIN LATERAL (
    SELECT job_id, finished_at, options FROM {schema}scheduled_jobs WHERE job_id = wanted.job_id OFFSET 0
) AS job ON true
LEFT JOIN LATERAL (
    SELECT stored.number, stored.value
    FROM {schema}scheduler_streams AS stored
    WHERE stored.job_id = job.job_id
      AND stored.definition = (job.options ->> 'streams')
      AND stored.name = wanted.name
      AND stored.number > wanted.after
      AND stored.number <= wanted.last
    ORDER BY stored.number
    LIMIT $5
) AS item ON true
ORDER BY wanted.place, item.number;

-- name: vacuum_streams
-- route: pool
-- Delete rows without a job of their definition among those of the next $2 jobs after $1, at most $3; return the last job.
--
-- The jobs are read by one probe of the index each. Each row belongs to a definition that is random: once the job has
-- another one, or is deleted, none has it again. So a row that this snapshot sees without its job stays without it.
-- is_full is whether there may be more rows of these jobs. NULL at the end.
WITH RECURSIVE found AS (
    (SELECT job_id, 1 AS n FROM {schema}scheduler_streams WHERE job_id > $1 ORDER BY job_id LIMIT 1)
    UNION ALL
    SELECT (
        SELECT next.job_id
        FROM {schema}scheduler_streams AS next
        WHERE next.job_id > found.job_id
        ORDER BY next.job_id
        LIMIT 1
    ), found.n + 1
    FROM found
    WHERE found.job_id IS NOT NULL AND found.n < $2::bigint
),
owner AS MATERIALIZED (
    SELECT found.job_id, job.definition
    FROM found
    LEFT JOIN LATERAL (
        SELECT options ->> 'streams' AS definition
        FROM {schema}scheduled_jobs
        WHERE job_id = found.job_id
        LIMIT 1
    ) AS job ON true
    WHERE found.job_id IS NOT NULL
),
old AS MATERIALIZED (
    SELECT stored.ctid, owner.job_id
    FROM owner
    CROSS JOIN LATERAL (
        SELECT ctid
        FROM {schema}scheduler_streams
        WHERE job_id = owner.job_id AND (definition = owner.definition) IS NOT TRUE{left_out}
        OFFSET 0
        FOR UPDATE SKIP LOCKED
    ) AS stored
    LIMIT $3
),
changed AS (
    DELETE FROM {schema}scheduler_streams WHERE ctid = ANY (ARRAY (SELECT ctid FROM old))
)
SELECT (SELECT job_id FROM found WHERE n = $2) AS last_id, (SELECT count(*) FROM old) >= $3::bigint AS is_full;
