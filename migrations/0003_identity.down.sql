-- Number the records by a sequence again, from the last one on, and drop the key of the edges and the database.

DROP TABLE {schema}scheduler_database;

ALTER TABLE {schema}scheduler_audit
    ALTER COLUMN id DROP DEFAULT,
    ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY;

SELECT setval(
    pg_get_serial_sequence($table${schema}scheduler_audit$table$, 'id'),
    coalesce((SELECT max(id) FROM {schema}scheduler_audit), 0) + 1,
    false
);

ALTER TABLE {schema}scheduler_steps DROP COLUMN timeouts;
DROP TRIGGER scheduler_after_mark ON {schema}scheduler_after;
DROP FUNCTION {schema}scheduler_after_mark();

ALTER TABLE {schema}scheduler_after DROP COLUMN edge_id;

-- Drop the definitions of jobs from their steps and edges. The mark in the rows of jobs remains.

ALTER TABLE {schema}scheduler_after DROP COLUMN definition;

ALTER TABLE {schema}scheduler_steps DROP COLUMN definition;

-- Drop what is known about functions that declared schedules.

ALTER TABLE {schema}scheduler_schedules DROP COLUMN module, DROP COLUMN retired_at, DROP COLUMN names;

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
