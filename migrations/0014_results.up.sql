-- expand
-- The results of jobs that keep them, apart from the hot table. A result outlives its job's row.

CREATE TABLE {schema}scheduler_results (
    job_id          text PRIMARY KEY,
    status          text NOT NULL,
    value           jsonb,
    no_value_reason text,
    error           jsonb,
    attempts        integer NOT NULL,
    started_at      timestamptz,
    finished_at     timestamptz NOT NULL,
    expires_at      timestamptz NOT NULL
);

CREATE INDEX scheduler_results_expiry ON {schema}scheduler_results (expires_at);
