-- expand
-- A worker's row marks a worker that has stopped while threads of its process run on, and holds what the worker
-- was given as role, identity and metadata. Earlier releases leave the defaults.

ALTER TABLE {schema}scheduler_workers
    ADD COLUMN stopping boolean NOT NULL DEFAULT false,
    ADD COLUMN role text NOT NULL DEFAULT 'both',
    ADD COLUMN identity text,
    ADD COLUMN metadata jsonb;
