-- Drop the deadlines of jobs: jobs that have one are not ended by it any more.

DROP TABLE {schema}scheduler_deadlines;

-- Drop what jobs have published, and their streams.

DROP TABLE {schema}scheduler_streams;
