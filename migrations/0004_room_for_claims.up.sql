-- Two things that claims were measured to want. Half of each page is left free, so that every row of a page
-- can be claimed on that page: with a backlog, where whole pages are claimed at once, fillfactor 70 had room for
-- 40 of 100 of those updates, and the others wrote both indexes. And ids are compared byte by byte, on
-- any database, as the claim's answer is sorted.

ALTER TABLE {schema}scheduled_jobs SET (fillfactor = 45);

DROP INDEX {schema}scheduled_jobs_claim;

CREATE INDEX scheduled_jobs_claim
    ON {schema}scheduled_jobs (priority, execution_time, job_id COLLATE "C")
    WHERE finished_at IS NULL;
