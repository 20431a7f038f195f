-- expand
-- Limit the arguments of a job to 16 MiB, as stored. The rows of earlier releases remain valid: they are not
-- scanned, and a row that was claimed once is exempt. The first claim of a larger row exempts it too.

ALTER TABLE {schema}scheduled_jobs
    ADD CONSTRAINT scheduled_jobs_payload
    CHECK (attempt > 0 OR pg_catalog.pg_column_size(task_data) <= 16777216) NOT VALID;
