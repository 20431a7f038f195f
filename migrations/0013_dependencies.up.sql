-- expand
-- A job may wait for the end of other jobs. Each edge is deleted in the transaction that ends its parent; the
-- child may run when it has none left. Ids are too long for one index of both.

CREATE TABLE {schema}scheduler_after (
    parent_id text NOT NULL,
    child_id text NOT NULL,
    outcome text NOT NULL DEFAULT 'completed'
        CHECK (outcome = ANY ('{completed,ended}'::pg_catalog.text[]))
);

CREATE INDEX scheduler_after_parent ON {schema}scheduler_after (parent_id);

CREATE INDEX scheduler_after_child ON {schema}scheduler_after (child_id);

-- Jobs that have ended and whose consequences have not been applied, or whose last attempt may still run: few.
CREATE INDEX scheduled_jobs_ended
    ON {schema}scheduled_jobs (job_id)
    WHERE finished_at IS NOT NULL AND on_end IS NOT NULL;
