-- Drop the steps. Suspended jobs start anew at their time, and at once if they wait for a signal without a timeout.

UPDATE {schema}scheduled_jobs SET execution_time = now()
WHERE status = 'pending' AND execution_time >= '9999-01-01T00:00Z' AND options ? 'steps';

DROP TABLE {schema}scheduler_steps;

ALTER TABLE {schema}scheduler_schedules DROP COLUMN searched_from, DROP COLUMN tzdata;
