-- Drop the counts of errors, the index of open steps, and whether pauses suspend the expiry of jobs.

ALTER TABLE {schema}scheduler_audit
    ALTER COLUMN id SET DEFAULT (
        (extract(epoch FROM clock_timestamp()) * 1000000 - 1577836800000000)::bigint * 4096
        + set_config(
            'pg_scheduler.audit',
            ((coalesce(nullif(current_setting('pg_scheduler.audit', true), ''), floor(random() * 4096)::text)::integer
                + 1) % 4096)::text,
            true
        )::bigint
    );

ALTER TABLE {schema}scheduler_tasks
    DROP COLUMN exact_names, DROP COLUMN names, DROP COLUMN suspends_expiry;

DROP INDEX {schema}scheduler_steps_open;

DROP TABLE {schema}scheduler_error_counts;

DROP TABLE {schema}scheduler_error_groups;

DROP TABLE {schema}scheduler_failures;
