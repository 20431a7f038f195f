-- name: inspect_schedule_counts
-- route: pool
-- Count by state those of $1 schedules that match $2 to $4.
--
-- $5 is the number of seconds after which a schedule is overdue, $6 the time.
SELECT
    count(*) FILTER (WHERE matches) AS "all",
    count(*) FILTER (WHERE matches AND paused_at IS NULL AND finished_at IS NULL AND retired_at IS NULL) AS active,
    count(*) FILTER (WHERE matches AND paused_at IS NOT NULL) AS paused,
    count(*) FILTER (WHERE matches AND {schedule_fails}) AS failing,
    count(*) FILTER (WHERE matches AND {schedule_is_overdue}) AS overdue,
    count(*) = $1::bigint AS is_capped
FROM (
    SELECT *, {matches_schedule} AS matches
    FROM (SELECT * FROM {schema}scheduler_schedules LIMIT $1::bigint) AS schedule
) AS schedule;

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
    WHERE {matches_schedule}
      AND CASE
          WHEN $7::text = 'active' THEN paused_at IS NULL AND finished_at IS NULL AND retired_at IS NULL
          WHEN $7 = 'paused' THEN paused_at IS NOT NULL
          WHEN $7 = 'failing' THEN {schedule_fails}
          WHEN $7 = 'overdue' THEN {schedule_is_overdue}
          ELSE true
      END
    ORDER BY schedule_id
    LIMIT $9::bigint
)
SELECT extent.last_id, {schedule_columns},
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
LEFT JOIN {schema}scheduler_schedules AS schedule
    ON schedule.schedule_id = ANY (ARRAY (SELECT found.schedule_id FROM found))
ORDER BY schedule_id;

-- fragment: matches_schedule
($2::text[] IS NULL OR schedule.task ~~ ANY ($2))
    AND ($3::text IS NULL OR schedule.task = $3 OR schedule.job_name = $3)
    AND ($4::text IS NULL OR strpos(lower(concat_ws(' ', schedule.schedule_id, schedule.task)), lower($4)) > 0)

-- fragment: schedule_fails
(schedule.finished_at IS NULL AND (schedule.failures > 0 OR (
        SELECT job.status FROM {schema}scheduled_jobs AS job WHERE job.job_id = schedule.last_job_id
    ) = ANY {failed_jobs}))

-- fragment: schedule_is_overdue
({awaits_planner} AND schedule.retired_at IS NULL
        AND {due_at} < (coalesce($6::timestamptz, now()) - make_interval(secs => $5::double precision)))
