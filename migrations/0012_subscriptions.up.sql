-- expand
-- A worker's row names the classes of events that it wants from other workers. NULL, as earlier releases leave
-- it, is none. Every heartbeat reads them, so their size is limited.

ALTER TABLE {schema}scheduler_workers
    ADD COLUMN subscriptions text[]
        CONSTRAINT scheduler_workers_subscriptions CHECK (pg_catalog.pg_column_size(subscriptions) <= 4096);
