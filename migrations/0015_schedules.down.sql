-- The schedules declared in code become periodic jobs again, with their timing. The previous release has no
-- schedules of callers and no other triggers than intervals and cron expressions.

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

INSERT INTO {schema}scheduler_periodic_jobs
SELECT
    schedule_id, derived_key, coalesce(job_name, task), task,
    CASE WHEN kind = 'every' THEN (trigger ->> 'every')::interval END,
    CASE WHEN kind = 'cron' THEN trigger ->> 'expression' END,
    CASE WHEN kind = 'cron' THEN coalesce(trigger ->> 'timezone', 'UTC') END,
    use_advisory_lock,
    CASE WHEN options ->> 'priority' = ANY ('{1,3,5,8}'::pg_catalog.text[])
        THEN (options ->> 'priority')::integer ELSE 5 END,
    CASE WHEN options ->> 'max_retries' ~ '^[0-9]{1,9}$' THEN (options ->> 'max_retries')::integer ELSE 0 END,
    paused_at IS NULL, enabled_in_code, anchor, last_fire_at,
    CASE WHEN resume_from IS NULL THEN next_fire_at END, updated_at
FROM (SELECT *, trigger ->> 'kind' AS kind FROM {schema}scheduler_schedules) AS schedule
WHERE owner = 'code'
  AND CASE
      WHEN kind = 'every' THEN trigger ->> 'every' ~ '^P([0-9]{1,4}D)?(T([0-9]{1,5}H)?([0-9]{1,7}M)?([0-9]{1,9}([.][0-9]{1,6})?S)?)?$'
          AND trigger ->> 'every' ~ '[1-9]'
      WHEN kind = 'cron' THEN trigger ->> 'expression' IS NOT NULL
  END;

DROP TABLE {schema}scheduler_schedules;
