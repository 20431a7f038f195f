ALTER TABLE {schema}scheduler_workers
    DROP COLUMN subscriptions;
