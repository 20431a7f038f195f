-- expand
-- With each migration its record tells the lowest schema version that a release must know to work on what it
-- makes; 0 for every one. So a node of an older release can start while a newer one is being rolled out. The
-- first five have none: they are older than this.

ALTER TABLE {schema}scheduler_migrations
    ADD COLUMN needs integer;
