-- expand
-- Limit the arguments of a job to 16 MiB also as text, which is what a claim reads: a stored number takes 16
-- bytes and prints up to 131,072 digits, and a compressed copy from another table hides its size. Up to 2,000
-- bytes that are not compressed cannot exceed the limit, so they are not converted. Names have up to 64 KiB.
-- A row that was claimed once is exempt, and so is a finished one, so that it can be cancelled.

ALTER TABLE {schema}scheduled_jobs
    DROP CONSTRAINT scheduled_jobs_payload,
    ADD CONSTRAINT scheduled_jobs_payload CHECK (
        attempt > 0
        OR finished_at IS NOT NULL
        OR pg_catalog.octet_length(job_name) <= 65536
            AND pg_catalog.octet_length(coalesce(function, '')) <= 65536
            AND CASE
                WHEN pg_catalog.pg_column_size(task_data) <= 2000
                    AND pg_catalog.pg_column_compression(task_data) IS NULL THEN true
                ELSE pg_catalog.pg_column_size(task_data) <= 16777216
                    AND pg_catalog.octet_length(task_data::pg_catalog.text) <= 16777216
            END
    ) NOT VALID;

-- PostgreSQL reads and plans each constraint anew in every statement that writes a row. These forms of the other
-- two have fewer parts and accept the same rows.

ALTER TABLE {schema}scheduled_jobs
    DROP CONSTRAINT scheduled_jobs_states,
    ADD CONSTRAINT scheduled_jobs_states CHECK (
        CASE WHEN finished_at IS NULL
            THEN status = 'pending' AND replacement IS NULL
                OR status = 'running' AND worker_id IS NOT NULL AND attempt > 0
            ELSE replacement IS NULL AND status = ANY ('{completed,failed,cancelled,expired}'::pg_catalog.text[])
        END),
    DROP CONSTRAINT scheduled_jobs_values,
    ADD CONSTRAINT scheduled_jobs_values CHECK (
        priority = ANY ('{1,3,5,8}'::pg_catalog.int4[]) AND pg_catalog.isfinite(execution_time)
        AND least(retry_count, max_retries, attempt, misfire_grace_time) >= 0 AND timeout_seconds > 0);
