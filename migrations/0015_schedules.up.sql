-- contract 0015
-- One row per schedule, declared in code or added by a caller. The planner of any node that knows the task and
-- the kinds of the trigger takes a due row, inserts the job of that fire time and advances the row, in one
-- transaction. "resume_from" makes the planner compute the next fire time first: the first one after it.
-- The table takes over the rows of "scheduler_periodic_jobs" with their timing.

CREATE TABLE {schema}scheduler_schedules (
    schedule_id          text PRIMARY KEY,
    owner                text NOT NULL,
    task                 text NOT NULL,
    job_name             text,
    derived_key          boolean NOT NULL DEFAULT false,
    enabled_in_code      boolean NOT NULL DEFAULT true,
    use_advisory_lock    boolean NOT NULL DEFAULT false,
    trigger              jsonb NOT NULL,
    kinds                text[] NOT NULL,
    described            text NOT NULL,
    task_data            jsonb NOT NULL,
    options              jsonb NOT NULL,
    metadata             jsonb NOT NULL,
    start_at             timestamptz,
    end_at               timestamptz,
    max_runs             bigint,
    jitter_seconds       double precision NOT NULL DEFAULT 0,
    overlap              text NOT NULL,
    catch_up             text NOT NULL,
    catch_up_limit       integer,
    catch_up_seconds     double precision,
    pause_after_failures integer,
    anchor               timestamptz NOT NULL,
    next_fire_at         timestamptz,
    resume_from          timestamptz,
    last_fire_at         timestamptz,
    last_job_id          text,
    paused_at            timestamptz,
    note                 text,
    is_broken            boolean NOT NULL DEFAULT false,
    runs                 bigint NOT NULL DEFAULT 0,
    skipped              bigint NOT NULL DEFAULT 0,
    missed               bigint NOT NULL DEFAULT 0,
    failures             bigint NOT NULL DEFAULT 0,
    created_at           timestamptz NOT NULL,
    updated_at           timestamptz NOT NULL,
    finished_at          timestamptz,
    version              bigint NOT NULL DEFAULT 1,
    CONSTRAINT scheduler_schedules_sizes
        CHECK (
            pg_catalog.char_length(schedule_id) <= 200
            AND pg_catalog.octet_length(task) <= 65536
            AND pg_catalog.octet_length(job_name) <= 65536
            AND pg_catalog.octet_length(task_data::pg_catalog.text) <= 16777216
            AND pg_catalog.octet_length(metadata::pg_catalog.text) <= 65536
        ),
    CONSTRAINT scheduler_schedules_owner_known
        CHECK (owner = ANY ('{code,api}'::pg_catalog.text[])),
    CONSTRAINT scheduler_schedules_overlap_known
        CHECK (overlap = ANY ('{allow,skip,queue_one,queue_all,cancel}'::pg_catalog.text[])),
    CONSTRAINT scheduler_schedules_catch_up_known
        CHECK (
            catch_up = ANY ('{latest,earliest,all,none}'::pg_catalog.text[])
            AND (catch_up = 'all') = (catch_up_limit IS NOT NULL)
            AND catch_up_limit > 0
            AND (catch_up <> 'all' OR overlap = ANY ('{allow,queue_all}'::pg_catalog.text[]))
        ),
    CONSTRAINT scheduler_schedules_intervals_positive
        CHECK (
            jitter_seconds >= 0 AND jitter_seconds <= 316224000
            AND (catch_up_seconds IS NULL OR catch_up_seconds >= 0 AND catch_up_seconds <= 316224000)
        ),
    CONSTRAINT scheduler_schedules_counts
        CHECK (
            max_runs > 0 AND pause_after_failures > 0
            AND runs >= 0 AND skipped >= 0 AND missed >= 0 AND failures >= 0 AND version > 0
        )
);

CREATE INDEX scheduler_schedules_due ON {schema}scheduler_schedules (next_fire_at)
    WHERE paused_at IS NULL AND next_fire_at IS NOT NULL;

INSERT INTO {schema}scheduler_schedules (
    schedule_id, owner, task, job_name, derived_key, enabled_in_code, use_advisory_lock, trigger, kinds,
    described, task_data, options, metadata, overlap, catch_up, anchor, next_fire_at, resume_from, last_fire_at,
    paused_at, created_at, updated_at
)
SELECT
    dedup_key, 'code', function, job_name, derived_key, enabled_in_code, use_advisory_lock,
    CASE WHEN cron IS NULL
        THEN pg_catalog.jsonb_build_object(
            'kind', 'every',
            'every', pg_catalog.concat('PT', pg_catalog.trim_scale(extract(epoch FROM every)), 'S'))
        ELSE pg_catalog.jsonb_build_object('kind', 'cron', 'expression', cron, 'timezone', timezone)
    END,
    CASE WHEN cron IS NULL THEN '{every}'::pg_catalog.text[] ELSE '{cron}'::pg_catalog.text[] END,
    coalesce(cron, 'every ' || every::pg_catalog.text),
    '{"args": [], "kwargs": {}}',
    pg_catalog.jsonb_build_object('priority', priority, 'max_retries', max_retries),
    '{}', 'allow', 'latest', anchor, coalesce(next_fire_at, updated_at),
    CASE WHEN next_fire_at IS NULL THEN updated_at END, last_fire_at,
    CASE WHEN NOT enabled THEN updated_at END, updated_at, updated_at
FROM {schema}scheduler_periodic_jobs
WHERE pg_catalog.char_length(dedup_key) <= 200
  AND pg_catalog.octet_length(function) <= 65536
  AND pg_catalog.octet_length(job_name) <= 65536;

DROP TABLE {schema}scheduler_periodic_jobs;
