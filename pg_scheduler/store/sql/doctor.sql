-- name: doctor_tables
-- route: pool
-- Return the size, age, storage settings and statistics of the tables $2 in the schema $1.
SELECT class.relname::text AS name, class.reloptions AS options,
    greatest(age(class.relfrozenxid), age(toast.relfrozenxid)) AS freeze_age,
    pg_stat_get_live_tuples(class.oid) AS live, pg_stat_get_dead_tuples(class.oid) AS dead,
    pg_stat_get_tuples_updated(class.oid) AS updates, pg_stat_get_tuples_hot_updated(class.oid) AS hot_updates,
    greatest(pg_stat_get_last_vacuum_time(class.oid), pg_stat_get_last_autovacuum_time(class.oid)) AS vacuumed_at,
    pg_table_size(class.oid) AS bytes
FROM pg_catalog.pg_class AS class
JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
LEFT JOIN pg_catalog.pg_class AS toast ON toast.oid = class.reltoastrelid
WHERE namespace.nspname = $1 AND class.relkind = 'r' AND class.relname = ANY ($2::text[])
ORDER BY class.relname;

-- name: doctor_indexes
-- route: pool
-- Return $3 indexes of the tables $2 in the schema $1, with every column that their keys or conditions use.
--
-- An index that a session is building is left out.
SELECT class.relname::text AS "table", index.relname::text AS name, entry.indisvalid AS is_valid,
    method.amname::text AS method, rule.conname::text AS constraint,
    ARRAY (
        SELECT attname::text
        FROM pg_catalog.pg_attribute AS attribute
        WHERE attribute.attrelid = class.oid AND attribute.attnum > 0 AND NOT attribute.attisdropped
          AND (attribute.attnum = ANY (entry.indkey) OR EXISTS (
              SELECT FROM pg_catalog.pg_depend AS used
              WHERE used.classid = class.tableoid AND used.objid = index.oid
                AND used.refclassid = class.tableoid AND used.refobjid = class.oid
                AND used.refobjsubid = attribute.attnum
          ))
        ORDER BY attribute.attnum
    ) AS columns
FROM pg_catalog.pg_class AS class
JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
JOIN pg_catalog.pg_index AS entry ON entry.indrelid = class.oid
JOIN pg_catalog.pg_class AS index ON index.oid = entry.indexrelid
JOIN pg_catalog.pg_am AS method ON method.oid = index.relam
LEFT JOIN pg_catalog.pg_constraint AS rule ON rule.conindid = index.oid AND rule.conrelid = class.oid
WHERE namespace.nspname = $1 AND class.relkind = 'r' AND class.relname = ANY ($2::text[])
  AND NOT EXISTS (
      SELECT FROM pg_catalog.pg_stat_progress_create_index AS progress WHERE progress.index_relid = index.oid
  )
ORDER BY class.relname, index.relname
LIMIT $3;

-- name: doctor_settings
-- route: pool
-- Return the settings $1 of this session, and where their values come from.
SELECT name, setting AS value, source
FROM pg_catalog.pg_settings
WHERE name = ANY ($1::text[]);
