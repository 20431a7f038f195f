-- fragment: failed_attempts
-- The failed attempts of a row of statistics: the outcomes are FAILED_ATTEMPTS of outcomes.py.
({count_failed} + {count_retried} + {count_lost})

-- fragment: decided_attempts
-- Its attempts that completed, were suspended or failed: those that a failure rate divides by.
({count_completed} + {count_suspended} + {failed_attempts})

-- fragment: failed_jobs
-- The statuses of jobs that failed: FAILED_JOBS of outcomes.py.
(ARRAY ['failed', 'expired'])
