ALTER TABLE {schema}scheduler_migrations
    DROP COLUMN needs;
