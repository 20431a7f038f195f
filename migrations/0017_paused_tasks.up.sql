-- expand
-- The paused tasks. A task without a row, or whose pause has ended, is not paused. Earlier releases do not read it.

CREATE TABLE {schema}scheduler_tasks (
    name         text PRIMARY KEY
        CONSTRAINT scheduler_tasks_name CHECK (pg_catalog.octet_length(name) OPERATOR(pg_catalog.<=) 2000),
    paused_at    timestamptz NOT NULL,
    paused_until timestamptz,
    note         text,
    actor        text NOT NULL
);
