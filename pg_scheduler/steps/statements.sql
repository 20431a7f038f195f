-- Rows of scheduler_steps count for jobs that have the mark "steps" in their options. The statement that marks a job
-- deletes the rows of an earlier job of its id, and names the definition of the job, which new rows have too. REPLACE
-- and deletion take both away. Rows of older releases name no definition, and count for that of the mark.
--
-- The names of steps and signals begin with no chr(1). With "signal:" after it, a row is a signal whose name a step has
-- taken; with "next:", a signal to the definition that waits for the end of a running attempt; with "mail:", four digits
-- and ":", the message of this number of a mailbox. A message is a signal in all but this: it may follow a timeout. With
-- "retry:", it is the failed attempts of a step that is retried. That row is open while the step is called again, until
-- its next attempt, and has ended when the step is stored or its retries are used up. Used-up retries begin again when the
-- job fails and is retried. Nodes of earlier checkouts load it under a name that no step has.
--
-- A row with "former:" and the name of a step has the ids of the children that the step had when delete_steps_from has
-- deleted it. Its kind is that of passed results, which nodes of earlier checkouts do not load either.

-- A text that distinguishes a definition of a job from all others with its id.

-- fragment: new_definition
left(gen_random_uuid()::text, 13)

-- fragment: options_object
CASE WHEN jsonb_typeof(options) = 'object' THEN options ELSE jsonb_build_object() END

-- Whether a step waits for children, whose ids are its value. Several edges are one probe.

-- fragment: awaits_children
step.kind = 'child' AND step.ended_at IS NULL AND EXISTS (
        SELECT FROM {schema}scheduler_after AS edge
        WHERE edge.child_id = step.job_id AND step.value @> to_jsonb(edge.parent_id)
        OFFSET 0
    )

-- Whether a row belongs to the definition that the row of its job has.

-- fragment: of_definition
coalesce(step.definition = (job.options ->> 'definition'), true)

-- Whose child a job is: the id of the other job, its definition, the step, and the number in gather(). If a definition
-- waits for the end of its attempt, that one decides.

-- fragment: child_mark
(CASE WHEN (child.on_end -> 'replacement') IS NOT NULL THEN child.on_end #> ARRAY ['replacement', 'options', 'child_of']
        WHEN (child.on_end #> ARRAY ['in_vain', 'attempt']) = to_jsonb(child.attempt)
            THEN child.on_end #> ARRAY ['in_vain', 'options', 'child_of']
        ELSE child.options -> 'child_of' END)

-- The rows of the step $2 of the jobs $1, of which those without the mark count for nothing.

-- fragment: named_steps
{schema}scheduler_steps AS step
    JOIN {schema}scheduled_jobs AS job ON job.job_id = step.job_id
    WHERE job.job_id = ANY ($1) AND step.job_id = ANY ($1) AND step.name = $2 AND step.kind <> 'result'
        AND (job.options -> 'steps') IS NOT NULL AND {of_definition}

-- The name of the row with the failed attempts of the step $2.

-- fragment: retry_name
concat(chr(1), 'retry:', $2::text)

-- Whether the used-up retries of a step begin again: an attempt of the job has failed since, that one or a later one, or
-- a caller has retried the job. Neither a suspension nor a crash is a failure. The options of a job with steps have the
-- last attempt that failed, since the history has only ten entries. Workers of earlier releases write only the history.

-- fragment: is_renewed
CASE WHEN step.kind = 'retry' AND step.ended_at IS NOT NULL THEN (
        SELECT coalesce((job.options -> 'retried_by_hand') >= to_jsonb(step.attempt), false)
            OR coalesce((job.options -> 'failed_in') >= to_jsonb(step.attempt), false)
            OR jsonb_path_exists(job.errors,
            '$[*] ? (@.attempt >= $first && (@.outcome == "error" || @.outcome == "timeout" || @.outcome == "refused"))',
            jsonb_build_object('first', step.attempt))
        FROM {schema}scheduled_jobs AS job
        WHERE job.job_id = step.job_id
    ) ELSE false END

-- name: load_steps
-- route: step
-- Return the steps of the job $1, if it is marked; without the results of other jobs that were passed to it.
--
-- Signals whose names steps have taken come first, under their own names.
SELECT CASE WHEN left(name, 8) = (chr(1) || 'signal:') THEN substr(name, 9) ELSE name END AS name,
    kind, value::text AS value, ended_at IS NOT NULL AS has_ended, {bounded_until} AS until,
    extract(epoch FROM {bounded_until} - coalesce($2, {now}))::double precision AS left_s,
    {awaits_children} AS is_awaited, timeouts, {is_renewed} AS is_renewed
FROM {schema}scheduler_steps AS step
WHERE job_id = $1
  AND kind <> 'result'
  AND left(name, 6) <> (chr(1) || 'next:')
  AND EXISTS (
      SELECT FROM {schema}scheduled_jobs AS job
      WHERE job.job_id = $1 AND (job.options -> 'steps') IS NOT NULL AND {of_definition}
  )
ORDER BY left(step.name, 1) <> chr(1);

-- fragment: is_replaced
-- Whether nothing of a row stays: it belongs to an earlier definition of the job, or has the failed attempts of a step,
-- which are stored anew after each of them.
((SELECT is_unmarked FROM held) OR coalesce(step.definition <> EXCLUDED.definition, false)
        OR step.kind = 'retry' AND EXCLUDED.kind = 'retry')

-- name: store_step
-- route: step
-- Store the step $4 of kind $5 with the value $6, for the attempt $3 of the job $1 that the worker $2 runs.
--
-- $7 is the version of the task. Of a step that waits, $8 is its length in seconds or $9 its end; $8 is also the time
-- until the next attempt of a step that has failed. Both are NULL for other steps. No row: the attempt does not hold its job any more. A NULL kind: the name is that of a step of another
-- kind, or $11 and the step exists: the answer to a commit was lost, which is about to succeed or has. Otherwise the
-- step as it is stored: a sleep or wait that exists keeps its end, and its value.
--
-- The lock of the job's row orders this with reclaiming, cancelling and replacing: either the step is committed first,
-- and the next attempt, claimed later, loads it; or the row has changed, and nothing is stored. The first step marks
-- the job. Older rows of its id, of a job before it, are deleted then; one of the same name is overwritten. Each step
-- is progress, which a job that kills its workers does not make, so the crashes before it do not count any more. A
-- failed attempt of a step is none. A signal for which nothing has waited makes room for a step of its name.
--
-- started_at is the order of the steps, also of those of one transaction, and if the clock was set back meanwhile: then
-- the earlier steps are set back too, with their ends and the timeouts of waits. A cursor has two places in that order:
-- it starts with its first value, and ends with its last one.
WITH held AS (
    SELECT job_id, (options -> 'steps') IS NULL AS is_unmarked,
        coalesce(options -> 'steps', '0') = '0' AS lacks_version, crash_count > 0 AS has_crashed,
        CASE WHEN coalesce(options -> 'steps', '0') = '0' THEN coalesce(options ->> 'definition', {new_definition})
            ELSE options ->> 'definition' END AS definition
    FROM {schema}scheduled_jobs
    WHERE job_id = $1 AND worker_id = $2 AND attempt = $3 AND status = 'running'{within_lock_limit}
    FOR NO KEY UPDATE
),
marked AS (
    UPDATE {schema}scheduled_jobs AS job SET
        options            = CASE WHEN held.lacks_version
            THEN {options_object} || jsonb_build_object('steps', $7::integer, 'definition', held.definition)
            ELSE options END,
        misfire_grace_time = NULL,
        expires_at         = NULL,
        crash_count        = CASE WHEN $5 = 'retry' THEN crash_count ELSE 0 END
    FROM held
    WHERE job.job_id = $1 AND job.job_id = held.job_id AND (held.lacks_version OR held.has_crashed AND $5 <> 'retry')
),
stale AS (
    DELETE FROM {schema}scheduler_steps
    WHERE job_id = (SELECT job_id FROM held WHERE is_unmarked) AND name <> $4
),
displaced AS (
    DELETE FROM {schema}scheduler_steps
    WHERE job_id = (SELECT job_id FROM held WHERE NOT is_unmarked) AND name = $4
      AND kind = 'signal' AND until IS NULL AND $5 <> 'signal'
    RETURNING job_id, name, kind, value, attempt, started_at, ended_at, definition
),
kept AS (
    INSERT INTO {schema}scheduler_steps (job_id, name, kind, value, attempt, started_at, ended_at, definition)
    SELECT job_id, concat(chr(1), 'signal:', name), kind, value, attempt, started_at, ended_at, definition FROM displaced
    ON CONFLICT (job_id, name) DO NOTHING
),
newest AS (
    SELECT max({last_write}) AS written_at FROM {schema}scheduler_steps AS step
    WHERE job_id = $1 AND kind <> 'result' AND {last_write} >= coalesce($10, {now}) AND {last_write} < {last_day}
),
early AS (
    SELECT newest.written_at - coalesce($10, {now}) + interval '1 microsecond' AS ahead, coalesce($10, {now}) AS now
    FROM held, newest
    WHERE newest.written_at > (coalesce($10, {now}) + interval '5 seconds')
),
set_back AS (
    UPDATE {schema}scheduler_steps AS step SET
        {times_set_back}
    FROM early
    WHERE step.job_id = $1 AND step.name <> $4 AND step.kind <> 'result'
      AND {last_write} > early.now AND {last_write} < {last_day}
),
stored AS (
    INSERT INTO {schema}scheduler_steps AS step (
        job_id, name, kind, value, attempt, until, started_at, ended_at, definition
    )
    SELECT job_id, $4, $5, $6::text::jsonb, $3, at.until, at.started,
        CASE WHEN at.until > at.now THEN NULL ELSE at.started END, held.definition
    FROM held, (
        SELECT coalesce($10, {now}) AS now,
            greatest(coalesce($10, {now}), (
                SELECT written_at + interval '1 microsecond' FROM newest WHERE NOT EXISTS (SELECT FROM early)
            )) AS started,
            coalesce($9::timestamptz, coalesce($10, {now}) + make_interval(secs => $8)) AS until
    ) AS at
    WHERE (SELECT count(*) FROM displaced) >= 0
    ON CONFLICT (job_id, name) DO UPDATE SET
        kind       = EXCLUDED.kind,
        attempt    = EXCLUDED.attempt,
        definition = EXCLUDED.definition,
        value      = CASE WHEN EXCLUDED.until IS NULL OR EXCLUDED.kind = 'child' OR {is_replaced}
            THEN EXCLUDED.value ELSE step.value END,
        until      = CASE WHEN {is_replaced} THEN EXCLUDED.until ELSE step.until END,
        started_at = CASE WHEN {is_replaced} THEN EXCLUDED.started_at ELSE step.started_at - coalesce((
            SELECT ahead FROM early WHERE step.kind = 'cursor' AND step.started_at > early.now
        ), interval '0 seconds') END,
        ended_at   = CASE WHEN {is_replaced} OR step.kind = 'cursor' THEN EXCLUDED.ended_at ELSE step.ended_at END,
        timeouts   = CASE WHEN {is_replaced} THEN NULL ELSE step.timeouts END
    WHERE (step.kind = EXCLUDED.kind AND NOT $11::boolean) OR {is_replaced}
    RETURNING kind, value, until, ended_at
)
SELECT $4::text AS name, kind, value::text AS value, ended_at IS NOT NULL AS has_ended, {bounded_until} AS until,
    extract(epoch FROM {bounded_until} - coalesce($10, {now}))::double precision AS left_s
FROM held LEFT JOIN stored ON true;

-- name: end_step
-- route: step
-- End the sleep or wait $4 of the job $1, for its attempt $3 on the worker $2; return whether it had not ended before.
--
-- $4 may be the row with the failed attempts of a step, too. No row: the attempt does not hold its job any more.
WITH held AS (
    SELECT job_id
    FROM {schema}scheduled_jobs
    WHERE job_id = $1 AND worker_id = $2 AND attempt = $3 AND status = 'running'{within_lock_limit}
    FOR NO KEY UPDATE
),
ended AS (
    UPDATE {schema}scheduler_steps SET ended_at = coalesce($5, {now})
    WHERE job_id = (SELECT job_id FROM held) AND name = $4 AND ended_at IS NULL
    RETURNING name
)
SELECT EXISTS (SELECT FROM ended) AS was_open FROM held;

-- name: repeat_wait
-- route: step
-- Let the wait $4 of the job $1 begin again, for its attempt $3 on the worker $2: after its timeout, or with another end.
--
-- It has timed out $5 times. $6 is its length in seconds or $7 its end. From now on it accepts a signal again. No row:
-- the attempt does not hold its job any more.
WITH held AS (
    SELECT job_id
    FROM {schema}scheduled_jobs
    WHERE job_id = $1 AND worker_id = $2 AND attempt = $3 AND status = 'running'{within_lock_limit}
    FOR NO KEY UPDATE
),
repeated AS (
    UPDATE {schema}scheduler_steps AS step SET
        timeouts = CASE WHEN step.ended_at IS NULL THEN step.timeouts
            ELSE array_append(step.timeouts, {bounded_until}) END,
        attempt  = $3,
        until    = at.ending,
        ended_at = CASE WHEN at.ending > at.now THEN NULL ELSE at.now END
    FROM held, (
        SELECT coalesce($8, {now}) AS now,
            coalesce($7::timestamptz, coalesce($8, {now}) + make_interval(secs => $6)) AS ending
    ) AS at
    WHERE step.job_id = held.job_id
      AND step.name = $4
      AND step.kind = 'signal'
      AND step.value IS NULL
      AND coalesce(cardinality(step.timeouts), 0)
          = (CASE WHEN step.ended_at IS NULL THEN $5::integer ELSE $5::integer - 1 END)
)
SELECT true AS is_held FROM held;

-- name: is_locked_by
-- route: step
-- Return whether the transaction $2 lasts, and the row of the job $1 is locked.
WITH free AS (
    SELECT FROM {schema}scheduled_jobs WHERE job_id = $1 FOR NO KEY UPDATE SKIP LOCKED
)
SELECT coalesce(txid_status($2::bigint) = 'in progress', false) AND NOT EXISTS (SELECT FROM free);

-- name: has_rolled_back
-- route: step
-- Return whether the transaction $1 was rolled back. A server that has taken over may not know it.
SELECT CASE WHEN $1::bigint < txid_snapshot_xmax(txid_current_snapshot()) THEN txid_status($1) = 'aborted' END IS TRUE
    AS has_rolled_back;

-- name: delete_steps_from
-- route: caller
-- Delete the step $2 of jobs ($1) that retry_job has made pending, and the later ones; return the jobs that had it.
--
-- Of steps of one instant, such as two that ran at once, all are later. A cursor is later if its last value is: the
-- value that it had before the step is not stored any more. Signals that have come stay, unless $2 names one: their
-- senders do not repeat them. The first wait gets them then. The edges of steps that go are deleted, but those of other
-- open steps stay, and those to jobs that a cancelled job waits for before it runs. The results of children stay too.
-- Those of children that were retried since replace them now. The ids of children are kept, so that their family is found
-- before the job comes to the step again: together with those of earlier deletions, since the step may have had others.
--
-- A wait that was repeated has one row, which began before the step if its first wait did. Its timeouts after the
-- beginning of the step are forgotten, and the last wait before the step has timed out again. If none had, the wait lasts
-- without a timeout, and begins again when the job waits with one.
--
-- The failed attempts of a step that goes are older than it, and go with it: its retries begin again.
--
-- If no step is left that the job itself has stored, the next one stores the version that the task has then.
WITH first AS (
    SELECT step.job_id, step.started_at
    FROM {named_steps}
),
deleted AS (
    DELETE FROM {schema}scheduler_steps AS step
    USING first
    WHERE step.job_id = ANY ($1)
      AND step.job_id = first.job_id
      AND (step.name = ANY (ARRAY [$2, {retry_name}]) OR {last_write} >= first.started_at
           AND step.kind <> 'result' AND NOT (step.kind = 'signal' AND step.value IS NOT NULL))
    RETURNING step.job_id, step.name, step.kind, step.value, step.started_at, step.definition
),
remembered AS (
    INSERT INTO {schema}scheduler_steps AS former (
        job_id, name, kind, value, attempt, started_at, ended_at, definition
    )
    SELECT job_id, concat(chr(1), 'former:', name), 'result', jsonb_build_array() || value, 0, started_at, started_at,
        definition
    FROM deleted
    WHERE kind = 'child'
    ON CONFLICT (job_id, name) DO UPDATE SET
        value      = CASE WHEN former.definition = EXCLUDED.definition THEN (
            SELECT jsonb_agg(DISTINCT child.id) FROM jsonb_array_elements(former.value || EXCLUDED.value) AS child (id)
        ) ELSE EXCLUDED.value END,
        definition = EXCLUDED.definition
),
freed AS (
    DELETE FROM {schema}scheduler_after AS edge
    WHERE child_id = ANY (ARRAY (SELECT job_id FROM first))
      AND {is_of_step}
      AND NOT EXISTS (
          SELECT FROM {schema}scheduler_steps AS step
          WHERE step.job_id = edge.child_id AND step.kind = 'child' AND step.ended_at IS NULL
            AND step.value @> to_jsonb(edge.parent_id)
            AND NOT EXISTS (SELECT FROM deleted WHERE deleted.job_id = step.job_id AND deleted.name = step.name)
          OFFSET 0
      )
),
kept AS (
    DELETE FROM {schema}scheduler_steps AS passed
    USING deleted
    WHERE passed.job_id = ANY ($1)
      AND passed.job_id = deleted.job_id
      AND deleted.kind = 'child'
      AND passed.kind = 'result'
      AND left(passed.name, 70) = concat('kept:', encode(sha256(convert_to(deleted.name, 'UTF8')), 'hex'), ':')
),
newer AS (
    DELETE FROM {schema}scheduler_steps AS passed
    USING deleted
    WHERE passed.job_id = ANY ($1)
      AND passed.job_id = deleted.job_id
      AND deleted.kind = 'child'
      AND passed.kind = 'result'
      AND left(passed.name, 6) = 'again:'
      AND (passed.value ->> 'step') = deleted.name
    RETURNING passed.job_id, passed.name, passed.kind, passed.value, passed.attempt, passed.started_at, passed.ended_at,
        passed.definition
),
replaced AS (
    INSERT INTO {schema}scheduler_steps (job_id, name, kind, value, attempt, started_at, ended_at, definition)
    SELECT job_id, 'child:' || substr(name, 7), kind, value, attempt, started_at, ended_at, definition FROM newer
    ON CONFLICT (job_id, name) DO UPDATE SET
        kind = EXCLUDED.kind, value = EXCLUDED.value, started_at = EXCLUDED.started_at, ended_at = EXCLUDED.ended_at,
        definition = EXCLUDED.definition
),
repeated AS (
    SELECT step.job_id, step.name, first.started_at, earlier.timeouts, earlier.last_end
    FROM first
    JOIN {schema}scheduler_steps AS step ON step.job_id = first.job_id
    CROSS JOIN LATERAL (
        SELECT count(*) AS timeouts, max(timeout.at) AS last_end
        FROM unnest(step.timeouts) AS timeout (at)
        WHERE timeout.at <= first.started_at
    ) AS earlier
    WHERE step.job_id = ANY ($1) AND step.name <> $2 AND step.kind = 'signal' AND step.started_at < first.started_at
),
shortened AS (
    UPDATE {schema}scheduler_steps AS step SET
        timeouts = ARRAY (
            SELECT timeout.at FROM unnest(step.timeouts) WITH ORDINALITY AS timeout (at, number)
            WHERE CASE WHEN step.value IS NULL THEN timeout.number < repeated.timeouts
                ELSE timeout.number <= repeated.timeouts END
            ORDER BY timeout.number
        ),
        until    = CASE WHEN step.value IS NULL THEN coalesce(repeated.last_end, {no_timeout}) ELSE step.until END,
        ended_at = CASE WHEN step.value IS NULL THEN repeated.last_end ELSE step.ended_at END
    FROM repeated
    WHERE step.job_id = ANY ($1)
      AND step.job_id = repeated.job_id
      AND step.name = repeated.name
      AND CASE WHEN step.value IS NULL THEN step.until > repeated.started_at ELSE step.timeouts IS NOT NULL END
),
forgotten AS (
    UPDATE {schema}scheduler_steps AS step SET timeouts = NULL
    FROM first
    WHERE step.job_id = ANY ($1)
      AND step.job_id = first.job_id
      AND step.name <> $2
      AND step.started_at >= first.started_at
      AND step.kind = 'signal'
      AND step.value IS NOT NULL
      AND step.timeouts IS NOT NULL
),
unversioned AS (
    UPDATE {schema}scheduled_jobs AS job SET options = {options_object} || jsonb_build_object('steps', 0)
    FROM first
    WHERE job.job_id = ANY ($1)
      AND job.job_id = first.job_id
      AND NOT EXISTS (
          SELECT FROM {schema}scheduler_steps AS step
          WHERE step.job_id = first.job_id AND step.name <> ALL (ARRAY [$2, {retry_name}]) AND step.kind <> 'result'
            AND {last_write} < first.started_at AND NOT (step.kind = 'signal' AND step.until IS NULL)
          OFFSET 0
      )
)
SELECT job_id FROM first;

-- name: find_steps
-- route: caller
-- Return those of the jobs $1 that have stored the step $2.
SELECT step.job_id FROM {named_steps};

-- fragment: coming_options
-- The options of the definition that a job has next: that which waits for the end of its attempt, or its own.
(CASE WHEN {has_no_coming_definition} THEN job.options ELSE ({coming_definition}) -> 'options' END)

-- fragment: coming_name
(CASE WHEN {has_no_coming_definition} THEN $2::text ELSE concat(chr(1), 'next:', $2::text) END)

-- Whether the signal $2 is a message of a mailbox.

-- fragment: is_message
(left($2::text, 6) = concat(chr(1), 'mail:'))

-- Whether a job may have one more signal: it waits for that, or has less than $4 for which nothing waited, with $5 bytes
-- at most. Steps are not counted, and neither are messages for signals that are none, or the other way round.

-- fragment: has_room_for_signal
(
        SELECT count(*) FILTER (WHERE step.value IS NULL) > 0
            OR count(*) FILTER (WHERE step.until IS NULL AND step.name <> {coming_name}) < $4::bigint
            AND coalesce(sum(pg_column_size(value)) FILTER (WHERE step.until IS NULL AND step.name <> {coming_name}), 0)
                + octet_length($3::text) <= $5::bigint
        FROM {schema}scheduler_steps AS step
        WHERE step.job_id = $1 AND step.kind = 'signal'
          AND (step.until IS NULL OR step.name = {coming_name})
          AND {is_message} = (left(step.name, 6) = concat(chr(1), 'mail:')
              OR left(step.name, 12) = concat(chr(1), 'next:', chr(1), 'mail:'))
          AND coalesce(step.definition = ({coming_options} ->> 'definition'), true)
    )

-- Whether the job has the signal $2 already, or a step of that name, or its wait has timed out and it is no message.

-- fragment: has_signal
EXISTS (
        SELECT FROM {schema}scheduler_steps AS step
        WHERE step.job_id = $1
          AND (step.name = {coming_name} AND (step.kind <> 'signal' OR step.ended_at IS NOT NULL)
               AND NOT ({is_message} AND step.value IS NULL)
               OR {has_no_coming_definition} AND step.name = concat(chr(1), 'signal:', $2::text))
          AND coalesce(step.definition = ({coming_options} ->> 'definition'), true)
    )

-- name: store_signal
-- route: caller
-- Store the value $3 of the signal $2 for an unfinished job ($1); return whether a wait for it is stored, or no row.
--
-- If a definition waits for the end of the running attempt, the signal is for that one. Such a signal, and one to a job
-- that is not marked, locks the row of the job until the commit. find_signal has the reason for no row, but for one:
-- another session has changed the row of the job or of the signal meanwhile, which this snapshot lacks.
--
-- A message may follow a timeout of its wait. The row keeps that timeout then, so that later attempts time out again
-- where the one before did, and get the message in the wait that follows.
WITH fresh AS MATERIALIZED (
    SELECT {new_definition} AS definition, {new_definition} AS coming_definition
),
marked AS (
    UPDATE {schema}scheduled_jobs AS job SET
        options = CASE WHEN (options -> 'steps') IS NULL
            THEN {options_object} || jsonb_build_object('steps', 0, 'definition', fresh.definition) ELSE options END,
        on_end  = CASE WHEN {has_no_coming_definition} OR (({coming_definition}) #> ARRAY ['options', 'steps']) IS NOT NULL
                THEN on_end
            ELSE jsonb_set(on_end,
                ARRAY [CASE WHEN (on_end -> 'replacement') IS NULL THEN 'in_vain' ELSE 'replacement' END, 'options'],
                CASE WHEN jsonb_typeof(({coming_definition}) -> 'options') = 'object'
                    THEN ({coming_definition}) -> 'options' ELSE jsonb_build_object() END
                || jsonb_build_object('steps', 0, 'definition', fresh.coming_definition)) END
    FROM fresh
    WHERE job_id = $1
      AND finished_at IS NULL
      AND ((options -> 'steps') IS NULL OR ({coming_options} -> 'steps') IS NULL)
    RETURNING job_id, attempt, {coming_name} AS name, {coming_options} ->> 'definition' AS definition,
        coalesce((options ->> 'definition') = fresh.definition, false) AS was_unmarked
),
stale AS (
    DELETE FROM {schema}scheduler_steps AS step
    USING marked
    WHERE step.job_id = $1
      AND step.job_id = marked.job_id
      AND step.name <> marked.name
      AND (marked.was_unmarked
           OR step.kind = 'result' AND left(step.name, 5) = 'next:'
           OR left(step.name, 6) = (chr(1) || 'next:'))
),
awaiting AS (
    SELECT job_id, attempt, {coming_name} AS name, {coming_options} ->> 'definition' AS definition
    FROM {schema}scheduled_jobs AS job
    WHERE job_id = $1 AND finished_at IS NULL AND ({coming_definition}) IS NOT NULL
      AND (options -> 'steps') IS NOT NULL AND ({coming_options} -> 'steps') IS NOT NULL
      AND {has_room_for_signal}
    FOR NO KEY UPDATE
),
job AS (
    SELECT job_id, attempt, name, definition FROM marked
    UNION ALL
    SELECT job_id, attempt, name, definition FROM awaiting
    UNION ALL
    SELECT job_id, attempt, $2::text, options ->> 'definition'
    FROM {schema}scheduled_jobs AS job
    WHERE job_id = $1 AND finished_at IS NULL AND {has_no_coming_definition} AND (options -> 'steps') IS NOT NULL
      AND {has_room_for_signal} AND NOT {has_signal}
)
INSERT INTO {schema}scheduler_steps AS step (job_id, name, kind, value, attempt, started_at, ended_at, definition)
SELECT job_id, name, 'signal', ($3::text)::jsonb, attempt, coalesce($6, {now}), coalesce($6, {now}), definition
FROM job
ON CONFLICT (job_id, name) DO UPDATE SET
    kind       = EXCLUDED.kind,
    value      = EXCLUDED.value,
    until      = CASE WHEN {is_stale} THEN EXCLUDED.until ELSE step.until END,
    started_at = CASE WHEN {is_stale} THEN EXCLUDED.started_at ELSE step.started_at END,
    ended_at   = EXCLUDED.ended_at,
    definition = EXCLUDED.definition,
    timeouts   = CASE WHEN {is_stale} THEN NULL
        WHEN step.ended_at IS NULL THEN step.timeouts
        ELSE array_append(step.timeouts, (SELECT {bounded_until} FROM (SELECT step.until) AS wait)) END
WHERE step.kind = 'signal' AND (step.ended_at IS NULL OR {is_message} AND step.value IS NULL) OR {is_stale}
RETURNING until IS NOT NULL AS was_awaited;

-- fragment: is_stale
(EXISTS (SELECT FROM marked) OR coalesce(step.definition <> EXCLUDED.definition, false))

-- name: next_message
-- route: caller
-- Return the number of the next message to the mailbox $2 of the job $1; no row if there is no such job.
--
-- Two sessions may get the same number. The key of the table lets one of them store it, after the commit of the other or
-- instead of it, so the numbers have the order of the commits, and no gaps. A broadcast leaves none either: an
-- attempt waits for one message of a mailbox at a time, after it has received all that have lower numbers.
SELECT (
    SELECT coalesce(max(substr(step.name, length(mailbox.prefix) + 1, 4)), '0')::integer + 1
    FROM {schema}scheduler_steps AS step
    WHERE step.job_id = $1
      AND step.kind = 'signal'
      AND step.value IS NOT NULL
      AND left(step.name, length(mailbox.prefix)) = mailbox.prefix
      AND substr(step.name, length(mailbox.prefix) + 1, 4) ~ '^[0-9][0-9][0-9][0-9]$'
      AND substr(step.name, length(mailbox.prefix) + 5) = concat(':', $2::text)
      AND ({coming_options} -> 'steps') IS NOT NULL
      AND coalesce(step.definition = ({coming_options} ->> 'definition'), true)
) AS number
FROM {schema}scheduled_jobs AS job
CROSS JOIN LATERAL (
    SELECT concat(CASE WHEN {has_no_coming_definition} THEN '' ELSE concat(chr(1), 'next:') END, chr(1), 'mail:') AS prefix
) AS mailbox
WHERE job.job_id = $1;

-- name: find_signal
-- route: caller
-- Return why store_signal stored no signal $2 for a job ($1): no row if there is no such job.
SELECT finished_at IS NOT NULL AS has_ended,
    ({coming_options} -> 'steps') IS NULL OR {has_room_for_signal} AS has_room,
    ({coming_options} -> 'steps') IS NOT NULL AND {has_signal} AS is_taken
FROM {schema}scheduled_jobs AS job
WHERE job_id = $1;

-- name: wake_signalled
-- route: caller
-- Make a suspended job ($1) due now whose wait store_signal has ended, and return when that is.
--
-- A statement of its own: store_signal may have waited for look_at_waits, and its snapshot lacks that suspension.
-- A job that waits for its retry, or for a time that a caller has chosen before it began, stays due at that time.
UPDATE {schema}scheduled_jobs AS job SET execution_time = coalesce($2, {now}), last_heartbeat = coalesce($2, {now})
WHERE job_id = $1 AND status = 'pending' AND blocked_on IS NULL AND execution_time > coalesce($2, {now})
  AND (({suspension}) @> to_jsonb($3::text) OR {was_suspended_unmarked})
RETURNING execution_time AS due;

-- name: find_waiting
-- route: caller
-- Return $2 jobs with an open wait for the signal $1 or a message of the mailbox $1, in the order of ids after $3.
--
-- Only jobs with one of the names $4, with the metadata $5 and with one of the ids $6; NULL for any. A loser of first()
-- for which a suspended job does not wait is left out. Of a job with both waits it is that for the message, of which there
-- is one at most. The numbers of messages end at $7. Whether there is a wait for a name is one probe of the index of
-- open steps, by its order: for "name =" the planner may read the whole table, if it expects many waits for each name.
WITH wanted AS MATERIALIZED (
    SELECT known.name
    FROM (
        SELECT $1::text AS name
        UNION ALL
        SELECT concat(chr(1), 'mail:', lpad(number::text, 4, '0'), ':', $1::text)
        FROM generate_series(1, $7::integer) AS number
    ) AS known
    CROSS JOIN LATERAL (
        SELECT name FROM {schema}scheduler_steps
        WHERE ended_at IS NULL AND kind = 'signal' AND name >= known.name
        ORDER BY kind, name, job_id
        LIMIT 1
    ) AS first
    WHERE first.name = known.name
)
SELECT DISTINCT ON (step.job_id COLLATE "C") step.job_id, step.name, job.job_name
FROM (
    SELECT job_id, name, definition
    FROM {schema}scheduler_steps
    WHERE ended_at IS NULL AND kind = 'signal' AND name = ANY (ARRAY (SELECT name FROM wanted))
    OFFSET 0
) AS step
CROSS JOIN LATERAL (
    SELECT {named}
    FROM {schema}scheduled_jobs AS job
    WHERE job.job_id = step.job_id
      AND job.finished_at IS NULL
      AND (job.options -> 'steps') IS NOT NULL
      AND ($4::text[] IS NULL OR coalesce(job.function, job.job_name) = ANY ($4) OR job.job_name = ($4::text[])[1])
      AND ($5::text IS NULL OR job.task_data -> 'metadata' @> ($5::text)::jsonb)
      AND {has_no_coming_definition}
      AND {of_definition}
      AND {is_its_wait}
    OFFSET 0  -- not joined in another way, which reads all jobs
) AS job
WHERE ($3::text IS NULL OR step.job_id COLLATE "C" > $3::text)
  AND ($6::text[] IS NULL OR step.job_id = ANY (ARRAY (SELECT unnest($6::text[]))))
ORDER BY step.job_id COLLATE "C", step.name COLLATE "C"
LIMIT $2::bigint;

-- name: store_broadcast
-- route: caller
-- End those of the waits $2 of the jobs $1 that are still open with the values $3 at the places $4; return their jobs.
--
-- The rows are locked in the given order, that of the ids, so that two broadcasts do not wait for one another. A wait
-- that another session has ended since find_waiting is left: its job has a value, has timed out, or has ended.
WITH held AS MATERIALIZED (
    SELECT step.job_id, step.name, sent.place
    FROM ROWS FROM (unnest($1::text[]), unnest($2::text[]), unnest($4::integer[])) AS sent (id, name, place)
    CROSS JOIN LATERAL (
        SELECT job_id, name
        FROM {schema}scheduler_steps
        WHERE job_id = sent.id AND name = sent.name AND ended_at IS NULL
        FOR NO KEY UPDATE
    ) AS step
)
UPDATE {schema}scheduler_steps AS step SET value = ($3::text[])[held.place]::jsonb, ended_at = coalesce($5, {now})
FROM held
WHERE step.job_id = held.job_id AND step.name = held.name
RETURNING step.job_id, step.name;

-- name: wake_broadcast
-- route: caller
-- Make those of the jobs $1 due now that are suspended for their waits $2, and return when the first one is.
--
-- A statement of its own, for the same reason as wake_signalled. It locks the rows in the given order, that of the ids.
WITH held AS MATERIALIZED (
    SELECT job.job_id
    FROM ROWS FROM (unnest($1::text[]), unnest($2::text[])) AS sent (id, name)
    CROSS JOIN LATERAL (
        SELECT job_id
        FROM {schema}scheduled_jobs AS job
        WHERE job.job_id = sent.id
          AND job.status = 'pending' AND job.blocked_on IS NULL AND job.execution_time > coalesce($3, {now})
          AND (({suspension}) @> to_jsonb(sent.name) OR {was_suspended_unmarked})
        FOR NO KEY UPDATE
    ) AS job
),
woken AS (
    UPDATE {schema}scheduled_jobs AS job SET execution_time = coalesce($3, {now}), last_heartbeat = coalesce($3, {now})
    WHERE job_id = ANY (ARRAY (SELECT job_id FROM held)) AND status = 'pending'
    RETURNING execution_time
)
SELECT min(execution_time) AS due FROM woken;

-- name: end_sleep
-- route: caller
-- End the sleeps for which the job $1 is suspended, and make it due now; return when that is.
--
-- Only the ends of its open sleeps change: the attempt that continues finds that they are over, as at their time. The
-- lock of the job's row orders this with claims, so no attempt runs, and a job that was claimed since is not changed.
WITH held AS (
    SELECT job_id, ({suspension}) AS steps, options
    FROM {schema}scheduled_jobs AS job
    WHERE job_id = $1 AND status = 'pending' AND blocked_on IS NULL AND ({suspension}) IS NOT NULL
    FOR NO KEY UPDATE
),
ended AS (
    UPDATE {schema}scheduler_steps AS step SET until = coalesce($2, {now})
    FROM held AS job
    WHERE step.job_id = $1 AND step.job_id = job.job_id AND step.kind = 'sleep' AND step.ended_at IS NULL
      AND step.until > coalesce($2, {now}) AND job.steps @> to_jsonb(step.name) AND {of_definition}
    RETURNING step.job_id
)
UPDATE {schema}scheduled_jobs AS job SET
    execution_time = least(execution_time, coalesce($2, {now})),
    last_heartbeat = coalesce($2, {now})
WHERE job_id = ANY (ARRAY (SELECT job_id FROM ended)) AND status = 'pending'
RETURNING execution_time AS due;

-- name: look_at_waits
-- route: caller
-- Make jobs due again that settle_jobs has just suspended, if a signal came before; return when the first one is.
--
-- $1 and $2 are the ids and the names of the waits. It waits for no row: a job whose signal is being stored continues
-- in a second. "attempt = attempt" changes the row, so that a later signal at REPEATABLE READ, whose
-- snapshot lacks the suspension, fails instead of waking no one.
WITH wait AS MATERIALIZED (
    SELECT id, name FROM ROWS FROM (unnest($1::text[]), unnest($2::text[])) AS each (id, name)
),
held AS (
    UPDATE {schema}scheduler_steps SET attempt = attempt
    WHERE ctid = ANY (ARRAY (
        SELECT step.ctid
        FROM wait
        CROSS JOIN LATERAL (
            SELECT ctid
            FROM {schema}scheduler_steps
            WHERE job_id = wait.id AND name = wait.name
            FOR UPDATE SKIP LOCKED
        ) AS step
    ))
    RETURNING job_id, ended_at IS NULL AS is_open
),
woken AS (
    UPDATE {schema}scheduled_jobs AS job SET execution_time = least(job.execution_time, coalesce($3, {now})
        + make_interval(secs => CASE WHEN EXISTS (
            SELECT FROM held WHERE held.job_id = job.job_id AND NOT held.is_open
        ) THEN 0 ELSE 1 END))
    WHERE job.job_id = ANY ($1)
      AND job.status = 'pending'
      AND (SELECT count(*) FROM held WHERE held.job_id = job.job_id AND held.is_open)
          < (SELECT count(*) FROM wait WHERE wait.id = job.job_id)
    RETURNING job.execution_time
)
SELECT min(execution_time) AS due FROM woken;

-- name: find_children
-- route: caller
-- Lock the job $1, which the worker $2 runs in attempt $3; return what has the ids ($4) of the children of its step $6.
--
-- $5 are their numbers in the step, NULL for a single child. No row: the attempt does not hold its job any more. A row
-- of NULLs stands for no children. "former" is a child of an earlier definition of the job, which the caller replaces;
-- "completed" a child whose row was deleted since, of which the job has the result. Of children that a release without
-- their marks has inserted, those are own that rows of that release name.
WITH held AS MATERIALIZED (
    SELECT job_id, (options -> 'steps') IS NOT NULL AS is_marked,
        (options -> 'definition') IS NULL OR (options -> 'children') IS NULL AS is_first,
        coalesce(options ->> 'definition', {new_definition}) AS definition
    FROM {schema}scheduled_jobs
    WHERE job_id = $1 AND worker_id = $2 AND attempt = $3 AND status = 'running'
    FOR NO KEY UPDATE
),
named AS (
    UPDATE {schema}scheduled_jobs AS job SET
        options = {options_object} || jsonb_build_object(
            'definition', held.definition,
            'children', coalesce(options -> 'children', to_jsonb(extract(epoch FROM coalesce($7, {now})))))
    FROM held
    WHERE job.job_id = $1 AND job.job_id = held.job_id AND held.is_first
),
wanted AS MATERIALIZED (
    SELECT id, held.definition, held.is_marked,
        'child:' || encode(sha256(convert_to(id, 'UTF8')), 'hex') AS result_name,
        jsonb_strip_nulls(jsonb_build_object('job', $1::text, 'step', $6::text, 'number', number)) AS child_of
    FROM held, ROWS FROM (unnest($4::text[]), unnest($5::integer[])) AS each (id, number)
),
former AS MATERIALIZED (
    SELECT child.job_id
    FROM {schema}scheduled_jobs AS child JOIN wanted ON wanted.id = child.job_id
    WHERE child.job_id = ANY ($4)
      AND ({child_mark} - 'definition') = wanted.child_of
      AND (({child_mark} ->> 'definition') = wanted.definition) IS NOT TRUE
    ORDER BY child.job_id COLLATE "C"
    FOR NO KEY UPDATE OF child
),
adopted AS (
    UPDATE {schema}scheduled_jobs AS child SET
        options = CASE WHEN jsonb_typeof(child.options) = 'object' THEN child.options ELSE jsonb_build_object() END
            || jsonb_build_object('child_of', wanted.child_of || jsonb_build_object('definition', wanted.definition))
    FROM wanted
    WHERE child.job_id = ANY ($4)
      AND child.job_id = wanted.id
      AND wanted.is_marked
      AND (child.options -> 'child_of') IS NULL
      AND (child.on_end -> 'replacement') IS NULL
      AND ((child.on_end #> ARRAY ['in_vain', 'attempt']) = to_jsonb(child.attempt)) IS NOT TRUE
      AND EXISTS (
          SELECT FROM {schema}scheduler_steps AS step
          WHERE step.job_id = $1 AND step.definition IS NULL
            AND (step.name = wanted.result_name AND step.kind = 'result'
                     AND coalesce(step.value ->> 'step', $6) = $6
                 OR step.name = $6 AND step.kind = 'child' AND step.value @> to_jsonb(child.job_id))
      )
    RETURNING child.job_id
)
SELECT held.definition, wanted.id,
    CASE WHEN child.job_id IS NOT NULL THEN CASE
            WHEN {child_mark} = (wanted.child_of || jsonb_build_object('definition', held.definition))
                OR child.job_id = ANY (ARRAY (SELECT job_id FROM adopted)) THEN 'own'
            WHEN child.job_id = ANY (ARRAY (SELECT job_id FROM former)) THEN 'former'
            ELSE 'taken' END
        WHEN (passed.value ->> 'step') <> $6 THEN 'taken'
        WHEN (passed.value ->> 'status') = 'completed' AND ((passed.value -> 'is_child') = 'false') IS NOT TRUE
            THEN 'completed'
    END AS state,
    child.job_name, child.status, ({child_mark})::text AS child_of, passed.value ->> 'step' AS step
FROM held
LEFT JOIN wanted ON true
LEFT JOIN LATERAL (
    SELECT * FROM {schema}scheduled_jobs WHERE job_id = wanted.id OFFSET 0
) AS child ON true
LEFT JOIN {schema}scheduler_steps AS passed
    ON passed.job_id = $1 AND passed.name = wanted.result_name AND passed.kind = 'result' AND wanted.is_marked
    AND coalesce(passed.definition = wanted.definition, true);

-- name: block_waiting
-- route: caller
-- Let jobs wait for children that settle_jobs has just suspended; return when the first one is due that need not.
--
-- $1 and $2 are the ids and the names of the steps, $3 whether the job waits for other steps too. If so it is due at
-- the end of those, and its steps get that time, by which nodes of earlier checkouts recognize it. Else it is blocked.
-- Whatever ends a child locks the row that settle_jobs has locked: it is seen here, or sees what this statement writes.
WITH wait AS MATERIALIZED (
    SELECT id, name, is_timed
    FROM ROWS FROM (unnest($1::text[]), unnest($2::text[]), unnest($3::boolean[])) AS each (id, name, is_timed)
),
over AS MATERIALIZED (
    SELECT wait.id
    FROM wait LEFT JOIN {schema}scheduler_steps AS step
        ON step.job_id = ANY ($1) AND step.job_id = wait.id AND step.name = wait.name
    WHERE ({awaits_children}) IS NOT TRUE
),
timed AS (
    UPDATE {schema}scheduler_steps AS step SET until = job.execution_time
    FROM wait JOIN {schema}scheduled_jobs AS job ON job.job_id = wait.id
    WHERE wait.is_timed
      AND job.job_id = ANY ($1)
      AND step.job_id = ANY ($1)
      AND step.job_id = wait.id
      AND step.name = wait.name
      AND step.ended_at IS NULL
),
changed AS (
    UPDATE {schema}scheduled_jobs AS job SET
        blocked_on     = CASE WHEN job_id = ANY (ARRAY (SELECT id FROM over)) THEN NULL ELSE 'after' END,
        execution_time = least(execution_time, coalesce($4, {now}))
    WHERE job_id = ANY (ARRAY (SELECT id FROM wait WHERE NOT is_timed UNION ALL SELECT id FROM over))
      AND status = 'pending'
    RETURNING blocked_on, execution_time
)
SELECT min(execution_time) AS due FROM changed WHERE blocked_on IS NULL;

-- name: end_child_steps
-- route: caller
-- End those steps of the jobs $1 whose children have all ended; return when the first job is due that continues.
--
-- An earlier statement has locked the jobs and deleted the edges. A job that failed meanwhile, and is to be retried at
-- a time of its own, is left.
WITH ended AS (
    UPDATE {schema}scheduler_steps AS step SET ended_at = coalesce($2, {now})
    WHERE job_id = ANY ($1) AND kind = 'child' AND ended_at IS NULL AND NOT ({awaits_children})
    RETURNING job_id, name, until
),
woken AS (
    UPDATE {schema}scheduled_jobs AS job SET
        blocked_on     = NULL,
        execution_time = coalesce($2, {now}),
        last_heartbeat = coalesce($2, {now})
    WHERE job_id = ANY (ARRAY (SELECT job_id FROM ended))
      AND status = 'pending'
      AND (coalesce(blocked_on, '') = 'after' OR EXISTS (
          SELECT FROM ended
          WHERE ended.job_id = job.job_id
            AND (({suspension}) @> to_jsonb(ended.name)
                 OR ({suspension}) IS NULL AND NOT {has_entry} AND ended.until = job.execution_time)
      ))
    RETURNING execution_time
)
SELECT min(execution_time) AS due FROM woken;

-- name: job_name
-- route: pool
-- Return the name of the task of a job, by which a codec encodes its signals.
SELECT {named} FROM {schema}scheduled_jobs WHERE job_id = $1;
