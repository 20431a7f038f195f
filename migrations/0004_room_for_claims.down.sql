DROP INDEX {schema}scheduled_jobs_claim;

CREATE INDEX scheduled_jobs_claim
    ON {schema}scheduled_jobs (priority, execution_time, job_id)
    WHERE finished_at IS NULL;

ALTER TABLE {schema}scheduled_jobs SET (fillfactor = 70);
