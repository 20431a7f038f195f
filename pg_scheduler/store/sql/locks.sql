-- name: notify
-- route: sticky-reserved
-- Send messages ($1) to every process that listens.
--
-- One statement sends many: the commit of a notification takes a database-wide lock.
SELECT pg_notify({channel}, message) FROM unnest($1::text[]) AS message;

-- name: take_advisory_lock
-- route: checkout
-- Take a session lock if it is free. It lasts until it is dropped or the session ends.
SELECT pg_try_advisory_lock($1);

-- name: drop_advisory_lock
-- route: checkout
-- Drop a session lock.
SELECT pg_advisory_unlock($1);

-- name: session_pid
-- route: caller
-- Return the process that runs the transaction. Behind a pooler, asyncpg has another id.
SELECT pg_backend_pid();

-- name: find_blockers
-- route: pool
-- Return the sessions that a session ($1) waits for, with what this role may read of them.
SELECT DISTINCT blocking.pid, activity.application_name, activity.xact_start
FROM unnest(pg_blocking_pids($1)) AS blocking (pid)
LEFT JOIN pg_catalog.pg_stat_activity AS activity ON activity.pid = blocking.pid;
