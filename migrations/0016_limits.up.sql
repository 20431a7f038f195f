-- expand
-- The log of attempts that the limits of their tasks admitted. A limit counts its rows: those whose attempt runs,
-- and those of the last moments. Deleted with the next attempt of the key, or by a scan.

CREATE TABLE {schema}scheduler_starts (
    key text NOT NULL,
    job_id text NOT NULL,
    attempt integer NOT NULL,
    at timestamptz NOT NULL,
    keep_s double precision NOT NULL DEFAULT 0,
    CONSTRAINT scheduler_starts_pkey PRIMARY KEY (key, job_id, attempt)
);
