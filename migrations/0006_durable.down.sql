-- Drop the deadlines of jobs: jobs that have one are not ended by it any more.

DROP TABLE {schema}scheduler_deadlines;

-- Drop what jobs have published, and their streams.

DROP TABLE {schema}scheduler_streams;

-- Drop the heads of sequences. Jobs that wait for their place start without an order, since nothing would move them any
-- more.
UPDATE {schema}scheduled_jobs SET blocked_on = NULL WHERE blocked_on > 'zsequence:' AND blocked_on < 'zz';

DROP TABLE {schema}scheduler_sequences;
