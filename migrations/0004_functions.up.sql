-- expand
-- Correct the functions for triggers, psql and programs in other languages.

-- Add a job with the rights of the caller. The keys of "options" may grow; the signatures never change. The job that has
-- the key may end between the statements that meet it, so they are repeated.
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
    kept_for CONSTANT double precision := options ->> 'keep_result';
    wrong text;
    holder text;
    data jsonb;
    rank integer;
    timeout CONSTANT double precision := CASE WHEN options ? 'timeout' THEN options ->> 'timeout' ELSE '3600' END;
    is_added boolean;
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
        WHEN NOT (timeout > 0 AND timeout < 'Infinity') THEN 'timeout must be a number of seconds above 0, or null'
        WHEN NOT (kept_for > 0 AND kept_for < 'Infinity') THEN 'keep_result must be a number of seconds above 0'
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
    data := jsonb_build_object('args', args, 'kwargs', kwargs);
    IF options -> 'metadata' <> '{}' THEN
        data := data || jsonb_build_object('metadata', options -> 'metadata');
    END IF;
    rank := CASE lower(coalesce(options ->> 'priority', 'normal'))
        WHEN 'critical' THEN 1 WHEN 'high' THEN 3 WHEN 'normal' THEN 5 WHEN 'low' THEN 8
        ELSE (options ->> 'priority')::integer END;
    FOR round IN 1..10 LOOP
        -- The role of an enqueuer may insert the columns of plain jobs only, so these are named without the others.
        IF key IS NULL AND kept_for IS NULL THEN
            INSERT INTO {schema}scheduled_jobs (
                job_id, job_name, execution_time, task_data, priority, max_retries, misfire_grace_time, expires_at,
                timeout_seconds
            ) VALUES (
                job_id, name, execution_time, data, rank, coalesce((options ->> 'max_retries')::integer, 0), grace,
                execution_time + make_interval(secs => grace), timeout
            )
            ON CONFLICT DO NOTHING;
        ELSE
            INSERT INTO {schema}scheduled_jobs (
                job_id, job_name, execution_time, task_data, priority, max_retries, misfire_grace_time, expires_at,
                timeout_seconds, unique_key, options
            ) VALUES (
                job_id, name, execution_time, data, rank, coalesce((options ->> 'max_retries')::integer, 0), grace,
                execution_time + make_interval(secs => grace), timeout, key,
                CASE WHEN kept_for IS NOT NULL THEN jsonb_build_object('keep_result', kept_for) END
            )
            ON CONFLICT DO NOTHING;
        END IF;
        is_added := FOUND;
        EXIT WHEN is_added;
        IF key IS NOT NULL THEN
            holder := (
                SELECT job.job_id FROM {schema}scheduled_jobs AS job
                WHERE job.unique_key = key AND job.finished_at IS NULL
            );
        END IF;
        holder := coalesce(holder, (SELECT job.job_id FROM {schema}scheduled_jobs AS job WHERE job.job_id = job_id));
        EXIT WHEN holder IS NOT NULL;
    END LOOP;
    IF is_added THEN
        IF execution_time <= statement_timestamp() + interval '1 minute' THEN
            PERFORM pg_notify('pg_scheduler_' || md5(namespace.nspname), 'due  ' || extract(epoch FROM execution_time))
            FROM pg_class AS class
            JOIN pg_namespace AS namespace ON namespace.oid = class.relnamespace
            WHERE class.oid = $table${schema}scheduled_jobs$table$::regclass;
        END IF;
    ELSIF mode = 'ignore' AND holder IS NOT NULL THEN
        RETURN holder;
    ELSE
        RAISE EXCEPTION 'a job with the id % or its unique key exists', quote_literal(job_id)
            USING ERRCODE = 'unique_violation', HINT = 'Pass another id, or the option "on_conflict": "ignore".';
    END IF;
    RETURN job_id;
END
$add_job$;

-- Cancel a pending or running job by the rules of Scheduler.cancel_job(). A scan applies the consequences of its end: the
-- commit asks for it, unless they wait for the end of the attempt. The lock is not that of a deletion: a transaction that
-- adds jobs after this one holds its row FOR KEY SHARE until it commits.
CREATE OR REPLACE FUNCTION {schema}scheduler_cancel_job(job_id text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $cancel_job$
#variable_conflict use_variable
DECLARE
    old record;
    is_awaited boolean;
    consequences jsonb;
BEGIN
    -- This transaction may have added jobs after this one, which only its commit marks.
    SELECT job.status, job.worker_id, job.blocked_on, job.tableoid AS tables,
        CASE WHEN jsonb_typeof(job.options) = 'object' THEN job.options ELSE '{}' END AS options,
        CASE WHEN jsonb_typeof(job.on_end) = 'object' THEN job.on_end - 'replacement' ELSE '{}' END
            || CASE WHEN EXISTS (SELECT FROM {schema}scheduler_after AS edge WHERE edge.parent_id = job_id)
                THEN '{"child": true}' ELSE '{}'::jsonb END AS on_end
    INTO old
    FROM {schema}scheduled_jobs AS job
    WHERE job.job_id = job_id AND job.finished_at IS NULL
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    is_awaited := CASE
        WHEN old.status = 'running' AND (old.on_end <> '{}' OR old.options ? 'schedule_id') THEN EXISTS (
            SELECT FROM {schema}scheduler_workers AS worker WHERE worker.worker_id = old.worker_id)
        ELSE old.blocked_on = 'after' AND old.options ? 'schedule_id' AND NOT old.options ? 'children'
    END;
    consequences := old.on_end
        || CASE WHEN old.options ? 'keep_result' THEN '{"result": true}' ELSE '{}'::jsonb END
        || CASE WHEN is_awaited THEN '{"alive": true}' ELSE '{}'::jsonb END;
    UPDATE {schema}scheduled_jobs AS job SET
        status        = 'cancelled',
        finished_at   = statement_timestamp(),
        error_message = concat_ws(
            '; ', 'cancelled by ' || session_user, 'error of the last attempt: ' || job.error_message
        ),
        lease_until   = NULL,
        blocked_on    = NULL,
        options       = CASE WHEN old.blocked_on > 'share:' OR old.blocked_on = 'after' AND NOT old.options ? 'children'
            THEN jsonb_set(old.options, '{ended}',
                CASE WHEN jsonb_typeof(old.options -> 'ended') = 'object' THEN old.options -> 'ended' ELSE '{}' END
                || jsonb_build_object('blocked_on', old.blocked_on))
            ELSE job.options END,
        on_end        = nullif(consequences, '{}'),
        errors        = CASE WHEN old.status = 'running'
            THEN coalesce(jsonb_path_query_array(job.errors, '$[last - 8 to last]'), '[]') || jsonb_build_array(
                jsonb_build_object('attempt', job.attempt, 'worker_id', job.worker_id, 'started_at', job.started_at,
                    'outcome', 'cancelled', 'ended_at', statement_timestamp()))
            ELSE job.errors END
    WHERE job.job_id = job_id;
    PERFORM pg_notify('pg_scheduler_' || md5(namespace.nspname), message)
    FROM pg_class AS class
    JOIN pg_namespace AS namespace ON namespace.oid = class.relnamespace
    CROSS JOIN (VALUES
        (CASE WHEN old.status = 'running' THEN 'check ' || old.worker_id END),
        (CASE WHEN consequences <> '{}' AND is_awaited IS NOT TRUE THEN 'ended' END)
    ) AS sent (message)
    WHERE class.oid = old.tables AND message IS NOT NULL;
    RETURN true;
END
$cancel_job$;
