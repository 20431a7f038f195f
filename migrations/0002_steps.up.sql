-- expand
-- The steps, signals and passed results of jobs that are marked by the key "steps" of their options. Rows of a job
-- that is not marked count for nothing.

CREATE TABLE {schema}scheduler_steps (
    job_id     text NOT NULL,
    name       text NOT NULL,
    kind       text NOT NULL,
    value      jsonb,
    attempt    integer NOT NULL,
    until      timestamptz,
    started_at timestamptz NOT NULL,
    ended_at   timestamptz,
    CONSTRAINT scheduler_steps_pkey PRIMARY KEY (job_id, name)
);

-- The instant after which the next fire time was searched, and the version of the time zone data that gave it. A node
-- with newer data searches again.
ALTER TABLE {schema}scheduler_schedules ADD COLUMN searched_from timestamptz, ADD COLUMN tzdata text;
