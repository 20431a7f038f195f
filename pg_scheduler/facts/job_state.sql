-- fragment: pending_state
-- The state of a pending job, as job_state.py defines it. $2 is the time.
CASE
        WHEN blocked_on IS NOT NULL THEN 'blocked'
        WHEN execution_time <= coalesce($2::timestamptz, {now}) THEN 'due'
        WHEN ({suspended_by}) = 'signal' THEN 'awaiting'
        WHEN ({suspended_by}) = 'sleep' THEN 'sleeping'
        WHEN retry_count > 0 OR ({suspended_by}) = 'retry' THEN 'retrying'
        ELSE 'scheduled'
    END

-- fragment: suspended_by
-- What a suspended job waits for: 'signal' if a signal is a part of that, else 'sleep', else 'retry' for the next attempt
-- of a step, or 'child' for children only.
-- NULL if it is not suspended, or was suspended by a node of an earlier checkout.
CASE WHEN status = 'pending' AND (options #> ARRAY ['suspended', 'attempt']) = to_jsonb(attempt)
        THEN options #>> ARRAY ['suspended', 'kind'] END

-- fragment: is_quarantined
-- Whether a failed job is quarantined.
starts_with(error_message, 'quarantined:')
