-- A template: the functions by which the role {grantee} adds, cancels and signals jobs of some names, with the rights
-- of the owner of the tables. Who creates them decides whose rights they have, so the first block requires the owner.
DO $owner$
BEGIN
    IF (SELECT relowner FROM pg_catalog.pg_class WHERE oid = {jobs_table}::regclass)
        <> (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user)
    THEN
        RAISE EXCEPTION 'the functions of a sender have the rights of the role that creates them, which is %',
            quote_literal(current_user)
            USING ERRCODE = 'insufficient_privilege', HINT = 'Create them as the owner of the tables.';
    END IF;
END
$owner$;

CREATE OR REPLACE FUNCTION {enqueue}(
    name           text,
    args           jsonb DEFAULT '[]',
    kwargs         jsonb DEFAULT '{}',
    execution_time timestamptz DEFAULT statement_timestamp(),
    job_id         text DEFAULT NULL,
    options        jsonb DEFAULT '{}'
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $sender$
BEGIN
    IF (name LIKE ANY ({tasks})) IS NOT TRUE THEN
        RAISE EXCEPTION 'no permission to add a job of the task %', quote_nullable(name)
            USING ERRCODE = 'insufficient_privilege', HINT = {hint};
    END IF;
    RETURN {schema}scheduler_add_job(name, args, kwargs, execution_time, job_id, options);
END
$sender$;

CREATE OR REPLACE FUNCTION {cancel}(job_id text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $sender$
#variable_conflict use_variable
BEGIN
    IF NOT EXISTS (
        SELECT FROM {schema}scheduled_jobs AS job
        WHERE job.job_id = job_id AND coalesce(job.function, job.job_name) LIKE ANY ({tasks})
    ) THEN
        RAISE EXCEPTION 'no job with the id % and a task with permission', quote_nullable(job_id)
            USING ERRCODE = 'insufficient_privilege', HINT = {hint};
    END IF;
    RETURN {schema}scheduler_cancel_job(job_id);
END
$sender$;

CREATE OR REPLACE FUNCTION {signal}(job_id text, name text, value jsonb DEFAULT 'null') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $sender$
#variable_conflict use_variable
DECLARE
    was_awaited boolean;
    reason record;
    due timestamptz;
BEGIN
    IF NOT EXISTS (
        SELECT FROM {schema}scheduled_jobs AS job
        WHERE job.job_id = job_id AND coalesce(job.function, job.job_name) LIKE ANY ({tasks})
    ) THEN
        RAISE EXCEPTION 'no job with the id % and a task with permission', quote_nullable(job_id)
            USING ERRCODE = 'insufficient_privilege', HINT = {hint};
    END IF;
    IF (name LIKE ANY ({signals})) IS NOT TRUE THEN
        RAISE EXCEPTION 'no permission to send the signal %', quote_nullable(name)
            USING ERRCODE = 'insufficient_privilege', HINT = {hint};
    END IF;
    IF octet_length(name) NOT BETWEEN 1 AND {max_name_bytes} OR left(name, 1) = chr(1) OR name ~ '^({reserved})$' THEN
        RAISE EXCEPTION 'name must have 1 to {max_name_bytes} bytes and be no reserved name, not %', quote_literal(name)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF octet_length(value::text) > {max_value_bytes} THEN
        RAISE EXCEPTION 'value has % bytes, and a signal has at most {max_value_bytes}', octet_length(value::text)
            USING ERRCODE = 'program_limit_exceeded';
    END IF;
    LOOP
        EXECUTE $statement$
{store_signal}
        $statement$ INTO was_awaited
            USING job_id, name, coalesce(value, 'null')::text, {max_signals}, {max_bytes}, NULL::timestamptz;
        EXIT WHEN was_awaited IS NOT NULL;
        EXECUTE $statement$
{find_signal}
        $statement$ INTO reason USING job_id, name, coalesce(value, 'null')::text, {max_signals}, {max_bytes};
        IF reason.has_ended IS NULL OR reason.has_ended OR reason.is_taken THEN
            RETURN false;
        END IF;
        IF NOT reason.has_room THEN
            RAISE EXCEPTION 'job % has no room for the signal %', quote_literal(job_id), quote_literal(name)
                USING ERRCODE = 'program_limit_exceeded',
                    HINT = 'A job stores at most {max_signals} signals for which it has not waited.';
        END IF;
        -- Another session has changed the job between the two statements.
    END LOOP;
    IF was_awaited THEN
        EXECUTE $statement$
{wake_signalled}
        $statement$ INTO due USING job_id, NULL::timestamptz, name;
        IF due IS NOT NULL THEN
            PERFORM pg_notify('{channel}', 'due  ' || extract(epoch FROM due));
        END IF;
    END IF;
    RETURN true;
END
$sender$;

REVOKE ALL ON FUNCTION {enqueue}, {cancel}, {signal} FROM PUBLIC;
GRANT USAGE ON SCHEMA {home} TO {grantee};
GRANT EXECUTE ON FUNCTION {enqueue}, {cancel}, {signal} TO {grantee};
