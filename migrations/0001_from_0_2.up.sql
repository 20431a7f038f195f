-- contract 0001
-- Create all tables. A database of pg-scheduler 0.2 has two of them with all its jobs, scheduled_jobs and
-- vacuum_stats: the statements behind CREATE TABLE IF NOT EXISTS change these until they equal new ones, column for
-- column. Workers of 0.2 must be stopped first. Its producers may insert jobs during and after the migration.

CREATE TABLE IF NOT EXISTS {schema}scheduled_jobs (
    job_id         text PRIMARY KEY DEFAULT gen_random_uuid()::text,
    job_name       text NOT NULL,
    execution_time timestamptz NOT NULL,
    status         text DEFAULT 'pending',
    task_data      jsonb,
    created_at     timestamptz DEFAULT CURRENT_TIMESTAMP,
    last_heartbeat timestamptz,
    lease_until    timestamptz,
    priority       integer DEFAULT 5,
    retry_count    integer DEFAULT 0,
    max_retries    integer DEFAULT 0,
    worker_id      text,
    error_message  text
);

DROP INDEX IF EXISTS
    {schema}idx_jobs_pending_priority,
    {schema}idx_jobs_lease_expiration,
    {schema}idx_jobs_running_heartbeat,
    {schema}idx_jobs_worker_cleanup;

-- Before the rows are written: half of each page is left free, so that every row of a page can be claimed on it.
ALTER TABLE {schema}scheduled_jobs
    SET (
        fillfactor = 45,
        autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = off
    ),
    ADD COLUMN IF NOT EXISTS misfire_grace_time integer,
    ADD COLUMN function        text,
    ADD COLUMN attempt         integer NOT NULL DEFAULT 0,
    ADD COLUMN timeout_seconds double precision DEFAULT 3600,
    ADD COLUMN lock_key        bigint,
    ADD COLUMN expires_at      timestamptz,
    ADD COLUMN started_at      timestamptz,
    ADD COLUMN finished_at     timestamptz,
    ADD COLUMN on_end          jsonb,
    ADD COLUMN crash_count     integer NOT NULL DEFAULT 0,
    ADD COLUMN blocked_on      text,
    ADD COLUMN unique_key      text,
    ADD COLUMN options         jsonb,
    ADD COLUMN progress        jsonb,
    ADD COLUMN errors          jsonb;

-- Correct the values that 0.2 allowed and the CHECKs below do not. A running job keeps its worker and its lease, after
-- whose end another worker reclaims it.
UPDATE {schema}scheduled_jobs SET
    status = CASE
        WHEN status IS NULL THEN 'pending'
        WHEN status IN ('pending', 'running', 'completed', 'failed', 'cancelled', 'expired') THEN status
        ELSE 'failed'
    END,
    execution_time = CASE execution_time
        WHEN 'infinity' THEN '9999-12-31 00:00:00+00'
        WHEN '-infinity' THEN coalesce(created_at, now())
        ELSE execution_time
    END,
    error_message = CASE
        WHEN status NOT IN ('pending', 'running', 'completed', 'failed', 'cancelled', 'expired')
        THEN 'unknown status ' || quote_literal(status) || ' met by the migration'
        ELSE error_message
    END,
    task_data   = coalesce(task_data, '{"args": [], "kwargs": {}}'),
    created_at  = coalesce(created_at, now()),
    priority    = CASE WHEN priority IN (1, 3, 5, 8) THEN priority ELSE 5 END,
    retry_count = greatest(coalesce(retry_count, 0), 0),
    max_retries = greatest(coalesce(max_retries, 0), 0),
    misfire_grace_time = CASE WHEN misfire_grace_time < 0 THEN 0 ELSE misfire_grace_time END,
    attempt     = CASE WHEN status = 'running' THEN 1 ELSE 0 END,
    worker_id   = CASE WHEN status = 'running' THEN coalesce(worker_id, 'unknown') ELSE worker_id END,
    started_at  = CASE WHEN status = 'running' THEN coalesce(last_heartbeat, now()) END,
    finished_at = CASE WHEN status NOT IN ('pending', 'running') THEN coalesce(last_heartbeat, now()) END,
    expires_at  = CASE WHEN coalesce(status, 'pending') = 'pending'
        THEN execution_time + make_interval(
            secs => CASE WHEN misfire_grace_time < 0 THEN 0 ELSE misfire_grace_time END)
    END;

-- PostgreSQL reads and plans each CHECK anew in every statement that writes a row, so they are few and short.
--
-- scheduled_jobs_payload limits the arguments to 16 MiB, as stored and also as text, which is what a claim reads: a
-- stored number takes 16 bytes and prints up to 131,072 digits, and a compressed copy from another table hides its
-- size. Up to 2,000 bytes that are not compressed cannot exceed the limit, so they are not converted. Names have up to
-- 64 KiB. A row that was claimed once is exempt, and so is a finished one, so that it can be cancelled. NOT VALID
-- leaves the rows of 0.2 unchecked until they are written.
ALTER TABLE {schema}scheduled_jobs
    ALTER COLUMN status SET NOT NULL,
    ALTER COLUMN task_data SET NOT NULL,
    ALTER COLUMN task_data SET DEFAULT '{"args": [], "kwargs": {}}',
    ALTER COLUMN created_at SET NOT NULL,
    ALTER COLUMN priority SET NOT NULL,
    ALTER COLUMN retry_count SET NOT NULL,
    ALTER COLUMN max_retries SET NOT NULL,
    ADD CONSTRAINT scheduled_jobs_states CHECK (
        CASE WHEN finished_at IS NULL
            THEN status = 'pending'
                OR status = 'running' AND blocked_on IS NULL AND worker_id IS NOT NULL AND attempt > 0
            ELSE blocked_on IS NULL AND status = ANY ('{completed,failed,cancelled,expired}'::text[])
        END),
    ADD CONSTRAINT scheduled_jobs_values CHECK (
        priority = ANY ('{1,3,5,8}'::int4[]) AND isfinite(execution_time)
        AND least(retry_count, max_retries, attempt, misfire_grace_time) >= 0 AND timeout_seconds > 0),
    ADD CONSTRAINT scheduled_jobs_payload CHECK (
        attempt > 0
        OR finished_at IS NOT NULL
        OR octet_length(job_name) <= 65536
            AND octet_length(coalesce(function, '')) <= 65536
            AND CASE
                WHEN pg_column_size(task_data) <= 2000 AND pg_column_compression(task_data) IS NULL THEN true
                ELSE pg_column_size(task_data) <= 16777216 AND octet_length(task_data::text) <= 16777216
            END
    ) NOT VALID;

-- A claim changes no column of this index, so it is a HOT update; a status or worker_id in the index would end that.
-- Ids are compared byte by byte, as the rows that a claim returns are sorted.
CREATE INDEX scheduled_jobs_claim
    ON {schema}scheduled_jobs (priority, execution_time, job_id COLLATE "C")
    WHERE finished_at IS NULL AND blocked_on IS NULL;

-- Blocked jobs have an index of their own, so that no number of them delays a claim.
CREATE INDEX scheduled_jobs_blocked
    ON {schema}scheduled_jobs (blocked_on, priority, execution_time, job_id COLLATE "C")
    WHERE blocked_on IS NOT NULL;

CREATE UNIQUE INDEX scheduled_jobs_unique
    ON {schema}scheduled_jobs (unique_key)
    WHERE unique_key IS NOT NULL AND finished_at IS NULL;

-- Jobs that have ended and whose consequences have not been applied, or whose last attempt may still run: few.
CREATE INDEX scheduled_jobs_ended
    ON {schema}scheduled_jobs (job_id)
    WHERE finished_at IS NOT NULL AND on_end IS NOT NULL;

-- No claim changes a value of this index, and no completed job is in it. On a table of more than 100,000 rows it is
-- left out, because this transaction locks the table until its end: build_indexes() builds it.
DO $index$
BEGIN
    IF (SELECT count(*) FROM (SELECT FROM {schema}scheduled_jobs LIMIT 100001) AS counted) <= 100000 THEN
        CREATE INDEX scheduled_jobs_unsuccessful
            ON {schema}scheduled_jobs (finished_at, job_id COLLATE "C")
            WHERE finished_at IS NOT NULL AND error_message IS NOT NULL;
    END IF;
END
$index$;

CREATE TABLE IF NOT EXISTS {schema}vacuum_stats (
    stat_date         date PRIMARY KEY DEFAULT CURRENT_DATE,
    deleted_completed integer DEFAULT 0,
    deleted_failed    integer DEFAULT 0,
    deleted_cancelled integer DEFAULT 0,
    last_run          timestamptz,
    worker_id         text
);

ALTER TABLE {schema}vacuum_stats
    ADD COLUMN deleted_expired integer NOT NULL DEFAULT 0;

-- One row per set of retention policies: the worker that makes their pass over the table, or made the last one. A pass
-- without an end whose worker has no row is continued by another worker.
CREATE TABLE {schema}scheduler_vacuum_passes (
    policies   text PRIMARY KEY,
    number     bigint NOT NULL DEFAULT 0,
    worker_id  text NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at   timestamptz
);

-- The ranges of blocks of scheduled_jobs, each with the earliest instant at which a job of a status in it had finished
-- when it was read. Jobs that finished later do not precede "read_at". The row whose "blocks" is NULL stands for every
-- block from its first one on: the table ended before it. A rewritten table has another file, which makes rows invalid.
CREATE TABLE {schema}scheduler_vacuum_ranges (
    first_block bigint PRIMARY KEY,
    blocks      bigint,
    file        oid NOT NULL,
    read_at     timestamptz NOT NULL,
    completed   timestamptz,
    failed      timestamptz,
    cancelled   timestamptz,
    expired     timestamptz
) WITH (fillfactor = 50);

-- One row per running worker: its lease, its process, its reports, and the requests to it. Claims lock the row FOR KEY
-- SHARE, and whoever declares the worker dead deletes it: a dead worker cannot claim, and a worker in the middle of a
-- claim is not declared dead.
CREATE TABLE {schema}scheduler_workers (
    worker_id           text PRIMARY KEY,
    hostname            text NOT NULL,
    pid                 integer NOT NULL,
    version             text NOT NULL,
    max_concurrent_jobs integer NOT NULL,
    running_jobs        integer NOT NULL DEFAULT 0,
    started_at          timestamptz NOT NULL,
    last_beat           timestamptz NOT NULL,
    lease_until         timestamptz NOT NULL,
    liveness_key        bigint,
    lease_extension     double precision,
    stopping            boolean NOT NULL DEFAULT false,
    role                text NOT NULL DEFAULT 'both',
    identity            text,
    metadata            jsonb,
    subscriptions       text[]
        CONSTRAINT scheduler_workers_subscriptions CHECK (pg_column_size(subscriptions) <= 4096),
    names               text[],
    state               text,
    health              jsonb,
    settings            jsonb,
    wanted              text,
    statistics_batch    bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- A job may wait for the end of other jobs. Each edge is deleted in the transaction that ends its parent; the child
-- may run when it has none left. Ids are too long for one index of both.
CREATE TABLE {schema}scheduler_after (
    parent_id text NOT NULL,
    child_id  text NOT NULL,
    outcome   text NOT NULL DEFAULT 'completed' CHECK (outcome = ANY ('{completed,ended}'::text[]))
);

CREATE INDEX scheduler_after_parent ON {schema}scheduler_after (parent_id);

CREATE INDEX scheduler_after_child ON {schema}scheduler_after (child_id);

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

-- One row per schedule, declared in code or added by a caller. The planner of any node that knows the task and the
-- kinds of the trigger takes a due row, inserts the job of that fire time and advances the row, in one transaction.
-- "resume_from" makes the planner compute the next fire time first: the first one after it. A paused row is due at the
-- end of its pause, which the planner ends as it advances the row.
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
    paused_until         timestamptz,
    keeps_fire_times     boolean NOT NULL DEFAULT false,
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
    CONSTRAINT scheduler_schedules_sizes CHECK (
        char_length(schedule_id) <= 200
        AND octet_length(task) <= 65536
        AND octet_length(job_name) <= 65536
        AND octet_length(task_data::text) <= 16777216
        AND octet_length(metadata::text) <= 65536),
    CONSTRAINT scheduler_schedules_owner_known CHECK (owner = ANY ('{code,api}'::text[])),
    CONSTRAINT scheduler_schedules_overlap_known CHECK (
        overlap = ANY ('{allow,skip,queue_one,queue_all,cancel}'::text[])),
    CONSTRAINT scheduler_schedules_catch_up_known CHECK (
        catch_up = ANY ('{latest,earliest,all,none}'::text[])
        AND (catch_up = 'all') = (catch_up_limit IS NOT NULL)
        AND catch_up_limit > 0
        AND (catch_up <> 'all' OR overlap = ANY ('{allow,queue_all}'::text[]))),
    CONSTRAINT scheduler_schedules_intervals_positive CHECK (
        jitter_seconds >= 0 AND jitter_seconds <= 316224000
        AND (catch_up_seconds IS NULL OR catch_up_seconds >= 0 AND catch_up_seconds <= 316224000)),
    CONSTRAINT scheduler_schedules_pause CHECK (paused_at IS NOT NULL OR paused_until IS NULL),
    CONSTRAINT scheduler_schedules_counts CHECK (
        max_runs > 0 AND pause_after_failures > 0
        AND runs >= 0 AND skipped >= 0 AND missed >= 0 AND failures >= 0 AND version > 0)
);

CREATE INDEX scheduler_schedules_due ON {schema}scheduler_schedules (coalesce(paused_until, next_fire_at))
    WHERE (paused_at IS NULL OR paused_until IS NOT NULL) AND coalesce(paused_until, next_fire_at) IS NOT NULL;

-- The log of attempts that the limits of their tasks admitted. A limit counts its rows: those whose attempt runs,
-- and those of the last moments. Deleted with the next attempt of the key, or by a scan.
CREATE TABLE {schema}scheduler_starts (
    key     text NOT NULL,
    job_id  text NOT NULL,
    attempt integer NOT NULL,
    at      timestamptz NOT NULL,
    keep_s  double precision NOT NULL DEFAULT 0,
    CONSTRAINT scheduler_starts_pkey PRIMARY KEY (key, job_id, attempt)
);

-- The paused tasks. A task without a row, or whose pause has ended, is not paused.
CREATE TABLE {schema}scheduler_tasks (
    name         text PRIMARY KEY CONSTRAINT scheduler_tasks_name CHECK (octet_length(name) <= 2000),
    paused_at    timestamptz NOT NULL,
    paused_until timestamptz,
    note         text,
    actor        text NOT NULL
);

-- Statistics of attempts by task: outcomes, durations and lateness in the "span" seconds from "bucket" on. The arrays
-- add up element by element; a later release may append elements.
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
    job_name   text PRIMARY KEY CONSTRAINT scheduler_totals_name CHECK (octet_length(job_name) <= 2000),
    counts     bigint[] NOT NULL,
    sums       double precision[] NOT NULL,
    run_hist   bigint[] NOT NULL,
    late_hist  bigint[] NOT NULL,
    updated_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- The actions of people.
CREATE TABLE {schema}scheduler_audit (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL,
    actor   text NOT NULL,
    via     text NOT NULL,
    action  text NOT NULL,
    subject text CONSTRAINT scheduler_audit_subject CHECK (octet_length(subject) <= 2000),
    details jsonb
);

CREATE INDEX scheduler_audit_time ON {schema}scheduler_audit (at);

CREATE INDEX scheduler_audit_subjects ON {schema}scheduler_audit (subject, id);

CREATE UNIQUE INDEX scheduler_audit_releases ON {schema}scheduler_audit (subject) WHERE action = 'start_release';

-- How far each bulk run is, written in the transaction of each batch. "begun" counts its starts and resumptions. A run
-- without "jobs" belongs to a caller, which continues it by itself.
CREATE TABLE {schema}scheduler_bulk_runs (
    run_id         text PRIMARY KEY CONSTRAINT scheduler_bulk_runs_id CHECK (octet_length(run_id) <= 2000),
    jobs           jsonb,
    created_at     timestamptz NOT NULL,
    created_by     text NOT NULL,
    begun          bigint NOT NULL DEFAULT 0,
    started_at     timestamptz NOT NULL,
    actor          text NOT NULL,
    phase          text NOT NULL DEFAULT 'running'
        CONSTRAINT scheduler_bulk_runs_phase CHECK (phase = ANY ('{running,stopping,stopped,complete}'::text[])),
    last_at        timestamptz NOT NULL,
    answered_at    timestamptz NOT NULL,
    batches        bigint NOT NULL DEFAULT 0,
    cursor         text,
    done           bigint NOT NULL DEFAULT 0,
    searched       bigint NOT NULL DEFAULT 0,
    total_estimate bigint,
    error          text
);

CREATE INDEX scheduler_bulk_runs_created ON {schema}scheduler_bulk_runs (created_at);

-- Jobs for triggers, psql and programs in other languages, with the rights of the caller. The keys of "options" may
-- grow; the signatures never change.
CREATE OR REPLACE FUNCTION {schema}scheduler_add_job(
    name           text,
    args           jsonb DEFAULT '[]',
    kwargs         jsonb DEFAULT '{}',
    execution_time timestamptz DEFAULT statement_timestamp(),
    job_id         text DEFAULT NULL,
    options        jsonb DEFAULT '{}'
) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $add_job$
#variable_conflict use_variable
DECLARE
    known CONSTANT text[] :=
        '{priority,max_retries,misfire_grace_time,timeout,metadata,keep_result,unique,on_conflict}';
    grace CONSTANT integer := options ->> 'misfire_grace_time';
    mode  CONSTANT text := coalesce(options ->> 'on_conflict', 'raise');
    key   CONSTANT text := options ->> 'unique';
    wrong text;
    tables oid;
BEGIN
    wrong := (SELECT min(each) FROM jsonb_object_keys(options) AS each WHERE each <> ALL (known));
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'unknown option %', quote_literal(wrong)
            USING ERRCODE = '22023', HINT = 'The options are ' || array_to_string(known, ', ') || '.';
    END IF;
    wrong := CASE
        WHEN coalesce(name, '') = '' THEN 'name must be a text that is not empty'
        WHEN jsonb_typeof(args) IS DISTINCT FROM 'array' THEN 'args must be an array'
        WHEN jsonb_typeof(kwargs) IS DISTINCT FROM 'object' THEN 'kwargs must be an object'
        WHEN jsonb_typeof(options -> 'metadata') <> 'object' THEN 'metadata must be an object'
        WHEN octet_length(job_id) NOT BETWEEN 1 AND 2000 THEN 'job_id must have 1 to 2000 bytes'
        WHEN octet_length(key) NOT BETWEEN 1 AND 200 THEN 'unique must have 1 to 200 bytes'
        WHEN mode <> ALL ('{raise,ignore}')
            THEN 'on_conflict must be ''raise'' or ''ignore'', not ' || quote_literal(mode)
    END;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION '%', wrong USING ERRCODE = '22023';
    END IF;
    job_id := coalesce(job_id, encode(set_bit(set_bit(overlay(
        uuid_send(gen_random_uuid())
        PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6
    ), 52, 1), 53, 1), 'hex')::uuid::text);  -- version 7
    INSERT INTO {schema}scheduled_jobs AS job (
        job_id, job_name, execution_time, task_data, priority, max_retries, misfire_grace_time, expires_at,
        timeout_seconds, unique_key, options
    ) VALUES (
        job_id,
        name,
        execution_time,
        jsonb_build_object('args', args, 'kwargs', kwargs)
            || CASE WHEN options -> 'metadata' <> '{}' THEN jsonb_build_object('metadata', options -> 'metadata')
                ELSE '{}' END,
        CASE lower(coalesce(options ->> 'priority', 'normal'))
            WHEN 'critical' THEN 1 WHEN 'high' THEN 3 WHEN 'normal' THEN 5 WHEN 'low' THEN 8
            ELSE (options ->> 'priority')::integer END,
        coalesce((options ->> 'max_retries')::integer, 0),
        grace,
        execution_time + make_interval(secs => grace),
        CASE WHEN options ? 'timeout' THEN (options ->> 'timeout')::double precision ELSE 3600 END,
        key,
        CASE WHEN options ->> 'keep_result' IS NOT NULL
            THEN jsonb_build_object('keep_result', (options ->> 'keep_result')::double precision) END
    )
    ON CONFLICT DO NOTHING
    RETURNING job.tableoid INTO tables;
    IF tables IS NOT NULL THEN
        IF execution_time <= statement_timestamp() + interval '1 minute' THEN
            PERFORM pg_notify('pg_scheduler_' || md5(namespace.nspname), 'due  ' || extract(epoch FROM execution_time))
            FROM pg_class AS class
            JOIN pg_namespace AS namespace ON namespace.oid = class.relnamespace
            WHERE class.oid = tables;
        END IF;
    ELSIF mode = 'ignore' THEN
        job_id := coalesce((
            SELECT job.job_id
            FROM {schema}scheduled_jobs AS job
            WHERE job.unique_key = key AND job.finished_at IS NULL
        ), job_id);
    ELSE
        RAISE EXCEPTION 'a job with the id % or its unique key exists', quote_literal(job_id)
            USING ERRCODE = 'unique_violation', HINT = 'Pass another id, or the option "on_conflict": "ignore".';
    END IF;
    RETURN job_id;
END
$add_job$;

-- Cancel a pending or running job. A scan applies the consequences of its end, as after a change by hand.
CREATE OR REPLACE FUNCTION {schema}scheduler_cancel_job(job_id text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $cancel_job$
#variable_conflict use_variable
DECLARE
    old record;
BEGIN
    SELECT job.status, job.worker_id, job.tableoid AS tables INTO old
    FROM {schema}scheduled_jobs AS job
    WHERE job.job_id = job_id AND job.finished_at IS NULL
    FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE {schema}scheduled_jobs AS job SET
        status        = 'cancelled',
        finished_at   = now(),
        error_message = concat_ws(
            '; ', 'cancelled by ' || session_user, 'error of the last attempt: ' || job.error_message
        ),
        lease_until   = NULL,
        blocked_on    = NULL,
        on_end        = nullif((coalesce(job.on_end, '{}') - 'replacement')
            || CASE WHEN job.options ? 'keep_result' THEN jsonb_build_object('result', true) ELSE '{}' END, '{}')
    WHERE job.job_id = job_id;
    IF old.status = 'running' THEN
        PERFORM pg_notify('pg_scheduler_' || md5(namespace.nspname), 'check ' || old.worker_id)
        FROM pg_class AS class
        JOIN pg_namespace AS namespace ON namespace.oid = class.relnamespace
        WHERE class.oid = old.tables;
    END IF;
    RETURN true;
END
$cancel_job$;
