-- name: inspect_schedule_counts
-- route: pool
-- Count by state those of $1 schedules that match $2 to $4.
--
-- $5 is the number of seconds after which a schedule is overdue, $6 the time.
SELECT count(schedule.state) AS "all",
    count(*) FILTER (WHERE schedule.state = 'active') AS active,
    count(*) FILTER (WHERE schedule.state = 'failing') AS failing,
    count(*) FILTER (WHERE schedule.state = 'overdue') AS overdue,
    count(*) FILTER (WHERE schedule.state = 'paused') AS paused,
    count(*) FILTER (WHERE schedule.state = 'finished') AS finished,
    count(*) FILTER (WHERE schedule.state = 'retired') AS retired,
    count(*) = $1::bigint AS is_capped
FROM (
    SELECT CASE WHEN {matches_schedule} THEN {schedule_state} END AS state
    FROM (SELECT * FROM {schema}scheduler_schedules LIMIT $1::bigint) AS schedule
    CROSS JOIN {schedule_clock} AS clock
) AS schedule;

-- name: inspect_schedule_state
-- route: pool
-- Return the state of the schedule $1; $2 is the number of seconds after which it is overdue, $3 the time.
SELECT {schedule_state} AS state
FROM {schema}scheduler_schedules AS schedule
CROSS JOIN (SELECT coalesce($3::timestamptz, now()) AS now, $2::double precision AS overdue_s) AS clock
WHERE schedule.schedule_id = $1;

-- name: inspect_schedule_list
-- route: pool
-- Return $9 schedules in the state $7 of the $1 after the id $8 that match $2 to $4, with who paused them.
--
-- $5 and $6 are those of inspect_schedule_counts. Each row has the last of these $1 ids, if there are so many; it
-- comes alone if none matches. The record of a pause is searched among the newest 50 of the schedule.
WITH examined AS MATERIALIZED (
    SELECT *
    FROM {schema}scheduler_schedules
    WHERE schedule_id > coalesce($8::text, '')
    ORDER BY schedule_id
    LIMIT $1::bigint
),
found AS (
    SELECT schedule_id
    FROM examined AS schedule
    CROSS JOIN {schedule_clock} AS clock
    WHERE {matches_schedule} AND ($7::text = 'all' OR {schedule_state} = $7)
    ORDER BY schedule_id
    LIMIT $9::bigint
)
SELECT extent.last_id, {schedule_columns}, {schedule_state} AS state,
    (
        SELECT actor
        FROM (
            SELECT id, at, action, actor
            FROM {schema}scheduler_audit
            WHERE (subject, id) < (schedule.schedule_id, 9223372036854775807) AND subject >= schedule.schedule_id
            ORDER BY subject DESC, id DESC
            LIMIT 50
        ) AS record
        WHERE action = 'pause_schedule' AND at = schedule.paused_at
        ORDER BY id DESC
        LIMIT 1
    ) AS paused_by
FROM (
    SELECT CASE WHEN count(*) = $1::bigint THEN max(schedule_id) END AS last_id FROM examined
) AS extent
CROSS JOIN {schedule_clock} AS clock
LEFT JOIN {schema}scheduler_schedules AS schedule
    ON schedule.schedule_id = ANY (ARRAY (SELECT found.schedule_id FROM found))
ORDER BY schedule_id;

-- fragment: matches_schedule
($2::text[] IS NULL OR schedule.task ~~ ANY ($2))
    AND ($3::text IS NULL OR schedule.task = $3 OR schedule.job_name = $3)
    AND ($4::text IS NULL OR strpos(lower(concat_ws(' ', schedule.schedule_id, schedule.task)), lower($4)) > 0)

-- fragment: schedule_clock
(SELECT coalesce($6::timestamptz, now()) AS now, $5::double precision AS overdue_s)
