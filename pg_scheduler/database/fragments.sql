-- Text that several statements share. {critical}, {high}, {normal} and {low} are the numbers of the
-- priorities.

-- The time at which the statement began. now() is the time at which the transaction began. A transaction of the
-- application may have begun minutes ago, so a job would be due, and expire, before the call that changes it.

-- fragment: now
statement_timestamp()

-- The keys of "on_end" that belong to the definition of a job. The other ones belong to its row and outlive a
-- replacement.

-- fragment: definition_keys
ARRAY ['replacement', 'in_vain', 'schedule', 'on_failure', 'failed_tasks', 'on_cancel', 'alive', 'result', 'sequence']

-- The definition that a job gets at the end of the attempt that runs. One that has waited for other jobs in vain is under
-- another key, with the "reason": it is cancelled then. A worker of an earlier checkout does not know that key, so it
-- drops such a definition and never runs it. It leaves the key in the row, so the key counts for the "attempt" in it
-- only.

-- fragment: coming_definition
CASE WHEN (job.on_end -> 'replacement') IS NOT NULL THEN job.on_end -> 'replacement'
        WHEN (job.on_end #> ARRAY ['in_vain', 'attempt']) = to_jsonb(job.attempt) THEN job.on_end -> 'in_vain' END

-- fragment: has_no_coming_definition
(job.on_end -> 'replacement') IS NULL
  AND ((job.on_end #> ARRAY ['in_vain', 'attempt']) = to_jsonb(job.attempt)) IS NOT TRUE

-- The keys of "on_end" that no retry of a finished job restores: they follow from its rows, or from its last end.

-- fragment: row_keys
ARRAY ['replacement', 'in_vain', 'child', 'alive', 'result', 'sequence']

-- fragment: retriable_on_end
CASE
        WHEN jsonb_typeof(on_end) <> 'object' THEN jsonb_build_object()
        WHEN status = ANY (ARRAY ['failed', 'expired']) THEN on_end - {row_keys} - ARRAY ['on_failure', 'failed_tasks']
        ELSE on_end - {row_keys} END

-- The end of a job takes its consequences, and a cancellation takes what the job waited for. The key "ended" of
-- "options" keeps them, as "on_end" and "blocked_on", until a retry restores them. A function waits for the children of
-- its steps again by itself. The end of a child is passed to the job that has its step, so a child that is retried gets
-- this consequence again. So does a job in a sequence, whose end passes the place of the head on.

-- fragment: options_after_end
CASE WHEN jsonb_typeof(options) = 'object' THEN options ELSE jsonb_build_object() END

-- fragment: taken_at_end
CASE WHEN jsonb_typeof(options -> 'ended') = 'object' THEN options -> 'ended' ELSE jsonb_build_object() END

-- fragment: options_with_wait
CASE WHEN blocked_on > 'share:' OR blocked_on = 'after' AND (options -> 'children') IS NULL
            THEN {options_after_end}
                || jsonb_build_object('ended', {taken_at_end} || jsonb_build_object('blocked_on', blocked_on))
        ELSE options END

-- fragment: restored_on_end
CASE WHEN (options -> 'child_of') IS NULL AND (options -> 'sequence') IS NULL THEN {own_on_end}
        ELSE CASE WHEN jsonb_typeof({own_on_end}) = 'object' THEN {own_on_end} ELSE jsonb_build_object() END
            || CASE WHEN (options -> 'child_of') IS NULL THEN jsonb_build_object()
                ELSE jsonb_build_object('child', true) END
            || CASE WHEN (options -> 'sequence') IS NULL THEN jsonb_build_object()
                ELSE jsonb_build_object('sequence', true) END END

-- fragment: own_on_end
coalesce(on_end, CASE WHEN jsonb_typeof(options #> ARRAY ['ended', 'on_end']) = 'object'
        THEN options #> ARRAY ['ended', 'on_end'] END)

-- fragment: restored_options
CASE WHEN (options -> 'ended') IS NULL THEN options
        WHEN (options - 'ended') <> jsonb_build_object() THEN options - 'ended' END

-- The names of the steps for which a pending job is suspended, as a JSON array; NULL if it waits for something else.
--
-- settle_suspended writes them with the attempt. Any other outcome that makes the job pending is that of a later
-- attempt, a new definition has other options, and a retry by a caller deletes the mark.

-- fragment: suspension
CASE WHEN (job.options #> ARRAY ['suspended', 'attempt']) = to_jsonb(job.attempt)
        THEN job.options #> ARRAY ['suspended', 'steps'] END

-- Whether a job waits for an open step, as far as its row states that. The steps of a suspended job are listed there;
-- an alternative that has lost stays open, and is not listed.

-- fragment: is_its_wait
coalesce(({suspension}) @> to_jsonb(step.name), true)

-- Whether a worker that has stopped does not run a job any more. Its heartbeats name the attempts that still run; see
-- renew_lease.

-- fragment: ended_in_stopped
worker.stopping AND NOT ((worker.health -> 'held') @> jsonb_build_object(job.job_id, job.attempt))

-- Whether the history has an entry of the last attempt, as after a retry, a snooze and a release. A suspension has none.

-- fragment: has_entry
coalesce((job.errors #>> ARRAY ['-1', 'attempt']) = job.attempt::text, false)

-- Whether a job without that mark was suspended by a node of an earlier checkout: it is due at the end of a step.

-- fragment: was_suspended_unmarked
(({suspension}) IS NULL AND job.attempt > 0 AND EXISTS (
        SELECT FROM {schema}scheduler_steps AS step
        WHERE step.job_id = job.job_id AND {bounded_until} = job.execution_time
        OFFSET 0
    ))

-- Whether a caller has chosen when a suspended job is due.

-- fragment: was_moved
coalesce((job.options #> ARRAY ['suspended', 'moved']) = to_jsonb(job.attempt), false)

-- Whether the fire times of a schedule follow the ends of its jobs. Other triggers have no part of this kind.

-- fragment: has_fixed_delay
schedule.kinds @> ARRAY ['fixed_delay']

-- Whether a job waited for others when it ended; NULL if it waited for nothing.

-- fragment: waited_at_end
(options #>> ARRAY ['ended', 'blocked_on']) = 'after'

-- The sequence of a job, as its "blocked_on" has it while it waits for its place; NULL if it is in none. A value that was
-- written by hand may be longer than an index allows.

-- fragment: sequence_key
CASE WHEN left(options #>> ARRAY ['sequence', 'key'], 10) = 'zsequence:'
            AND octet_length(options #>> ARRAY ['sequence', 'key']) <= 2000
        THEN options #>> ARRAY ['sequence', 'key'] END

-- Whether the end of a job is not applied yet that stops its sequence, if it has failed.

-- fragment: stops_its_sequence
(on_end -> 'sequence') IS NOT NULL AND (options #>> ARRAY ['sequence', 'on_failure']) = 'stop'

-- The job that is the head of the same sequence, unless that has stopped.

-- fragment: head_of_its_sequence
(SELECT sequence.job_id
        FROM {schema}scheduler_sequences AS sequence
        WHERE sequence.key = {sequence_key} AND sequence.stopped_at IS NULL)

-- What a job waits for that runs again: its place in a sequence, or the others that have not ended, else the turn of its
-- tenant. A head whose failure is not applied yet, as after an expiry in a claim, waits for nothing: nothing has moved its
-- sequence on, and it is first. An earlier statement must have locked the job: the end of another one locks it before it
-- deletes the edge.

-- fragment: restored_blocked_on
CASE
        WHEN (options -> 'sequence') IS NOT NULL THEN
            CASE WHEN {stops_its_sequence} AND {head_of_its_sequence} = scheduled_jobs.job_id THEN NULL
                ELSE {sequence_key} END
        WHEN (options -> 'ended') IS NULL THEN NULL
        WHEN {waited_at_end} THEN
            CASE WHEN EXISTS (SELECT FROM {schema}scheduler_after AS edge WHERE edge.child_id = scheduled_jobs.job_id)
                    THEN 'after'
                WHEN left(options ->> 'share', 6) = 'share:' AND octet_length(options ->> 'share') <= 2000
                    THEN options ->> 'share' END
        WHEN left(options #>> ARRAY ['ended', 'blocked_on'], 6) = 'share:'
            AND octet_length(options #>> ARRAY ['ended', 'blocked_on']) <= 2000
            THEN options #>> ARRAY ['ended', 'blocked_on'] END

-- Whether the result of a job is kept.

-- fragment: keeps_result
(options -> 'keep_result') IS NOT NULL

-- The consequences of a job that ends without a value: its result is stored too, if it is kept.

-- fragment: on_end_with_result
CASE WHEN NOT {keeps_result} THEN on_end
        ELSE CASE WHEN jsonb_typeof(on_end) = 'object' THEN on_end ELSE jsonb_build_object() END
            || jsonb_build_object('result', true) END

-- Whether the consequences of a job that has ended wait for the real end of its last attempt, or for the end of the
-- previous job of its schedule.

-- fragment: may_run_on
(on_end -> 'alive') IS NOT NULL

-- Whether the attempt of a job that runs was revoked by hand, in a job of a sequence. The job keeps its place until the
-- worker has stopped the attempt, or is gone. Then it has its new definition, or is pending again.

-- fragment: attempt_is_revoked
((on_end -> 'alive') = to_jsonb(attempt)) IS TRUE

-- Whether the consequences of a job that ends now are delayed. Its attempt runs, another job or its schedule depends
-- on it, and its worker has a row, so that the worker or a scan reports the real end. Or the job waits for the previous
-- job of its schedule, and not for children: the next job of the schedule then has to wait for that previous job too.

-- fragment: is_awaited
CASE WHEN status = 'running' AND ({has_consequences} OR options -> 'schedule_id' IS NOT NULL)
            THEN EXISTS (SELECT FROM {schema}scheduler_workers AS worker
                         WHERE worker.worker_id = scheduled_jobs.worker_id)
        ELSE blocked_on = 'after' AND options -> 'schedule_id' IS NOT NULL AND options -> 'children' IS NULL END

-- Whether the end of a job has more to do than to drop its replacement.

-- fragment: has_consequences
CASE WHEN jsonb_typeof(on_end) = 'object'
        THEN on_end - ARRAY ['replacement', 'in_vain'] <> jsonb_build_object() ELSE false END

-- Whose child the definition is that waits for the end of the attempt. What drops that definition leaves the job a
-- child of that step, which waits for it.

-- fragment: dropped_mark
(({coming_definition}) #> ARRAY ['options', 'child_of'])

-- fragment: options_with_mark
{options_object} || jsonb_build_object('child_of', {dropped_mark})

-- The values of a cancelled job, at $2 and for the reason $3.

-- fragment: cancelled_values
status        = 'cancelled',
    finished_at   = coalesce($2, {now}),
    error_message = concat_ws('; ', $3::text, 'error of the last attempt: ' || job.error_message),
    lease_until   = NULL,
    blocked_on    = NULL,
    options       = CASE WHEN {dropped_mark} IS NULL THEN {options_with_wait} ELSE {options_with_mark} END,
    on_end        = {kept_on_end},
    errors        = CASE WHEN old.status = 'running' THEN {kept_errors} || jsonb_build_array({entry_of_attempt}
        || jsonb_build_object('outcome', 'cancelled', 'ended_at', coalesce($2, {now}))) ELSE job.errors END

-- The values of a finished job that is to run again, at $2. The last_heartbeat of a pending job is the instant at which
-- it got its due time, since the clock may have been wrong then. People do not see it. The mark of a suspension is
-- removed, because the job does not wait any more. A job with steps notes its last attempt: the retries of a step that
-- were used up in that attempt or before begin again. So does a job of a sequence, which is then first where the sequence
-- has stopped at it. A new definition has no such note, and its place follows from its due time. Jobs that are retried
-- together are due one after the other, in the order of their former due times: "old.place" counts from the last one. A
-- job that waits in its sequence again keeps a due time that has passed, and thereby its place.

-- fragment: retried_values
status         = 'pending',
    execution_time = CASE
        WHEN (options -> 'sequence') IS NOT NULL AND ({restored_blocked_on}) IS NOT NULL
            THEN least(execution_time, coalesce($2, {now}) - (old.place * interval '1 microsecond'))
        ELSE coalesce($2, {now}) - (old.place * interval '1 microsecond') END,
    expires_at     = coalesce($2, {now}) + make_interval(secs => misfire_grace_time),
    retry_count    = 0,
    crash_count    = 0,
    error_message  = NULL,
    worker_id      = NULL,
    started_at     = NULL,
    finished_at    = NULL,
    last_heartbeat = coalesce($2, {now}),
    lease_until    = NULL,
    blocked_on     = {restored_blocked_on},
    on_end         = {restored_on_end},
    options        = {options_of_retry}

-- fragment: options_of_retry
CASE WHEN (options -> 'steps') IS NULL AND (options -> 'sequence') IS NULL THEN {retried_options}
        ELSE {retried_options} || jsonb_build_object('retried_by_hand', attempt) END

-- fragment: retried_options
CASE
        WHEN {has_passed_deadline_at_retry} THEN options - ARRAY ['ended', 'suspended', 'deadline']
        WHEN (options -> 'suspended') IS NULL THEN {restored_options}
        ELSE options - ARRAY ['ended', 'suspended'] END

-- Whether the deadline of a job has passed at $2. A retry takes it from the job, which would end at once otherwise. See
-- has_passed_deadline for the comparison.

-- fragment: has_passed_deadline_at_retry
(options ->> 'deadline') COLLATE "C" < to_char(
            coalesce($2, {now}) AT TIME ZONE 'UTC', {deadline_format})

-- How a row has its deadline: as text of a fixed width in UTC.

-- fragment: deadline_format
'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'

-- The deadline of a job that runs again, for a new entry: the vacuum may have deleted that of the job. A text that was
-- written by hand may be no instant, which a path reads as NULL. For the literal see ended_by_hand.

-- fragment: deadline_to_note
CASE WHEN (options -> 'deadline') IS NOT NULL THEN (jsonb_build_array(jsonb_path_query_first_tz(
        options, replace('$.deadline.datetime("YYYY-MM-DD~HH24:MI:SS.USTZH:TZM")', '~', chr(92) || '"T' || chr(92) || '"')::jsonpath,
        jsonb_build_object(), true)) ->> 0)::timestamptz END

-- The consequences of a job that is ended by hand: without its replacement, and marked if its attempt runs on.

-- fragment: kept_on_end
CASE WHEN old.is_awaited OR old.has_consequences THEN
            CASE WHEN jsonb_typeof(job.on_end) = 'object' THEN job.on_end - ARRAY ['replacement', 'in_vain']
                    - CASE WHEN job.finished_at IS NULL THEN 'alive' ELSE 'replacement' END
                ELSE jsonb_build_object() END
            || CASE WHEN (job.options -> 'keep_result') IS NULL THEN jsonb_build_object()
                ELSE jsonb_build_object('result', true) END
            || CASE WHEN old.is_awaited THEN jsonb_build_object('alive', true) ELSE jsonb_build_object() END
        END

-- The next $3 rows by id, after $1. The first condition bounds the scan of the key under any plan.

-- fragment: examined_jobs
SELECT *
        FROM {schema}scheduled_jobs
        WHERE job_id >= coalesce($1::text, '') AND ($1 IS NULL OR job_id > $1)
        ORDER BY job_id
        LIMIT $3::bigint

-- Whether a job matches statuses, name, worker, due times and metadata, NULL for any.

-- fragment: matches_filters
($4::text[] IS NULL OR status = ANY ($4))
        AND ($5::text[] IS NULL OR coalesce(function, job_name) = ANY ($5) OR job_name = ($5::text[])[1])
        AND ($6::text IS NULL OR worker_id = $6)
        AND ($7::timestamptz IS NULL OR execution_time >= $7)
        AND ($8::timestamptz IS NULL OR execution_time < $8)
        AND ($9::text IS NULL OR task_data -> 'metadata' @> ($9::text)::jsonb)

-- The name of a job is that under which its function is registered. Jobs of @periodic have that in "function", and in
-- "job_name" the name of pg-scheduler 0.2, so that queries of its users find them.

-- fragment: named
coalesce(function, job_name) AS job_name

-- Whether a job has one of the names $3, of which a caller gave the first.

-- fragment: is_named
coalesce(function, job_name) = ANY ($3) OR job_name = ($3::text[])[1]

-- fragment: claim_columns
job_id, {named}, coalesce(function, job_name) AS function, attempt, execution_time, task_data::text,
    priority, retry_count, max_retries, timeout_seconds, lock_key, options::text

-- A pending job due before this instant was refused by every worker that had a free slot at its last
-- heartbeat: heartbeats are 20 seconds apart, and a free worker polls every few seconds.

-- fragment: overdue_instant
(coalesce($1, {now}) - interval '30 seconds')

-- Why a job expired, as one word for programs: worker $1, which can run jobs of the names $2, found it at $4.

-- fragment: expiry_cause
CASE
        WHEN (options #>> ARRAY ['waited', 'until']) = {expiry} THEN 'waited'
        WHEN created_at > expires_at THEN 'scheduled_late'
        WHEN EXISTS (SELECT FROM {schema}scheduler_tasks AS task
                     WHERE task.name = coalesce(function, job_name)
                        OR coalesce(function, job_name) = ANY (task.exact_names))
            THEN 'paused'
        WHEN coalesce(function, job_name) <> ALL ($2) THEN 'no_worker'
        WHEN (SELECT min(started_at) FROM {schema}scheduler_workers
              WHERE lease_until > coalesce($4, {now})) > expires_at
            THEN 'no_worker_yet'
        WHEN (SELECT started_at FROM {schema}scheduler_workers WHERE worker_id = $1) > expires_at
            THEN 'worker_started_later'
        ELSE 'no_free_slot'
    END

-- fragment: options_with_cause
{options_object} || jsonb_build_object('expiry', {expiry_cause})

-- The same cause as a sentence for people.

-- fragment: expiry_reason
concat_ws(
        '; ',
        format('not started between %s and %s UTC',
            coalesce(to_char(execution_time AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), execution_time::text),
            {expiry}),
        (SELECT CASE
            WHEN judged.cause = 'waited' THEN concat({limit_wait}, options #>> ARRAY ['waited', 'for'], {until_expiry})
            WHEN judged.cause = 'scheduled_late'
                THEN format('it was scheduled later, at %s UTC',
                    to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'))
            WHEN judged.cause = 'paused' THEN format('the task %s was paused', coalesce(function, job_name))
            WHEN judged.cause = 'no_worker'
                THEN format('no worker claimed it, and worker %s has not registered the function %s',
                    $1::text, coalesce(function, job_name))
            WHEN judged.cause = 'no_worker_yet'
                THEN format('no worker that runs now had started: the first one started at %s UTC',
                    to_char((SELECT min(started_at) FROM {schema}scheduler_workers
                             WHERE lease_until > coalesce($4, {now})) AT TIME ZONE 'UTC',
                        'YYYY-MM-DD HH24:MI:SS'))
            WHEN judged.cause = 'worker_started_later'
                THEN format('no worker claimed it; worker %s, which has registered its function, '
                    'started at %s UTC', $1::text,
                    to_char((SELECT started_at FROM {schema}scheduler_workers WHERE worker_id = $1)
                        AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'))
            ELSE format('worker %s, which has registered its function, had no free slot, was blocked, '
                'or could not reach the database', $1::text)
        END FROM (SELECT {expiry_cause} AS cause) AS judged),
        {grace_reason},
        'error of the last attempt: ' || CASE
            WHEN error_message <> {unexplained_expiry} AND NOT starts_with(error_message, {limit_wait}) THEN error_message END
    )

-- How long its misfire grace time was. The one of 300 seconds is the default of a Scheduler, which a test compares.

-- fragment: grace_reason
CASE WHEN misfire_grace_time IS NOT NULL
            THEN format('its misfire grace time is %s %s%s', misfire_grace_time,
                CASE WHEN misfire_grace_time = 1 THEN 'second' ELSE 'seconds' END,
                CASE WHEN misfire_grace_time = 300
                    THEN ', the default; pass misfire_grace_time=None if late is better than never' END)
        END

-- fragment: expiry
coalesce(to_char(expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), expires_at::text)

-- What a late job notes that waited for a limit or in a share until it was late: as its error message for people, and
-- in its options. It names when the job was late, because the job may get more time, as after a pause, and then expire for
-- another reason.

-- fragment: limit_wait_note
{limit_wait} || blocked_on || {until_expiry}

-- fragment: options_with_limit_wait
{options_object} || jsonb_build_object('waited', jsonb_build_object('for', blocked_on, 'until', {expiry}))

-- fragment: limit_wait
'it waited for '

-- fragment: until_expiry
concat(' until ', {expiry}, ' UTC')

-- The reason of a job that a claim found expired, until explain_expiry has written more.

-- fragment: unexplained_expiry
'not started within its misfire grace time'

-- Counts the jobs that a statement has just failed or expired, in the same statement: "ended" has their rows, with the
-- "text" of the error, NULL for jobs that do not count. One row for each error, which no other statement writes, so that
-- no worker waits for another one. It is left out where the server refuses records. A longer name is too long for an
-- index.

-- fragment: counted_failures
,
counted AS (
    INSERT INTO {schema}scheduler_failures (fingerprint, job_name, text, status, jobs, at, release, job_id)
    SELECT {fingerprint}, error.job_name, error.text, error.status, error.jobs, error.at, (
        SELECT CASE WHEN worker.metadata ->> 'release' <> '' THEN left(worker.metadata ->> 'release', 200) END
        FROM {schema}scheduler_workers AS worker
        WHERE worker.worker_id = error.worker_id
    ), error.job_id
    FROM (
        SELECT CASE WHEN length(ended.job_name) > 500 THEN '(other)' ELSE ended.job_name END AS job_name,
            ended.text, ended.status, ended.worker_id,
            count(*) AS jobs, max(ended.finished_at) AS at, max(ended.job_id) AS job_id
        FROM ended
        WHERE ended.text IS NOT NULL
        GROUP BY 1, 2, 3, 4
    ) AS error
)

-- The fingerprint of an error; as fingerprint_of() in jobs/error_text.py.

-- fragment: fingerprint
left(md5(convert_to(error.job_name || chr(10) || error.text, 'UTF8')), 12)

-- The history of a job's attempts without those that a new entry displaces, and the part of a new entry that is in
-- the row. A value written by hand that is no array becomes an element.

-- fragment: kept_errors
coalesce(jsonb_path_query_array(job.errors, '$[last - 8 to last]'), jsonb_build_array())

-- fragment: entry_of_attempt
jsonb_build_object('attempt', job.attempt, 'worker_id', job.worker_id, 'started_at', job.started_at)

-- fragment: job_columns
job_id, {named}, status, task_data::text, priority, attempt, retry_count, crash_count, max_retries,
    misfire_grace_time, timeout_seconds, worker_id, error_message,
    (on_end -> 'replacement') IS NOT NULL
        OR coalesce((on_end #> ARRAY ['in_vain', 'attempt']) = to_jsonb(attempt), false) AS replacement,
    errors::text, progress::text, blocked_on, {suspended_by} AS suspended_by, unique_key, options ->> 'schedule_id' AS schedule_id,
    options ->> 'fire_time' AS fire_time, options ->> 'deadline' AS deadline,
    least(greatest(execution_time, {first_instant}), {last_instant}) AS execution_time,
    least(greatest(created_at, {first_instant}), {last_instant}) AS created_at,
    CASE WHEN started_at >= {first_day} AND started_at <= {last_day} THEN started_at END AS started_at,
    CASE WHEN finished_at >= {first_day} AND finished_at <= {last_day} THEN finished_at END AS finished_at,
    CASE WHEN expires_at >= {first_day} AND expires_at <= {last_day} THEN expires_at END AS expires_at,
    CASE WHEN status <> 'pending' AND last_heartbeat >= {first_day} AND last_heartbeat <= {last_day}
        THEN last_heartbeat END AS last_heartbeat,
    CASE WHEN lease_until >= {first_day} AND lease_until <= {last_day} THEN lease_until END AS lease_until

-- fragment: shown_schedule_columns
schedule_id, owner, task, job_name, derived_key, enabled_in_code, use_advisory_lock,
    trigger::text AS trigger, described, task_data::text AS task_data, options::text AS options,
    metadata::text AS metadata,
    CASE WHEN start_at >= {first_day} AND start_at <= {last_fire_day} THEN start_at END AS start_at,
    CASE WHEN end_at >= {first_day} AND end_at <= {last_fire_day} THEN end_at END AS end_at,
    max_runs, jitter_seconds, overlap, catch_up, catch_up_limit, catch_up_seconds, pause_after_failures,
    least(greatest(anchor, {first_day}), {last_fire_day}) AS anchor,
    CASE WHEN next_fire_at IS NOT NULL
        THEN least(greatest(next_fire_at, {first_day}), {last_fire_day}) END AS next_fire_at,
    CASE WHEN resume_from IS NOT NULL
        THEN least(greatest(resume_from, {first_day}), {last_fire_day}) END AS resume_from,
    CASE WHEN last_fire_at >= {first_day} AND last_fire_at <= {last_fire_day}
        THEN last_fire_at END AS last_fire_at,
    last_job_id,
    CASE WHEN paused_at IS NOT NULL
        THEN least(greatest(paused_at, {first_day}), {last_fire_day}) END AS paused_at,
    CASE WHEN paused_until IS NOT NULL
        THEN least(greatest(paused_until, {first_day}), {last_fire_day}) END AS paused_until,
    keeps_fire_times, note, is_broken, runs, skipped, missed, failures,
    least(greatest(created_at, {first_day}), {last_fire_day}) AS created_at,
    least(greatest(updated_at, {first_day}), {last_fire_day}) AS updated_at,
    CASE WHEN finished_at IS NOT NULL
        THEN least(greatest(finished_at, {first_day}), {last_fire_day}) END AS finished_at,
    version

-- fragment: schedule_columns
{shown_schedule_columns},
    CASE WHEN searched_from >= {first_day} AND searched_from <= {last_fire_day}
        THEN searched_from END AS searched_from,
    tzdata, module,
    {retired_at}, names

-- fragment: retired_at
CASE WHEN retired_at IS NOT NULL THEN least(greatest(retired_at, {first_day}), {last_fire_day}) END AS retired_at

-- The definition of a schedule for the audit. Long arguments are left out.

-- fragment: schedule_definition
jsonb_build_object(
        'owner', schedule.owner, 'task', schedule.task, 'job_name', schedule.job_name, 'trigger', schedule.trigger,
        'described', schedule.described, 'options', schedule.options, 'metadata', schedule.metadata,
        'arguments', CASE WHEN octet_length(schedule.task_data::text) <= 10000 THEN schedule.task_data END,
        'start_at', schedule.start_at, 'end_at', schedule.end_at, 'max_runs', schedule.max_runs,
        'jitter_seconds', schedule.jitter_seconds::numeric, 'overlap', schedule.overlap, 'catch_up', schedule.catch_up,
        'catch_up_limit', schedule.catch_up_limit, 'catch_up_seconds', schedule.catch_up_seconds::numeric,
        'pause_after_failures', schedule.pause_after_failures, 'enabled_in_code', schedule.enabled_in_code,
        'paused_at', schedule.paused_at, 'version', schedule.version
    )

-- The columns that are written as a whole, with their values: the fields of ScheduleRow in their order, and kinds.

-- fragment: written_schedule_columns
schedule_id, owner, task, job_name, derived_key, enabled_in_code, use_advisory_lock, trigger,
    described, task_data, options, metadata, start_at, end_at, max_runs, jitter_seconds, overlap, catch_up,
    catch_up_limit, catch_up_seconds, pause_after_failures, anchor, next_fire_at, resume_from, last_fire_at,
    last_job_id, paused_at, paused_until, keeps_fire_times, note, is_broken, runs, skipped, missed, failures, created_at, updated_at,
    finished_at, version, searched_from, tzdata, module, retired_at, names, kinds

-- fragment: written_schedule_values
$1, $2, $3, $4, $5::boolean, $6::boolean, $7::boolean, ($8::text)::jsonb, $9, ($10::text)::jsonb,
    ($11::text)::jsonb, ($12::text)::jsonb, $13::timestamptz, $14::timestamptz, $15::bigint,
    $16::double precision, $17, $18, $19::integer, $20::double precision, $21::integer, $22::timestamptz,
    $23::timestamptz, $24::timestamptz, $25::timestamptz, $26, $27::timestamptz, $28::timestamptz, $29::boolean,
    $30, $31::boolean, $32::bigint, $33::bigint, $34::bigint, $35::bigint, $36::timestamptz, $37::timestamptz,
    $38::timestamptz, $39::bigint, $40::timestamptz, $41, $42, $43::timestamptz, $44::text[], $45::text[]

-- When a schedule that awaits the planner is due: at its next fire time, or at the end of its pause.

-- fragment: due_at
coalesce(schedule.paused_until, schedule.next_fire_at)

-- fragment: awaits_planner
(schedule.paused_at IS NULL OR schedule.paused_until IS NOT NULL) AND {due_at} IS NOT NULL

-- The schedules that this node can plan: those that it declares ($2), and those of tasks ($3) and kinds of
-- triggers ($4) that it has registered.

-- fragment: plannable
{awaits_planner}
    AND CASE WHEN owner = 'code' THEN schedule_id = ANY ($2::text[]) ELSE task = ANY ($3::text[]) END
    AND kinds <@ $4::text[]

-- Whether the next fire time, which is not due, is to be computed again: older time zone data than the node's ($5) gave
-- it, or a clock that was set back since then. Without $5, none is computed again.

-- fragment: is_outdated
schedule.paused_at IS NULL AND schedule.next_fire_at > coalesce($1, {now})
    AND (schedule.tzdata < $5::text COLLATE "C" OR ($5::text IS NOT NULL AND {is_ahead}))

-- Whether a schedule was written, or has fired, at an instant that the clock has not reached: it was set back since then.
-- A last fire time that equals the anchor does not count: the last job of pg_scheduler 0.2 may be due later.

-- fragment: is_ahead
(
    schedule.updated_at > (coalesce($1, {now}) + interval '5 s')
    OR schedule.last_fire_at > (coalesce($1, {now}) + interval '5 s') AND schedule.last_fire_at <> schedule.anchor
)

-- fragment: levels
(VALUES ({critical}), ({high}), ({normal}), ({low})) AS level (priority)

-- The calendar of Python spans the years 1 to 9999. A column may hold an instant outside of it.

-- fragment: first_instant
'0001-01-01 00:00:00Z'

-- fragment: last_instant
'9999-12-31 23:59:59.999998Z'

-- fragment: first_day
'0001-01-02'

-- fragment: last_day
'9999-12-31'

-- fragment: last_fire_day
'9000-01-01'

-- fragment: most_counted
9223372036854000000

-- fragment: longest_extension_s
1e9::double precision

-- When a job is due, within that calendar.

-- fragment: bounded_due
least(greatest(execution_time, {first_instant}), {last_instant}) AS due

-- The end of a sleep or a wait, within that calendar; NULL for other steps.

-- fragment: bounded_until
CASE WHEN until IS NOT NULL THEN least(greatest(until, {first_instant}), {last_instant}) END

-- The end of a wait without a timeout.

-- fragment: no_timeout
'9999-01-01Z'

-- When a step was stored, which is its place in the order of the steps. The value of a cursor is stored several times.

-- fragment: last_write
CASE WHEN step.kind = 'cursor' THEN greatest(step.started_at, step.ended_at) ELSE step.started_at END

-- The times of a step after it is set back by the time ``early.ahead`` to ``early.now``. A cursor may have its first
-- value from before the clock was ahead, and then keeps that time. A time before the start of the step comes from the
-- right clock already, such as the end of a step that has ended since. A sleep keeps its end, which may be a time that
-- its job has chosen.

-- fragment: times_set_back
started_at = CASE WHEN step.started_at > early.now THEN step.started_at - early.ahead ELSE step.started_at END,
        ended_at   = CASE WHEN step.ended_at >= step.started_at THEN step.ended_at - early.ahead ELSE step.ended_at END,
        until      = CASE WHEN step.kind = ANY (ARRAY ['signal', 'retry']) AND step.until < {no_timeout}
                AND step.until > step.started_at
            THEN step.until - early.ahead ELSE step.until END,
        timeouts   = CASE WHEN step.timeouts IS NOT NULL THEN ARRAY (
            SELECT CASE WHEN timeout.at >= step.started_at THEN timeout.at - early.ahead ELSE timeout.at END
            FROM unnest(step.timeouts) WITH ORDINALITY AS timeout (at, number)
            ORDER BY timeout.number
        ) END

-- Positions of values in parallel arrays, by the job ids of $1.
--
-- A statement reads them by a scalar subquery. In a join with the table that it changes or locks, PostgreSQL would copy
-- the whole object for each row.

-- fragment: places
SELECT jsonb_object_agg(id, n) AS of FROM unnest($1::text[]) WITH ORDINALITY AS each (id, n)

-- fragment: place
((SELECT place.of FROM place) ->> job_id)::integer

-- Whether the attempt of a start runs, or was ended by hand within the last 2 seconds, so that it may still run. The
-- history shows such an end, whatever became of the job since. If SQL has set the status, only the row shows the end. Most
-- jobs have no history, and of the others the times are compared first, so that few histories are read.
--
-- A start before the begin of the attempt is that of an earlier job with this id, which was deleted. Admission never
-- writes such a time for the attempt itself, also if the clock is set back.

-- fragment: is_running
coalesce((
        SELECT CASE
            WHEN job.attempt = start.attempt AND (job.status = 'running'
                OR job.status = 'cancelled' AND job.finished_at > (clock.at - interval '2 seconds'))
                THEN job.started_at IS NULL OR (start.at < least(job.started_at, {last_instant})) IS NOT TRUE
            WHEN job.errors IS NOT NULL
                AND coalesce(job.finished_at, job.started_at, clock.at) > (clock.at - interval '2 seconds')
                THEN jsonb_path_exists_tz(job.errors, {ended_by_hand}, jsonb_build_object(
                    'attempt', start.attempt, 'since', to_char(clock.at - interval '2 seconds', {instant_format})))
            ELSE false END
        FROM {schema}scheduled_jobs AS job
        WHERE job.job_id = start.job_id
    ), false)

-- fragment: instant_format
'YYYY-MM-DD"T"HH24:MI:SS.USTZH:TZM'

-- fragment: ended_by_hand
-- Before 14.9 and 15.4, datetime() without a format rejects fractions of a second, which a path reads as false. An
-- instant of JSON has none when it is a whole second, so both are tried. The literal has no backslash, which means
-- something else where standard_conforming_strings is off.
replace('$[*] ? ((@.outcome == "cancelled" || @.outcome == "lost") && ($attempt == null || @.attempt == $attempt)
    && (@.ended_at.datetime("YYYY-MM-DD~HH24:MI:SS.USTZH:TZM")
            > $since.datetime("YYYY-MM-DD~HH24:MI:SS.USTZH:TZM")
        || @.ended_at.datetime() > $since.datetime("YYYY-MM-DD~HH24:MI:SS.USTZH:TZM")))',
    '~', chr(92) || '"T' || chr(92) || '"')::jsonpath

-- fragment: starts_within
{schema}scheduler_starts AS start
        WHERE start.key = declared.key
          AND start.at > (clock.at - make_interval(secs => declared.per_s))
          AND start.at < (clock.at + make_interval(secs => declared.per_s))

-- fragment: declared_limits
ROWS FROM (
        unnest($9::text[]), unnest($10::integer[]), unnest($11::integer[]), unnest($12::double precision[])
    ) AS declared (key, max_running, max_starts, per_s)

-- Whether no pause of the task, under any of its names, suspends the expiry of a job. The rows decide, because a worker
-- that was cut off or frozen has not read the pause yet. They are read only for a job past its misfire grace time.

-- fragment: may_expire
NOT EXISTS (
    SELECT FROM {schema}scheduler_tasks AS paused
    WHERE paused.suspends_expiry
      AND (paused.name = coalesce(function, job_name) OR coalesce(function, job_name) = ANY (paused.names))
)

-- Whether a worker with a lease claims jobs.

-- fragment: claims_jobs
NOT worker.stopping
          AND worker.role = ANY (ARRAY ['both', 'worker'])
          AND coalesce(worker.state, '') <> ALL (ARRAY ['draining', 'stopping'])

-- Excludes jobs whose claim a trigger or a constraint of the application refuses, or names whose jobs do not expire
-- during a pause; empty unless there are some. See load_variant() in database/queries.py.
--
-- fragment: left_out

-- Leaves jobs with a kept result out of the completions that delete rows; empty unless rows are deleted. See
-- load_variant().
--
-- fragment: without_result

-- Whether a worker may declare a schedule. Each worker that plans reports under $3 what its code declares. A worker of
-- an older release reports nothing there, so it may declare any schedule. So may a worker that reports under $4 that it
-- left some out.

-- fragment: may_declare
(
    worker.settings -> $3::text IS NULL
    OR worker.settings -> $3 @> jsonb_build_array(schedule.schedule_id)
    OR worker.settings -> $4::text IS NOT NULL
)

-- Limits the waits for locks, in a transaction of the statement's own; empty in others. It is evaluated before the first
-- row is read. See load_variant() in database/queries.py.
--
-- fragment: within_lock_limit
