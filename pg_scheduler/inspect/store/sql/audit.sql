-- Of "examined", the newest records, those that match the filters are returned, and the last one, from which the next
-- statement continues.

-- fragment: audit_result
SELECT {audit_record_columns}, matches, place
FROM (
    SELECT *, row_number() OVER () AS place,
        ($4::text IS NULL OR action = $4)
            AND ($5::text IS NULL OR actor = $5)
            AND ($6::text IS NULL OR via = $6)
            AND ($7::timestamptz IS NULL OR at >= $7)
            AND ($8::timestamptz IS NULL OR at < $8) AS matches
    FROM examined
) AS found
WHERE matches OR place = $3
LIMIT $2::bigint

-- fragment: audit_record_columns
id, least(greatest(at, {first_instant}), {last_instant}) AS at, actor, via, action, subject, details::text AS details

-- name: inspect_audit
-- route: pool
-- Return $2 of the newest $3 records before the id $1 that match the filters, and the last of these $3.
WITH examined AS NOT MATERIALIZED (
    SELECT *
    FROM {schema}scheduler_audit
    WHERE id < coalesce($1::bigint, 9223372036854775807)
    ORDER BY id DESC
    LIMIT $3::bigint
)
{audit_result};

-- name: inspect_audit_of
-- route: pool
-- Return records of the subject $9, as inspect_audit does.
--
-- It is not compared by "=", with which the planner may read all records by their ids.
WITH examined AS NOT MATERIALIZED (
    SELECT *
    FROM {schema}scheduler_audit
    WHERE (subject, id) < ($9::text, coalesce($1::bigint, 9223372036854775807)) AND subject >= $9
    ORDER BY subject DESC, id DESC
    LIMIT $3::bigint
)
{audit_result};

-- name: inspect_trigger_changes
-- route: pool
-- Return when the triggers of schedules $1 were last changed, as far as the newest $2 records of each tell.
SELECT wanted.id, least(greatest(changed.at, {first_instant}), {last_instant}) AS at
FROM unnest($1::text[]) AS wanted (id)
CROSS JOIN LATERAL (
    SELECT at
    FROM (
        SELECT id, at, action, details
        FROM {schema}scheduler_audit
        WHERE (subject, id) < (wanted.id, 9223372036854775807) AND subject >= wanted.id
        ORDER BY subject DESC, id DESC
        LIMIT $2::bigint
    ) AS record
    WHERE action = 'update_schedule'
      AND coalesce(details -> 'before' ->> 'trigger', '') <> coalesce(details -> 'after' ->> 'trigger', '')
    ORDER BY id DESC
    LIMIT 1
) AS changed;

-- name: inspect_audit_privileges
-- route: pool
-- Return whether the role may read and add records of the audit, by the name $1 of its table; NULL if there is none.
SELECT has_table_privilege(audit.oid, 'SELECT') AND has_any_column_privilege(audit.oid, 'INSERT') AS is_allowed
FROM to_regclass($1) AS audit (oid);

-- name: inspect_newest_records
-- route: pool
-- Return the records of the actions $2 among the newest $3 of each of the subjects $1, the newest first.
SELECT {audit_record_columns}
FROM unnest($1::text[]) AS wanted (name)
CROSS JOIN LATERAL (
    SELECT *
    FROM {schema}scheduler_audit
    WHERE (subject, id) < (wanted.name, 9223372036854775807) AND subject >= wanted.name
    ORDER BY subject DESC, id DESC
    LIMIT $3::bigint
) AS record
WHERE action = ANY ($2::text[])
ORDER BY id DESC;
