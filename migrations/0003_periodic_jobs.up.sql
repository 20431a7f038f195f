-- One row per @periodic function and schedule. The planner of any node takes a due row, inserts the job
-- of that window and moves next_fire_at on, in one transaction. next_fire_at NULL = to be computed.

CREATE TABLE {schema}scheduler_periodic_jobs (
    dedup_key         text PRIMARY KEY,
    derived_key       boolean NOT NULL,
    job_name          text NOT NULL,
    function          text NOT NULL,
    every             interval,
    cron              text,
    timezone          text,
    use_advisory_lock boolean NOT NULL,
    priority          integer NOT NULL,
    max_retries       integer NOT NULL,
    enabled           boolean NOT NULL,
    enabled_in_code   boolean NOT NULL,
    anchor            timestamptz NOT NULL,
    last_fire_at      timestamptz,
    next_fire_at      timestamptz,
    updated_at        timestamptz NOT NULL,
    CONSTRAINT scheduler_periodic_jobs_one_kind
        CHECK (num_nonnulls(every, cron) = 1),
    CONSTRAINT scheduler_periodic_jobs_interval_positive
        CHECK (every > interval '0'),
    CONSTRAINT scheduler_periodic_jobs_zone_goes_with_cron
        CHECK ((timezone IS NULL) = (cron IS NULL)),
    CONSTRAINT scheduler_periodic_jobs_priority_known
        CHECK (priority IN (1, 3, 5, 8)),
    CONSTRAINT scheduler_periodic_jobs_max_retries_not_negative
        CHECK (max_retries >= 0)
);
