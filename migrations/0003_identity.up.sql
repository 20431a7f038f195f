-- expand
-- Every table has a primary key, so that a publication of all tables rejects no statement. No key comes from a sequence,
-- whose value logical replication does not copy. And the database that the tables belong to is recorded.

-- Both ids of an edge are too long for one index, and the pair may be deleted and inserted again in one statement.
ALTER TABLE {schema}scheduler_after
    ADD COLUMN edge_id uuid NOT NULL DEFAULT gen_random_uuid() CONSTRAINT scheduler_after_pkey PRIMARY KEY;

-- Records are read in the order of their ids: the microseconds since 2020, and 12 bits that count the records of a
-- transaction from a random number on. Ids of the former sequence are smaller.
ALTER TABLE {schema}scheduler_audit
    ALTER COLUMN id DROP IDENTITY,
    ALTER COLUMN id SET DEFAULT (
        (extract(epoch FROM clock_timestamp()) * 1000000 - 1577836800000000)::bigint * 4096
        + set_config(
            'pg_scheduler.audit',
            ((coalesce(nullif(current_setting('pg_scheduler.audit', true), ''), floor(random() * 4096)::text)::integer
                + 1) % 4096)::text,
            true
        )::bigint
    );

-- The ends of the waits for a signal that have timed out before the last one of the name; NULL for none.
ALTER TABLE {schema}scheduler_steps ADD COLUMN timeouts timestamptz[];
-- An open transaction of the application must not lock a job that others wait for: another transaction adds such jobs
-- too, and the job may end meanwhile. So the commit marks the job, and notifies workers if it has ended unmarked.
CREATE OR REPLACE FUNCTION {schema}scheduler_after_mark() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $mark$
DECLARE
    has_ended boolean;
BEGIN
    EXECUTE format(
        $update$
            UPDATE %I.scheduled_jobs SET
                on_end = CASE WHEN jsonb_typeof(on_end) = 'object' THEN on_end ELSE '{}' END || '{"child": true}'
            WHERE job_id = $1 AND (on_end -> 'child') IS NULL
            RETURNING finished_at IS NOT NULL
        $update$,
        TG_TABLE_SCHEMA
    ) INTO has_ended USING NEW.parent_id;
    IF has_ended THEN
        PERFORM pg_notify('pg_scheduler_' || md5(TG_TABLE_SCHEMA), 'ended');
    END IF;
    RETURN NULL;
END
$mark$;

CREATE CONSTRAINT TRIGGER scheduler_after_mark AFTER INSERT ON {schema}scheduler_after
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {schema}scheduler_after_mark();
-- The database in which workers run these tables, in one row. A copy of it has another one: another server, by its
-- system identifier, or another database of the same server. "origin" is the transaction that wrote the record of the
-- first migration, which restored rows do not have; it decides where a role may not read the system identifier.
CREATE TABLE {schema}scheduler_database (
    id         integer PRIMARY KEY DEFAULT 1 CONSTRAINT scheduler_database_only CHECK (id = 1),
    system     text,
    database   bigint NOT NULL,
    origin     text,
    name       text NOT NULL,
    adopted_at timestamptz NOT NULL,
    adopted_by text NOT NULL
);
-- The definition of a job that a step, a signal or a passed result belongs to, and for which a step waits. REPLACE gives
-- a job another one, and deletion and a new job of the id too. Rows of older releases have none. Of edges it is empty
-- for jobs that "after=" names.

ALTER TABLE {schema}scheduler_steps ADD COLUMN definition text;

ALTER TABLE {schema}scheduler_after ADD COLUMN definition text;

-- The module of the function that declares a schedule, and since when the code of no live worker declares it, although
-- that module is imported: the function was removed. Nobody is to be woken for such a schedule. And all names of the
-- function: code that knows it by one of them finds its schedule under any key and task.

ALTER TABLE {schema}scheduler_schedules
    ADD COLUMN module text, ADD COLUMN retired_at timestamptz, ADD COLUMN names text[];

-- Cancel a pending or running job. A scan applies the consequences of its end, as after a change by hand. The lock is
-- not that of a deletion: a transaction that adds jobs after this one holds its row FOR KEY SHARE until it commits.
CREATE OR REPLACE FUNCTION {schema}scheduler_cancel_job(job_id text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $cancel_job$
#variable_conflict use_variable
DECLARE
    old record;
BEGIN
    SELECT job.status, job.worker_id, job.tableoid AS tables INTO old
    FROM {schema}scheduled_jobs AS job
    WHERE job.job_id = job_id AND job.finished_at IS NULL
    FOR NO KEY UPDATE;
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
