-- name: notify
-- Tell the other nodes. One statement for many messages: a notification makes a commit take a
-- database-wide lock, so there are few of them.
SELECT pg_notify($1, message) FROM unnest($2::text[]) AS message;

-- name: take_advisory_lock
-- A session lock, if it is free; the session holds it until it says otherwise or ends.
SELECT pg_try_advisory_lock($1);

-- name: drop_advisory_lock
-- Give it back.
SELECT pg_advisory_unlock($1);
