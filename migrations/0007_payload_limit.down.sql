ALTER TABLE {schema}scheduled_jobs
    DROP CONSTRAINT scheduled_jobs_payload;
