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

-- name: clock
-- route: pool
-- Return the clock of the scheduler, also late in a transaction.
SELECT coalesce($1, statement_timestamp());

-- name: replace_jobs
-- route: pool
-- Insert jobs, or give existing ones a new definition with its attempts unused. The ids must differ.
--
-- A running job keeps its row until its attempt ends; the new definition waits in "on_end". The attempt
-- number never decreases: it is part of the fencing token. Rows are written in the same order as in
-- insert_jobs.
INSERT INTO {schema}scheduled_jobs AS old (
    {new_columns}
)
{new_rows}
ORDER BY new.job_id COLLATE "C"
ON CONFLICT (job_id) DO UPDATE SET
    job_name        = CASE WHEN old.status = 'running' THEN old.job_name        ELSE EXCLUDED.job_name END,
    execution_time  = CASE WHEN old.status = 'running' THEN old.execution_time
        ELSE EXCLUDED.execution_time END,
    task_data       = CASE WHEN old.status = 'running' THEN old.task_data       ELSE EXCLUDED.task_data END,
    priority        = CASE WHEN old.status = 'running' THEN old.priority        ELSE EXCLUDED.priority END,
    max_retries     = CASE WHEN old.status = 'running' THEN old.max_retries     ELSE EXCLUDED.max_retries END,
    misfire_grace_time = CASE WHEN old.status = 'running' THEN old.misfire_grace_time
        ELSE EXCLUDED.misfire_grace_time END,
    timeout_seconds = CASE WHEN old.status = 'running' THEN old.timeout_seconds
        ELSE EXCLUDED.timeout_seconds END,
    function        = CASE WHEN old.status = 'running' THEN old.function        ELSE EXCLUDED.function END,
    lock_key        = CASE WHEN old.status = 'running' THEN old.lock_key        ELSE EXCLUDED.lock_key END,
    expires_at      = CASE WHEN old.status = 'running' THEN old.expires_at      ELSE EXCLUDED.expires_at END,
    retry_count     = CASE WHEN old.status = 'running' THEN old.retry_count     ELSE 0 END,
    crash_count     = CASE WHEN old.status = 'running' THEN old.crash_count     ELSE 0 END,
    started_at      = CASE WHEN old.status = 'running' THEN old.started_at      END,
    error_message   = CASE WHEN old.status = 'running' THEN old.error_message   END,
    worker_id       = CASE WHEN old.status = 'running' THEN old.worker_id       END,
    last_heartbeat  = CASE WHEN old.status = 'running' THEN old.last_heartbeat  END,
    lease_until     = CASE WHEN old.status = 'running' THEN old.lease_until     END,
    status          = CASE WHEN old.status = 'running' THEN 'running'           ELSE 'pending' END,
    finished_at     = NULL,
    blocked_on      = NULL,
    errors          = CASE WHEN old.status = 'running' THEN old.errors          END,
    progress        = CASE WHEN old.status = 'running' THEN old.progress        END,
    on_end          = CASE WHEN old.status = 'running' THEN jsonb_build_object('replacement', jsonb_build_object(
        'job_name', EXCLUDED.job_name, 'execution_time', EXCLUDED.execution_time,
        'task_data', EXCLUDED.task_data, 'priority', EXCLUDED.priority,
        'max_retries', EXCLUDED.max_retries, 'misfire_grace_time', EXCLUDED.misfire_grace_time,
        'timeout_seconds', EXCLUDED.timeout_seconds, 'function', EXCLUDED.function,
        'lock_key', EXCLUDED.lock_key)) END
RETURNING job_id;
