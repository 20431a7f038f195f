-- contract 0010
-- Jobs may wait for something else than their time ("blocked_on"), be unique by a key, have options that their
-- worker reads with the claim, and leave progress and a history of errors. All are NULL in a plain job.
--
-- "replacement" becomes "on_end": an object of everything that the end of the job has to do. The waiting
-- definition is its key "replacement". Blocked jobs are in an index of their own, so that no number of them
-- delays a claim.

ALTER TABLE {schema}scheduled_jobs DROP CONSTRAINT scheduled_jobs_states;

ALTER TABLE {schema}scheduled_jobs RENAME COLUMN replacement TO on_end;

ALTER TABLE {schema}scheduled_jobs
    ADD COLUMN blocked_on text,
    ADD COLUMN unique_key text,
    ADD COLUMN options jsonb,
    ADD COLUMN progress jsonb,
    ADD COLUMN errors jsonb;

UPDATE {schema}scheduled_jobs
SET on_end = pg_catalog.jsonb_build_object('replacement', on_end)
WHERE on_end IS NOT NULL;

ALTER TABLE {schema}scheduled_jobs
    ADD CONSTRAINT scheduled_jobs_states CHECK (
        CASE WHEN finished_at IS NULL
            THEN status = 'pending'
                OR status = 'running' AND blocked_on IS NULL AND worker_id IS NOT NULL AND attempt > 0
            ELSE blocked_on IS NULL AND status = ANY ('{completed,failed,cancelled,expired}'::pg_catalog.text[])
        END);

DROP INDEX {schema}scheduled_jobs_claim;

CREATE INDEX scheduled_jobs_claim
    ON {schema}scheduled_jobs (priority, execution_time, job_id COLLATE "C")
    WHERE finished_at IS NULL AND blocked_on IS NULL;

CREATE INDEX scheduled_jobs_blocked
    ON {schema}scheduled_jobs (blocked_on, priority, execution_time, job_id COLLATE "C")
    WHERE blocked_on IS NOT NULL;

CREATE UNIQUE INDEX scheduled_jobs_unique
    ON {schema}scheduled_jobs (unique_key)
    WHERE unique_key IS NOT NULL AND finished_at IS NULL;
