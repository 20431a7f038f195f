-- name: insert_generated_job
-- route: pool | sticky
-- Insert one job whose generated id cannot be taken.
INSERT INTO {schema}scheduled_jobs (
    {new_columns}
) VALUES (
    {new_values}
);

-- name: insert_generated_jobs
-- route: pool | sticky
-- Insert jobs whose generated ids cannot be taken.
INSERT INTO {schema}scheduled_jobs (
    {new_columns}
)
{new_rows};

-- name: insert_job
-- route: pool | sticky
-- Insert one job if its id is free, and send a message ($13 on channel $12, unless NULL) in the same commit.
INSERT INTO {schema}scheduled_jobs (
    {new_columns}
) VALUES (
    {new_values}
)
ON CONFLICT (job_id) DO NOTHING
RETURNING job_id, CASE WHEN $12::text IS NOT NULL THEN pg_notify($12, $13) END;

-- name: insert_jobs
-- route: pool | sticky
-- Insert the jobs whose ids are free, return those ids, and send a message as insert_job does.
--
-- All calls insert in the same order, so two of them that share ids cannot deadlock.
INSERT INTO {schema}scheduled_jobs (
    {new_columns}
)
{new_rows}
ORDER BY new.job_id COLLATE "C"
ON CONFLICT (job_id) DO NOTHING
RETURNING job_id, CASE WHEN $12::text IS NOT NULL THEN pg_notify($12, $13) END;

-- name: enqueue_job
-- route: pool | sticky
-- Insert one job that is due a delay from now, as insert_job does.
INSERT INTO {schema}scheduled_jobs (
    {new_columns}
)
{delayed_values}
ON CONFLICT (job_id) DO NOTHING
RETURNING job_id, CASE WHEN $12::text IS NOT NULL THEN pg_notify($12, $13) END;

-- name: enqueue_jobs
-- route: pool | sticky
-- Insert jobs that are due a delay from now, as insert_jobs does.
INSERT INTO {schema}scheduled_jobs (
    {new_columns}
)
{delayed_rows}
ORDER BY new.job_id COLLATE "C"
ON CONFLICT (job_id) DO NOTHING
RETURNING job_id, CASE WHEN $12::text IS NOT NULL THEN pg_notify($12, $13) END;

-- name: insert_extended_jobs
-- route: pool | sticky
-- Insert jobs with options ($14), unique keys ($15), what they wait for ($16) and their consequences ($17).
--
-- Returns the ids of those whose id and unique key are free, and sends a message as insert_job does. Of several
-- jobs with one unique key, the first one in the arrays is inserted. Calls that share keys insert in the same
-- order, so they cannot deadlock.
INSERT INTO {schema}scheduled_jobs (
    {new_columns}, options, unique_key, blocked_on, on_end
)
{extended_rows}
ORDER BY new.unique_key COLLATE "C", CASE WHEN new.unique_key IS NULL THEN new.job_id END COLLATE "C", new.place
ON CONFLICT DO NOTHING
RETURNING job_id, CASE WHEN $12::text IS NOT NULL THEN pg_notify($12, $13) END;

-- name: clock
-- route: pool
-- Return the clock of the scheduler, also late in a transaction.
SELECT coalesce($1, statement_timestamp());

-- name: replace_jobs
-- route: pool
-- Insert jobs, or give existing ones a new definition with its attempts unused. The ids must differ.
--
-- A running job keeps its row until its attempt ends; the new definition waits in "on_end". The attempt
-- number never decreases: it is part of the fencing token. Other jobs that wait for this one wait for its new
-- definition. Rows are written in the same order as in insert_jobs.
INSERT INTO {schema}scheduled_jobs AS old (
    {new_columns}
)
{new_rows}
ORDER BY new.job_id COLLATE "C"
{replace_existing}
RETURNING job_id;

-- name: replace_extended_jobs
-- route: pool
-- Replace jobs as replace_jobs does, with the columns of insert_extended_jobs ($12 to $15).
INSERT INTO {schema}scheduled_jobs AS old (
    {new_columns}, options, unique_key, blocked_on, on_end
)
{replacing_rows}
ORDER BY new.job_id COLLATE "C"
{replace_existing}
RETURNING job_id;
