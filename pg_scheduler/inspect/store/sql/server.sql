-- name: server_clock
-- route: pool
-- Return the time by the clock of the server, whatever the clock of a test is.
SELECT clock_timestamp();

-- name: server_role
-- route: pool
-- Return the role and the database of this session, whether it may see what other roles do, and is a superuser.
SELECT current_user::text AS name, current_database()::text AS database,
    pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees_all,
    (SELECT role.rolsuper FROM pg_catalog.pg_roles AS role WHERE role.rolname = current_user) AS is_superuser;

-- name: server_rights
-- route: pool
-- Return which of the privileges $3 this role has on the tables $2 in the schema $1, and whether it owns them.
SELECT class.relname::text AS "table", pg_has_role(class.relowner, 'USAGE') AS is_owned,
    has_schema_privilege(namespace.oid, 'CREATE') AS may_create,
    ARRAY (
        SELECT privilege.name
        FROM unnest($3::text[]) WITH ORDINALITY AS privilege (name, place)
        WHERE has_schema_privilege(namespace.oid, 'USAGE') AND has_table_privilege(class.oid, privilege.name)
        ORDER BY privilege.place
    ) AS privileges
FROM pg_catalog.pg_class AS class
JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
WHERE namespace.nspname = $1 AND class.relkind = 'r' AND class.relname = ANY ($2::text[])
ORDER BY class.relname;

-- name: server_holders
-- route: pool
-- Return $1 transactions, prepared ones, slots and standbys that keep dead rows in this database, the oldest first.
SELECT holder.*
FROM (
    SELECT CASE WHEN activity.backend_type = 'walsender' THEN 'standby' ELSE 'transaction' END AS kind,
        activity.pid::text AS subject, activity.application_name AS application,
        extract(epoch FROM clock_timestamp() - activity.xact_start)::double precision AS seconds,
        greatest(age(activity.backend_xmin), age(activity.backend_xid)) AS transactions,
        left(activity.query, 200) AS statement
    FROM pg_catalog.pg_stat_activity AS activity
    WHERE (activity.backend_xmin IS NOT NULL OR activity.backend_xid IS NOT NULL)
      AND (activity.datname = current_database() OR activity.backend_type = 'walsender')
      AND activity.pid <> pg_backend_pid()
      AND activity.backend_type <> 'autovacuum worker'
    UNION ALL
    SELECT 'prepared', prepared.gid, prepared.owner::text,
        extract(epoch FROM clock_timestamp() - prepared.prepared)::double precision, age(prepared.transaction), NULL
    FROM pg_catalog.pg_prepared_xacts AS prepared
    WHERE prepared.database = current_database()
    UNION ALL
    SELECT CASE WHEN slot.active THEN 'slot' ELSE 'inactive slot' END, slot.slot_name::text, '', NULL, age(slot.xmin), NULL
    FROM pg_catalog.pg_replication_slots AS slot
    WHERE slot.xmin IS NOT NULL
) AS holder
ORDER BY holder.seconds DESC NULLS LAST, holder.transactions DESC, holder.subject
LIMIT $1;

-- name: server_notification_queue
-- route: pool
-- Return the share of the server's queue of notifications that is in use.
SELECT pg_notification_queue_usage();

-- name: server_connections
-- route: pool
-- Return the number of connections by role and application, the $1 largest groups first.
SELECT coalesce(usename::text, '') AS role, coalesce(application_name, '') AS application, count(*) AS connections
FROM pg_catalog.pg_stat_activity
WHERE usesysid IS NOT NULL AND (backend_type IS NULL OR backend_type = 'client backend')
GROUP BY 1, 2
ORDER BY 3 DESC, 1, 2
LIMIT $1;

-- name: server_locking_schedules
-- route: pool
-- Count the schedules whose jobs hold an advisory lock, up to $1.
SELECT count(*)
FROM (
    SELECT FROM {schema}scheduler_schedules
    WHERE use_advisory_lock AND paused_at IS NULL AND finished_at IS NULL
    LIMIT $1
) AS examined;
