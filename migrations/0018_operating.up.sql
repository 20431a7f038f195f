-- expand
-- What people operate the jobs with: an index of unsuccessful jobs, what a worker reports and is asked to do,
-- statistics by task, and a record of actions. Earlier releases leave the defaults.
--
-- No claim changes a value of the index, and a completed job is not in it. On a table of more than 100,000 rows the
-- index is left out, because this transaction would lock the table meanwhile: build_indexes() builds it.

DO $index$
BEGIN
    IF (SELECT count(*) FROM (SELECT FROM {schema}scheduled_jobs LIMIT 100001) AS counted) <= 100000 THEN
        CREATE INDEX IF NOT EXISTS scheduled_jobs_unsuccessful
            ON {schema}scheduled_jobs (finished_at, job_id COLLATE "C")
            WHERE finished_at IS NOT NULL AND error_message IS NOT NULL;
    END IF;
END
$index$;

ALTER TABLE {schema}scheduler_workers
    ADD COLUMN names text[],
    ADD COLUMN state text,
    ADD COLUMN health jsonb,
    ADD COLUMN settings jsonb,
    ADD COLUMN wanted text,
    ADD COLUMN statistics_batch bigint NOT NULL DEFAULT 0;

-- What ended, and how long it ran and waited, by task: a row for "span" seconds from "bucket" on. The arrays add up
-- element by element; a later release may append elements.

CREATE TABLE {schema}scheduler_stats (
    bucket    timestamptz NOT NULL,
    span      integer NOT NULL,
    job_name  text NOT NULL,
    counts    bigint[] NOT NULL,
    sums      double precision[] NOT NULL,
    run_hist  integer[] NOT NULL,
    late_hist integer[] NOT NULL,
    CONSTRAINT scheduler_stats_pkey PRIMARY KEY (span, bucket, job_name),
    CONSTRAINT scheduler_stats_values CHECK (span > 0 AND octet_length(job_name) <= 2000)
) WITH (fillfactor = 50);

CREATE TABLE {schema}scheduler_totals (
    job_name   text PRIMARY KEY
        CONSTRAINT scheduler_totals_name CHECK (octet_length(job_name) <= 2000),
    counts     bigint[] NOT NULL,
    sums       double precision[] NOT NULL,
    run_hist   bigint[] NOT NULL,
    late_hist  bigint[] NOT NULL,
    updated_at timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE {schema}scheduler_audit (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL,
    actor   text NOT NULL,
    via     text NOT NULL,
    action  text NOT NULL,
    subject text
        CONSTRAINT scheduler_audit_subject CHECK (octet_length(subject) <= 2000),
    details jsonb
);

CREATE INDEX scheduler_audit_time ON {schema}scheduler_audit (at);
CREATE INDEX scheduler_audit_subjects ON {schema}scheduler_audit (subject, id);
CREATE UNIQUE INDEX scheduler_audit_releases ON {schema}scheduler_audit (subject) WHERE action = 'start_release';
