-- expand
-- What durable jobs need besides their steps.

-- Deadlines of jobs. The deadline of a job is in its options; an entry here is how the services find the job when the
-- deadline has passed, without an index of all jobs, which plain jobs would pay for. The entry is written before the job
-- and without a unique key, so that it waits for no other transaction. One that has no unfinished job with its deadline
-- means nothing. The vacuum deletes it an hour after it was written, or a worker a minute after its deadline,
-- and after it was written: by a clock that is ahead, the deadline may have passed before the job is there.
CREATE TABLE {schema}scheduler_deadlines (
    entry_id uuid NOT NULL DEFAULT gen_random_uuid() CONSTRAINT scheduler_deadlines_pkey PRIMARY KEY,
    job_id   text NOT NULL,
    at       timestamptz NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX scheduler_deadlines_at ON {schema}scheduler_deadlines (at, job_id);

-- What jobs show while they run: values under a name, and streams.

-- Number 0 is the value that the job has published under the name, and the numbers from 1 on are the items of the stream of
-- that name. Rows count for the job that has their definition under the key "streams" of its options. Such a row is
-- written once, or replaced if it is a value, so the table needs no other index.
CREATE TABLE {schema}scheduler_streams (
    job_id     text NOT NULL,
    definition text NOT NULL,
    name       text NOT NULL,
    number     integer NOT NULL,
    value      jsonb NOT NULL,
    CONSTRAINT scheduler_streams_pkey PRIMARY KEY (job_id, definition, name, number)
);

-- The head of each sequence: the job that alone of all jobs with this key may start, or the failed one at which the
-- sequence has stopped. A job with the key that is neither finished nor blocked is the job in this row. Who changes the
-- row has locked it, so that one transaction at a time decides which job is the next head. A sequence without a head
-- needs no row.
CREATE TABLE {schema}scheduler_sequences (
    key        text NOT NULL CONSTRAINT scheduler_sequences_pkey PRIMARY KEY,
    job_id     text NOT NULL,
    stopped_at timestamptz
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
