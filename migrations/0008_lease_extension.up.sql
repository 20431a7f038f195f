-- expand
-- A worker's row names the seconds for which a held liveness lock extends an expired lease. NULL, as earlier
-- releases leave it, is no extension.

ALTER TABLE {schema}scheduler_workers
    ADD COLUMN lease_extension double precision;
