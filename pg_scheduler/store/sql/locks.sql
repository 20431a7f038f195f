-- name: notify
-- route: sticky-reserved
-- Send messages ($2) on a channel.
--
-- One statement sends many: the commit of a notification takes a database-wide lock.
SELECT pg_notify($1, message) FROM unnest($2::text[]) AS message;

-- name: take_advisory_lock
-- route: checkout
-- Take a session lock if it is free. It lasts until it is dropped or the session ends.
SELECT pg_try_advisory_lock($1);

-- name: drop_advisory_lock
-- route: checkout
-- Drop a session lock.
SELECT pg_advisory_unlock($1);
