-- expand
-- Errors of jobs, counted by the statements that write them, and what pages about workflows and pauses need.

-- Failures that are not yet counted in the groups. Each row is of one statement: two workers never write the same row,
-- so that none waits for the other.
CREATE TABLE {schema}scheduler_failures (
    failure_id  uuid NOT NULL DEFAULT gen_random_uuid() CONSTRAINT scheduler_failures_pkey PRIMARY KEY,
    fingerprint text NOT NULL,
    job_name    text NOT NULL,
    text        text NOT NULL,
    status      text NOT NULL,
    jobs        integer NOT NULL,
    at          timestamptz NOT NULL,
    release     text,
    job_id      text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

-- Errors by the name of the job and the text of the error without its numbers, with all that occurred since the first.
CREATE TABLE {schema}scheduler_error_groups (
    fingerprint   text NOT NULL CONSTRAINT scheduler_error_groups_pkey PRIMARY KEY,
    job_name      text NOT NULL,
    text          text NOT NULL,
    status        text NOT NULL,
    jobs          bigint NOT NULL,
    first_at      timestamptz NOT NULL,
    first_release text,
    last_at       timestamptz NOT NULL,
    last_release  text,
    last_job_id   text NOT NULL
);

CREATE INDEX scheduler_error_groups_last ON {schema}scheduler_error_groups (last_at);

CREATE INDEX scheduler_error_groups_job ON {schema}scheduler_error_groups (job_name, last_at);

-- The jobs of a group by minute, hour and day. Each job counts in one row of each span.
CREATE TABLE {schema}scheduler_error_counts (
    fingerprint text NOT NULL,
    span        integer NOT NULL,
    bucket      timestamptz NOT NULL,
    jobs        bigint NOT NULL,
    CONSTRAINT scheduler_error_counts_pkey PRIMARY KEY (fingerprint, span, bucket)
);

CREATE INDEX scheduler_error_counts_age ON {schema}scheduler_error_counts (span, bucket);

-- What suspended jobs wait for, apart from children. A statement that reads the open steps of one job, or its open
-- children, cannot use this index: under a plan that was made for an empty table it would read those of all jobs.
CREATE INDEX scheduler_steps_open ON {schema}scheduler_steps (kind, name, job_id)
    WHERE ended_at IS NULL AND kind <> 'child';

-- Whether the jobs of a paused task do not expire during the pause, and the names of the task. The workers that know these
-- names may stop during the pause, and its jobs wait under all of them. Exact are its name, its aliases and the default
-- name of its function, as opposed to the bare name of the function.
ALTER TABLE {schema}scheduler_tasks
    ADD COLUMN suspends_expiry boolean NOT NULL DEFAULT false,
    ADD COLUMN names text[] NOT NULL DEFAULT array[]::text[],
    ADD COLUMN exact_names text[] NOT NULL DEFAULT array[]::text[];

-- The default of migration 3, with a random number that is an integer before it becomes text: extra_float_digits of a role or
-- a database can round the text of another number to 2e+03.
ALTER TABLE {schema}scheduler_audit
    ALTER COLUMN id SET DEFAULT (
        (extract(epoch FROM clock_timestamp()) * 1000000 - 1577836800000000)::bigint * 4096
        + set_config(
            'pg_scheduler.audit',
            ((coalesce(nullif(current_setting('pg_scheduler.audit', true), ''), floor(random() * 4096)::integer::text)::integer
                + 1) % 4096)::text,
            true
        )::bigint
    );
