-- name: insert_generated_job
-- Insert a job whose id was made for it: no look for another one, and nothing to return.
INSERT INTO {schema}scheduled_jobs (
    job_id, task_data, execution_time, job_name, priority, max_retries, misfire_grace_time,
    timeout_seconds, function, lock_key, created_at, expires_at
) VALUES (
    $1, ($2::text)::jsonb, $3, $4, $5, $6, $7::integer, $8, $9, $10, coalesce($11, now()),
    $3::timestamptz + make_interval(secs => $7)
);

-- name: insert_generated_jobs
-- The same for several of them.
INSERT INTO {schema}scheduled_jobs (
    job_id, task_data, execution_time, job_name, priority, max_retries, misfire_grace_time,
    timeout_seconds, function, lock_key, created_at, expires_at
)
SELECT
    new.job_id, new.task_data::jsonb, new.execution_time, new.job_name, new.priority, new.max_retries,
    new.misfire_grace_time, new.timeout_seconds, new.function, new.lock_key, coalesce($11, now()),
    new.execution_time + make_interval(secs => new.misfire_grace_time)
FROM unnest(
    $1::text[], $2::text[], $3::timestamptz[], $4::text[], $5::integer[], $6::integer[], $7::integer[],
    $8::double precision[], $9::text[], $10::bigint[]
) AS new (
    job_id, task_data, execution_time, job_name, priority, max_retries, misfire_grace_time,
    timeout_seconds, function, lock_key
);

-- name: insert_job
-- The same as insert_jobs for one job, without its arrays, since most calls bring one.
INSERT INTO {schema}scheduled_jobs (
    job_id, task_data, execution_time, job_name, priority, max_retries, misfire_grace_time,
    timeout_seconds, function, lock_key, created_at, expires_at
) VALUES (
    $1, ($2::text)::jsonb, $3, $4, $5, $6, $7::integer, $8, $9, $10, coalesce($11, now()),
    $3::timestamptz + make_interval(secs => $7)
)
ON CONFLICT (job_id) DO NOTHING
RETURNING job_id, CASE WHEN $12::text IS NOT NULL THEN pg_notify($12, $13) END;

-- name: insert_jobs
-- Insert jobs whose ids are free; returns the ids that were. If there is one, and with a channel, it says
-- something there in the same commit.
INSERT INTO {schema}scheduled_jobs (
    job_id, task_data, execution_time, job_name, priority, max_retries, misfire_grace_time,
    timeout_seconds, function, lock_key, created_at, expires_at
)
SELECT
    new.job_id, new.task_data::jsonb, new.execution_time, new.job_name, new.priority, new.max_retries,
    new.misfire_grace_time, new.timeout_seconds, new.function, new.lock_key, coalesce($11, now()),
    new.execution_time + make_interval(secs => new.misfire_grace_time)
FROM unnest(
    $1::text[], $2::text[], $3::timestamptz[], $4::text[], $5::integer[], $6::integer[], $7::integer[],
    $8::double precision[], $9::text[], $10::bigint[]
) AS new (
    job_id, task_data, execution_time, job_name, priority, max_retries, misfire_grace_time,
    timeout_seconds, function, lock_key
)
-- in one order in all calls, so that two that insert the same ids cannot deadlock
ORDER BY new.job_id COLLATE "C"
ON CONFLICT (job_id) DO NOTHING
RETURNING job_id, CASE WHEN $12::text IS NOT NULL THEN pg_notify($12, $13) END;

-- name: replace_jobs
-- Insert jobs or give the existing ones a new definition with their tries unused. A running job keeps
-- its row until its try ends: the new definition waits in "replacement". The ids must differ. attempt
-- never goes back: it is half of the fence.
INSERT INTO {schema}scheduled_jobs AS old (
    job_id, task_data, execution_time, job_name, priority, max_retries, misfire_grace_time,
    timeout_seconds, function, lock_key, created_at, expires_at
)
SELECT
    new.job_id, new.task_data::jsonb, new.execution_time, new.job_name, new.priority, new.max_retries,
    new.misfire_grace_time, new.timeout_seconds, new.function, new.lock_key, coalesce($11, now()),
    new.execution_time + make_interval(secs => new.misfire_grace_time)
FROM unnest(
    $1::text[], $2::text[], $3::timestamptz[], $4::text[], $5::integer[], $6::integer[], $7::integer[],
    $8::double precision[], $9::text[], $10::bigint[]
) AS new (
    job_id, task_data, execution_time, job_name, priority, max_retries, misfire_grace_time,
    timeout_seconds, function, lock_key
)
ORDER BY new.job_id COLLATE "C"
ON CONFLICT (job_id) DO UPDATE SET
    job_name           = CASE WHEN old.status = 'running' THEN old.job_name           ELSE EXCLUDED.job_name END,
    execution_time     = CASE WHEN old.status = 'running' THEN old.execution_time     ELSE EXCLUDED.execution_time END,
    task_data          = CASE WHEN old.status = 'running' THEN old.task_data          ELSE EXCLUDED.task_data END,
    priority           = CASE WHEN old.status = 'running' THEN old.priority           ELSE EXCLUDED.priority END,
    max_retries        = CASE WHEN old.status = 'running' THEN old.max_retries        ELSE EXCLUDED.max_retries END,
    misfire_grace_time = CASE WHEN old.status = 'running' THEN old.misfire_grace_time ELSE EXCLUDED.misfire_grace_time END,
    timeout_seconds    = CASE WHEN old.status = 'running' THEN old.timeout_seconds    ELSE EXCLUDED.timeout_seconds END,
    function           = CASE WHEN old.status = 'running' THEN old.function           ELSE EXCLUDED.function END,
    lock_key           = CASE WHEN old.status = 'running' THEN old.lock_key           ELSE EXCLUDED.lock_key END,
    expires_at         = CASE WHEN old.status = 'running' THEN old.expires_at         ELSE EXCLUDED.expires_at END,
    retry_count        = CASE WHEN old.status = 'running' THEN old.retry_count        ELSE 0 END,
    crash_count        = CASE WHEN old.status = 'running' THEN old.crash_count        ELSE 0 END,
    started_at         = CASE WHEN old.status = 'running' THEN old.started_at         END,
    error_message      = CASE WHEN old.status = 'running' THEN old.error_message      END,
    worker_id          = CASE WHEN old.status = 'running' THEN old.worker_id          END,
    last_heartbeat     = CASE WHEN old.status = 'running' THEN old.last_heartbeat     END,
    lease_until        = CASE WHEN old.status = 'running' THEN old.lease_until        END,
    status             = CASE WHEN old.status = 'running' THEN 'running'              ELSE 'pending' END,
    finished_at        = NULL,
    replacement        = CASE WHEN old.status = 'running' THEN jsonb_build_object(
        'job_name', EXCLUDED.job_name, 'execution_time', EXCLUDED.execution_time,
        'task_data', EXCLUDED.task_data, 'priority', EXCLUDED.priority,
        'max_retries', EXCLUDED.max_retries, 'misfire_grace_time', EXCLUDED.misfire_grace_time,
        'timeout_seconds', EXCLUDED.timeout_seconds, 'function', EXCLUDED.function,
        'lock_key', EXCLUDED.lock_key) END
RETURNING job_id;
