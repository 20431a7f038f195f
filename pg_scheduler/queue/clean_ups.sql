-- name: read_done_steps
-- route: caller
-- Return what those of the cancelled jobs $1 have done that had begun: the steps that have ended, and those of children,
-- in their order. A job without such steps has a row without a name. Messages that have come are steps too: no row states
-- whether the job has received one that came before it was awaited.
--
-- Values of at most $2 bytes, as stored, are returned as long as all up to them have at most $3. A job that was replaced
-- before it began has the number of attempts of the former definition, so the other columns decide whether it had begun.
SELECT job.job_id, step.name, step.kind, step.value::text AS value, coalesce(step.is_omitted, false) AS is_omitted
FROM {schema}scheduled_jobs AS job
LEFT JOIN LATERAL (
    SELECT done.name, done.kind, done.place,
        CASE WHEN done.is_short AND done.bytes <= $3::bigint THEN done.value END AS value,
        done.value IS NOT NULL AND NOT (done.is_short AND done.bytes <= $3::bigint) AS is_omitted
    FROM (
        SELECT step.name, step.kind, step.value, size.bytes <= $2::bigint AS is_short, row_number() OVER stored AS place,
            sum(size.bytes) FILTER (WHERE size.bytes <= $2::bigint) OVER stored AS bytes
        FROM {schema}scheduler_steps AS step
        CROSS JOIN LATERAL (SELECT coalesce(pg_column_size(step.value), 0)::bigint AS bytes) AS size
        WHERE step.job_id = job.job_id
          AND step.kind = ANY (ARRAY ['step', 'cursor', 'sleep', 'signal', 'child', 'first'])
          AND CASE WHEN left(step.name, 6) = concat(chr(1), 'mail:') THEN step.value IS NOT NULL
              ELSE left(step.name, 1) <> chr(1)
                  AND (step.ended_at IS NOT NULL AND NOT (step.kind = 'signal' AND step.until IS NULL)
                       OR step.kind = 'child') END
          AND {of_definition}
        WINDOW stored AS (ORDER BY {last_write}, step.name COLLATE "C" ROWS UNBOUNDED PRECEDING)
    ) AS done
    ORDER BY done.place
    LIMIT 1000
) AS step ON (job.options -> 'steps') IS NOT NULL
WHERE job.job_id = ANY ($1)
  AND job.attempt > 0
  AND (job.started_at IS NOT NULL
       OR job.retry_count > 0
       OR job.crash_count > 0
       OR coalesce(job.options ->> 'steps', '0') <> '0'
       OR {has_entry})
ORDER BY job.job_id COLLATE "C", step.place;
