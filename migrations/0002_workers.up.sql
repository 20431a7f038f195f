-- One row per running worker: its lease. Claims lock it FOR KEY SHARE, the rescuer deletes it; so a
-- worker that was declared dead cannot claim, and a worker in the middle of a claim is not declared dead.

CREATE TABLE {schema}scheduler_workers (
    worker_id           text PRIMARY KEY,
    hostname            text NOT NULL,
    pid                 integer NOT NULL,
    version             text NOT NULL,
    max_concurrent_jobs integer NOT NULL,
    running_jobs        integer NOT NULL DEFAULT 0,
    started_at          timestamptz NOT NULL,
    last_beat           timestamptz NOT NULL,
    lease_until         timestamptz NOT NULL
) WITH (fillfactor = 50);
