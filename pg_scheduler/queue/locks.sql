-- name: notify
-- route: sticky-reserved | reserved
-- Send messages ($1) to every process that listens.
--
-- One statement sends many: the commit of a notification takes a database-wide lock.
SELECT pg_notify({channel}, message) FROM unnest($1::text[]) AS message;

-- name: take_advisory_lock
-- route: checkout
-- Take the session lock of a schedule, by the key in the row of its job, if it is free. It lasts until it is dropped or
-- the session ends. All schemas of a database share the keys of locks.
SELECT pg_try_advisory_lock($1::bigint # {lock_mask});

-- name: drop_advisory_lock
-- route: checkout
-- Drop a session lock.
SELECT pg_advisory_unlock($1::bigint # {lock_mask});

-- name: lock_texts
-- route: caller
-- Take the locks of limits, or that of cycles, by their texts ($2) until the end of the transaction, in the same
-- order everywhere.
--
-- A statement of its own: the snapshot of the next one then contains what the last holder committed.
SELECT pg_advisory_xact_lock($1, lock)
FROM (SELECT DISTINCT hashtext(key) AS lock FROM unnest($2::text[]) AS key ORDER BY lock) AS locks;

-- name: session_pid
-- route: caller
-- Return the process that runs the transaction. Behind a pooler, asyncpg has another id.
SELECT pg_backend_pid();

-- name: find_blockers
-- route: pool
-- Return the sessions that a session ($1) waits for, with what this role may read of them.
--
-- A session that waits for a row may have another one before it that waits too. Only those that do not are returned.
WITH RECURSIVE blocking (pid) AS (
    SELECT unnest(pg_blocking_pids($1))
    UNION
    SELECT before.pid FROM blocking CROSS JOIN LATERAL unnest(pg_blocking_pids(blocking.pid)) AS before (pid)
)
SELECT blocking.pid, activity.application_name, activity.xact_start,
    extract(epoch FROM clock_timestamp() - activity.xact_start)::double precision AS seconds
FROM blocking
LEFT JOIN pg_catalog.pg_stat_activity AS activity ON activity.pid = blocking.pid
WHERE cardinality(pg_blocking_pids(blocking.pid)) = 0;

-- name: find_holders
-- route: reserved
-- Return the other sessions with the strongest locks on tables of the schema of table $1, the oldest first.
--
-- A session that waits for ACCESS EXCLUSIVE counts as well, since everything that comes later waits behind it.
-- Any other session that waits for a lock on a table, and has none but those of rows, is a victim and not named.
-- Transactions that began just now are those of services and calls. The mode is that of the strongest lock.
SELECT locked.pid, locked.application_name, locked.xact_start
FROM (
    SELECT lock.pid, activity.application_name, activity.xact_start, max(array_position(
        ARRAY ['RowShareLock', 'RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock',
            'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'], lock.mode)) AS strength
    FROM pg_catalog.pg_locks AS lock
    JOIN pg_catalog.pg_class AS class ON class.oid = lock.relation
    LEFT JOIN pg_catalog.pg_stat_activity AS activity ON activity.pid = lock.pid
    WHERE lock.locktype = 'relation'
      AND lock.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
      AND class.relnamespace = (SELECT own.relnamespace FROM pg_catalog.pg_class AS own WHERE own.oid = to_regclass($1))
      AND coalesce(activity.xact_start < (clock_timestamp() - interval '0.5 seconds'), true)
    GROUP BY lock.pid, activity.application_name, activity.xact_start
    HAVING bool_and(lock.granted OR lock.mode = 'AccessExclusiveLock')
        OR bool_or(lock.granted AND lock.mode <> ALL (ARRAY ['AccessShareLock', 'RowShareLock', 'RowExclusiveLock']))
) AS locked
WHERE locked.strength IS NOT NULL
ORDER BY locked.strength DESC, locked.xact_start
LIMIT 3;
