-- fragment: pending_state
-- The state of a pending job, as job_state.py defines it. $2 is the time.
CASE
        WHEN blocked_on IS NOT NULL THEN 'blocked'
        WHEN execution_time <= coalesce($2::timestamptz, {now}) THEN 'due'
        WHEN retry_count > 0 THEN 'retrying'
        ELSE 'scheduled'
    END

-- fragment: is_quarantined
-- Whether a failed job is quarantined.
starts_with(error_message, 'quarantined:')
