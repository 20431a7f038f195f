-- Blocked jobs become plain pending ones: nothing would ever unblock them.

ALTER TABLE {schema}scheduled_jobs DROP CONSTRAINT scheduled_jobs_states;

DROP INDEX {schema}scheduled_jobs_unique;
DROP INDEX {schema}scheduled_jobs_blocked;
DROP INDEX {schema}scheduled_jobs_claim;

CREATE INDEX scheduled_jobs_claim
    ON {schema}scheduled_jobs (priority, execution_time, job_id COLLATE "C")
    WHERE finished_at IS NULL;

UPDATE {schema}scheduled_jobs
SET on_end = CASE WHEN status = 'running' THEN on_end -> 'replacement' END
WHERE on_end IS NOT NULL;

ALTER TABLE {schema}scheduled_jobs RENAME COLUMN on_end TO replacement;

ALTER TABLE {schema}scheduled_jobs
    DROP COLUMN blocked_on,
    DROP COLUMN unique_key,
    DROP COLUMN options,
    DROP COLUMN progress,
    DROP COLUMN errors,
    ADD CONSTRAINT scheduled_jobs_states CHECK (
        CASE WHEN finished_at IS NULL
            THEN status = 'pending' AND replacement IS NULL
                OR status = 'running' AND worker_id IS NOT NULL AND attempt > 0
            ELSE replacement IS NULL AND status = ANY ('{completed,failed,cancelled,expired}'::pg_catalog.text[])
        END);
