-- Jobs that wait for others become plain pending ones: nothing would ever unblock them.

DROP INDEX {schema}scheduled_jobs_ended;
DROP TABLE {schema}scheduler_after;

UPDATE {schema}scheduled_jobs SET blocked_on = NULL WHERE blocked_on = 'after';

UPDATE {schema}scheduled_jobs
SET on_end = CASE
    WHEN on_end - 'child' <> jsonb_build_object()
        THEN on_end - 'child'
    END
WHERE jsonb_typeof(on_end) = 'object';
