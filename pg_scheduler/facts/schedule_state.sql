-- fragment: may_be_overdue
-- The schedules that a worker has to plan, or whose pause a worker has to end.
{awaits_planner} AND schedule.finished_at IS NULL AND schedule.retired_at IS NULL

-- fragment: schedule_overdue_s
-- For how many seconds a schedule should have fired; 0 before that. A statement names the time clock.now.
CASE WHEN {may_be_overdue} AND {due_at} < clock.now
        THEN extract(epoch FROM clock.now - greatest({due_at}, {first_instant}))
        ELSE 0
    END::double precision

-- fragment: schedule_fails
-- While its newest job waits or runs, only failures in a row are known.
(schedule.failures > 0 OR (
        SELECT job.status FROM {schema}scheduled_jobs AS job WHERE job.job_id = schedule.last_job_id
    ) = ANY {failed_jobs})

-- fragment: schedule_state
-- Its state, as schedule_state.py defines it. A statement names the seconds of OVERDUE_S clock.overdue_s.
CASE
        WHEN schedule.retired_at IS NOT NULL THEN 'retired'
        WHEN schedule.finished_at IS NOT NULL THEN 'finished'
        WHEN {schedule_overdue_s} > clock.overdue_s THEN 'overdue'
        WHEN schedule.paused_at IS NOT NULL THEN 'paused'
        WHEN {schedule_fails} THEN 'failing'
        ELSE 'active'
    END
